"""Loading jobs from a file: no line is lost to another's fault."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tenure import NewJob, Queue, StoreFull
from tests.support.sizes import let
from tests.unit.cli.terminal import Terminal


def line(**fields: Any) -> str:
    return json.dumps({"queue": "mail", **fields})


def ids(cli: Terminal) -> set[str]:
    with cli.open() as store:
        return {job.id for job in store.jobs(limit=10_000).jobs}


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, jobs_of_a_chunk_of_lines=4)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each call to the store had."""
    sizes: list[int] = []
    enqueue_many = Queue.enqueue_many

    def counted(self: Queue, jobs: Iterable[NewJob], **options: Any) -> list[str]:
        jobs = list(jobs)
        sizes.append(len(jobs))
        return enqueue_many(self, jobs, **options)

    monkeypatch.setattr(Queue, "enqueue_many", counted)
    return sizes


def test_a_file_is_loaded_in_chunks(cli: Terminal, calls: list[int]) -> None:
    path = cli.write(*(line(id=f"{n}", payload=n) for n in range(2500)))

    assert cli.text("enqueue", "--file", path) == "loaded 2,500, skipped 0 existing, 0 bad\n"
    assert calls == [1000, 1000, 500]
    assert cli.get("2499").payload == 2499


def test_large_jobs_make_small_chunks(
    cli: Terminal, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, bytes_of_a_chunk_of_lines=2500)
    path = cli.write(*(line(payload="x" * 1000) for _ in range(5)))

    assert cli.json("enqueue", "--file", path)["loaded"] == 5
    assert calls == [3, 2]


def test_the_standard_input_is_loaded(cli: Terminal) -> None:
    answer = cli.json("enqueue", "--file", "-", input=line(id="a") + "\n" + line(id="b"))

    assert answer == {"loaded": 2, "skipped": 0, "bad": 0}
    assert ids(cli) == {"a", "b"}


def test_every_field_of_a_line_is_stored(cli: Terminal) -> None:
    path = cli.write(
        line(id="parent"),
        line(
            id="a", payload={"n": 1}, kind="k", tenant="t", group="g", priority=-3, delay=1.5,
            unique_key="u", after=["parent"], if_parent_fails="run", max_attempts=9,
            expires_in=60, timeout=2, backoff={"kind": "fixed", "base_ms": 5},
        ),
        line(id="b", run_at="2030-01-01T00:00:00Z"),
    )  # fmt: skip

    assert cli.json("enqueue", "--file", path)["loaded"] == 3
    job, now = cli.get("a"), cli.clock.now_ms()
    assert (job.kind, job.tenant, job.group, job.priority) == ("k", "t", "g", -3)
    assert (job.run_at, job.expires_at, job.timeout_ms) == (now + 1500, now + 60_000, 2000)
    assert (job.unique_key, job.after, job.if_parent_fails) == ("u", ("parent",), "run")
    assert (job.max_attempts, job.payload) == (9, {"n": 1})
    assert job.backoff is not None
    assert job.backoff.base_ms == 5
    assert cli.get("b").run_at == 1_893_456_000_000


@pytest.mark.parametrize("queue", [["web"], ["--queue", "web"]])
def test_options_count_for_lines_that_do_not_say(cli: Terminal, queue: list[str]) -> None:
    path = cli.write('{"id": "a"}', line(id="b", tenant="", priority=1))

    options = ["--tenant", "acme", "--priority", "7", "--delay", "5m", "--max-attempts", "2"]
    assert cli.json("enqueue", *queue, "--file", path, *options)["loaded"] == 2

    a, b = cli.get("a"), cli.get("b")
    assert (a.queue, a.tenant, a.priority) == ("web", "acme", 7)
    assert (b.queue, b.tenant, b.priority) == ("mail", "", 1)
    assert {a.run_at, b.run_at} == {cli.clock.now_ms() + 300_000}
    assert {a.max_attempts, b.max_attempts} == {2}


@pytest.mark.parametrize(
    "args",
    [["mail", "1"], ["--id", "a"], ["--unique-key", "k"], ["mail", "--queue", "web"]],
)
def test_what_belongs_to_one_line_is_no_option_of_a_file(cli: Terminal, args: list[str]) -> None:
    cli.usage("enqueue", *args, "--file", cli.write("{}"))


def test_a_file_that_does_not_exist_is_wrong_usage(cli: Terminal) -> None:
    assert "No such file" in cli.usage("enqueue", "--file", str(cli.folder / "nope"))


def test_an_empty_file_is_loaded(cli: Terminal) -> None:
    assert cli.json("enqueue", "--file", cli.write()) == {"loaded": 0, "skipped": 0, "bad": 0}


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_do_not_matter(cli: Terminal) -> None:
    path = cli.write(b"\xef\xbb\xbf" + line(id="a").encode() + b"\r", "", "  \r", line(id="b"))

    assert cli.json("enqueue", "--file", path) == {"loaded": 2, "skipped": 0, "bad": 0}


def test_a_bad_line_is_named_and_the_others_are_loaded(cli: Terminal) -> None:
    path = cli.write(line(id="a"), "{nope", line(id="b"), "[1]", line(id="c"))

    result = cli.run("enqueue", "--file", path)

    assert result.exit_code == 1
    assert result.stdout == "loaded 3, skipped 0 existing, 2 bad\n"
    errors = result.stderr.splitlines()
    assert [error.split(": ")[1] for error in errors] == ["line 2", "line 4"]
    assert ids(cli) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"queue": "mail", "nope": 1}', "unknown field `nope`"),
        ('{"payload": 1}', "missing required field `queue`"),
        ('{"queue": "mail", "priority": "high"}', "$.priority"),
        ('{"queue": "mail", "max_attempts": 0}', "error: line 2: max_attempts: 0 must be"),
        ('{"queue": "mail", "after": ["gone"]}', "there is no job 'gone' to wait for"),
        ('{"queue": "mail", "id": "x", "after": ["x"]}', "wait for each other"),
        ('{"queue": "", "payload": 1}', "queue: must not be empty"),
        ('{"queue": "mail", "delay": -1}', "delay: -1"),
        ('{"queue": "mail", "payload": ' + "[" * 99999 + "]" * 99999 + "}", "nested too deeply"),
        (b'{"queue": "mail", "payload": "\xff"}', "is not UTF-8"),
        (b"\xff\xfe\x00", "malformed"),
        ("\0", "malformed"),
    ],
)
def test_the_reason_of_a_bad_line_is_given(cli: Terminal, bad: str | bytes, reason: str) -> None:
    path = cli.write(line(id="a"), bad, line(id="b"))

    result = cli.run("enqueue", "--file", path)

    assert result.exit_code == 1
    assert result.stderr.startswith("error: line 2: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr
    assert ids(cli) == {"a", "b"}


def test_bad_lines_are_json_where_that_was_asked_for(cli: Terminal) -> None:
    path = cli.write(line(id="a"), line(id="a"), line(id="b"))

    result = cli.run("enqueue", "--file", path, "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"loaded": 2, "skipped": 0, "bad": 1}
    error = json.loads(result.stderr)
    assert (error["line"], error["error"]["code"]) == (2, "duplicate")


def test_a_line_that_is_too_long_is_passed_over(cli: Terminal) -> None:
    env = {"TENURE_PAYLOAD_LIMIT": "100"}
    long = line(payload="x" * 200_000)
    path = cli.write(line(id="a"), long, line(id="b"), line(payload="y" * 200), long)

    result = cli.run("enqueue", "--file", path, env=env)

    assert result.stdout == "loaded 2, skipped 0 existing, 3 bad\n"
    first, second, third = sorted(result.stderr.splitlines())
    assert first.startswith("error: line 2: is longer than 66,136 bytes")
    assert second.startswith("error: line 4: payload: is 202 bytes of JSON; the limit is 100")
    assert third.startswith("error: line 5: is longer than")
    assert ids(cli) == {"a", "b"}


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_with_a_bad_job_loses_only_that_one(cli: Terminal) -> None:
    wanted = [line(id=f"{n}") for n in range(12)]
    wanted[5] = line(id="orphan", after=["gone"])
    wanted[6] = line(id="twin", max_attempts=0)

    result = cli.run("enqueue", "--file", cli.write(*wanted))

    assert result.stdout == "loaded 10, skipped 0 existing, 2 bad\n"
    assert [text.split(":")[1] for text in result.stderr.splitlines()] == [" line 6", " line 7"]
    assert ids(cli) == {f"{n}" for n in range(12)} - {"5", "6"}


def test_jobs_that_wait_for_later_ones_of_their_chunk_survive_a_bad_neighbour(
    cli: Terminal,
) -> None:
    path = cli.write(
        line(id="grandchild", after=["child"]),
        line(id="child", after=["parent"]),
        line(id="orphan", after=["gone"]),
        line(id="parent"),
    )

    result = cli.run("enqueue", "--file", path)

    assert "line 3: " in result.stderr
    assert ids(cli) == {"grandchild", "child", "parent"}


def test_jobs_that_wait_for_each_other_are_bad(cli: Terminal) -> None:
    path = cli.write(line(id="a", after=["b"]), line(id="b", after=["a"]), line(id="c"))

    assert cli.run("enqueue", "--file", path).stdout == "loaded 1, skipped 0 existing, 2 bad\n"


def test_a_duplicate_is_a_bad_line(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "0", "--id", "a", "--unique-key", "k")
    path = cli.write(line(id="a"), line(id="b", unique_key="k"), line(id="c"), line(id="c"))

    result = cli.run("enqueue", "--file", path)

    assert result.exit_code == 1
    assert result.stdout == "loaded 1, skipped 0 existing, 3 bad\n"
    errors = [text.partition(";")[0] for text in result.stderr.splitlines()]
    assert errors == [
        "error: line 1: id 'a' is held by job 'a'",
        "error: line 2: unique_key 'k' is held by job 'a'",
        "error: line 4: id 'c' is held by job 'c'",
    ]


@pytest.mark.usefixtures("small_chunks")
def test_with_skip_a_load_can_be_repeated(cli: Terminal) -> None:
    path = cli.write(*(line(id=f"{n}") for n in range(10)))
    cli.text("enqueue", "mail", "0", "--id", "3")

    again = ["enqueue", "--file", path, "--if-exists", "skip"]

    assert cli.json(*again) == {"loaded": 9, "skipped": 1, "bad": 0}
    assert cli.text(*again) == "loaded 0, skipped 10 existing, 0 bad\n"


@pytest.mark.usefixtures("small_chunks")
def test_a_fault_of_the_store_ends_the_load_and_says_where(
    cli: Terminal, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_many = Queue.enqueue_many

    def full(self: Queue, jobs: Any, **options: Any) -> list[str]:
        if len(calls) == 2:
            raise StoreFull("the disk is full")
        return enqueue_many(self, jobs, **options)

    monkeypatch.setattr(Queue, "enqueue_many", full)

    result = cli.run("enqueue", "--file", cli.write(*(line() for _ in range(20))))

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Stopped at line 12: at least loaded 8, skipped 0 existing, 0 bad.\n"
        "error: the disk is full\n"
    )
