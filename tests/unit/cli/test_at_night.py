"""What an operator types in a hurry: prefixes, typos, wrong URLs, and questions about a backlog."""

from __future__ import annotations

import asyncio
import builtins
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import NewJob, Settings, State, Tenure, Worker
from tenure.cli.context import require_answer
from tenure.cli.workers import warn_of_typos
from tenure.features.live_workers.data import Beat, LiveWorker
from tenure.queue import store_of
from tenure.worker.post import Post
from tests.support import postgres
from tests.support.sizes import let
from tests.unit.cli.terminal import Terminal

# Run now ------------------------------------------------------------------------------------------


def test_run_now_makes_delayed_jobs_ready_and_keeps_their_attempts(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1", "--id", "late", "--delay", "1h")
    with cli.open() as store:
        store.enqueue("mail", id="tried")
        store.fail(store.claim("mail")[0], "no luck", retry_in=3600)
    assert cli.text("run-now", "late", "tried") == "2 jobs made ready.\n"
    assert cli.get("tried").attempts == 1
    assert cli.json("run-now", "late") == {"made_ready": 0, "unchanged": ["late"], "failed": 0}
    cli.text("enqueue", "mail", "1", "--delay", "1h")
    assert cli.text("run-now", "--queue", "mail") == "1 job made ready.\n"
    assert "Say which jobs" in cli.usage("run-now")


# Backlogs -----------------------------------------------------------------------------------------


def test_tenants_and_groups_are_listed_by_backlog(cli: Terminal) -> None:
    sizes = {"a": 1, "b": 3, "c": 2, "d": 3}
    with cli.open() as store:
        store.enqueue_many(
            NewJob(queue="q", tenant=name, group=group)
            for name, size in sizes.items()
            for n in range(size)
            for group in (["g", "h", "h"][n],)
        )
        store.ack(store.claim("q", tenant="a")[0])

    def names(*args: str) -> list[str]:
        return [line.split()[0] for line in cli.text(*args).splitlines()[1:]]

    assert names("tenants", "q") == ["b", "d", "c", "a"]
    assert names("tenants", "q", "--sort", "name") == ["a", "b", "c", "d"]
    assert names("tenants", "q", "--after", "b") == ["c", "d"]
    assert names("tenants", "q", "--limit", "2")[:2] == ["b", "d"]
    assert [one["tenant"] for one in cli.json("tenants", "q")] == ["b", "d", "c", "a"]
    assert names("groups", "q", "--tenant", "b") == ["h", "g"]


def test_the_largest_backlog_is_found_among_more_tenants_than_a_page(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_listed_as_held_back=3)
    with cli.open() as store:
        store.enqueue_many(NewJob(queue="q", tenant=f"t{n}") for n in range(10))
        store.enqueue("q", tenant="t9")
    assert [one["tenant"] for one in cli.json("tenants", "q", "--limit", "2")] == ["t9", "t0"]


def test_stats_show_how_long_the_oldest_ready_job_has_waited(cli: Terminal) -> None:
    cli.text("enqueue", "q", "1")
    cli.clock.advance(600)
    cli.text("enqueue", "q", "1")
    assert cli.text("stats").splitlines()[1].split()[-1] == "10m"
    assert cli.json("stats")["queues"]["q"]["oldest_ready_at"] == cli.clock.now_ms() - 600_000


def test_stats_tell_paused_and_limited_jobs_from_ready_ones(cli: Terminal) -> None:
    with cli.open() as store:
        for tenant in ("free", "paused", "full", "default", "groups"):
            store.enqueue_many(NewJob(queue="q", tenant=tenant, group="g") for _ in range(3))
        store.enqueue_many(NewJob(queue="q", tenant="groups", group="h") for _ in range(2))
        store.pause("q", tenant="paused")
        store.limits.set("q", tenant="full", concurrency=1)
        store.claim("q", tenant="full")
        store.limits.set("q", tenant="*", concurrency=2)
        store.claim("q", tenant="default", limit=2)
        store.pause("q", tenant="groups", group="g")
        store.limits.set("q", tenant="groups", group="h", concurrency=1)
        (held,) = store.claim("q", tenant="groups")
        assert held.group == "h"
    queue = cli.json("stats", "q")["queues"]["q"]
    # paused: 3 of paused and 3 of groups; full: 2, default: 1, group h: 1
    assert (queue["held_by_pauses"], queue["held_by_limits"], queue["ready"]) == (6, 4, 13)
    head, row, _ = (line.split() for line in cli.text("stats", "q").splitlines())
    shown = dict(zip(head[1:], row[1:], strict=True))
    assert (shown["ready"], shown["paused"], shown["limited"]) == ("3", "6", "4")


def test_a_whole_queue_is_held_back_by_its_own_limit(cli: Terminal) -> None:
    with cli.open() as store:
        store.enqueue_many(NewJob(queue="q") for _ in range(3))
        store.limits.set("q", concurrency=1)
        store.claim("q")
    assert cli.json("stats")["queues"]["q"]["held_by_limits"] == 2


# Ids ----------------------------------------------------------------------------------------------


def test_an_id_may_be_given_by_its_start(cli: Terminal) -> None:
    for id in ("abcd-1", "abcd-2", "abcd", "xyz0-1"):
        cli.text("enqueue", "q", "1", "--id", id)
    assert cli.json("show", "xyz0")["id"] == "xyz0-1"
    assert cli.json("show", "abcd")["id"] == "abcd"  # an id, not the start of three
    assert "is the start of several ids: abcd-1, abcd-2" in cli.error("show", "abcd-")
    assert cli.error("show", "xyz").startswith("id: 'xyz' is too short")  # too short to be meant
    assert cli.text("cancel", "xyz0") == "1 job cancelled.\n"
    assert cli.get("xyz0-1").state is State.CANCELLED
    result = cli.run("cancel", "abcd-", "abcd-1")
    assert (result.exit_code, result.stdout) == (1, "1 job cancelled.\n")
    (job,) = cli.json("claim", "q")
    assert cli.text("release", job["id"], "--token", str(job["token"])).startswith("Job abcd")


# Typos --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["pause"], ["limit", "--concurrency", "1"]])
def test_a_misspelt_queue_is_an_error_unless_it_is_to_be_created(
    cli: Terminal, command: list[str]
) -> None:
    cli.text("enqueue", "emails", "1")
    name, *options = command
    assert cli.error(name, "emials", *options) == (
        "there is no queue 'emials': did you mean 'emails'? To create it, add --create"
    )
    assert list(cli.json("stats")["queues"]) == ["emails"]
    cli.text(name, "emails", *options)
    cli.text(name, "new", *options, "--create")
    assert list(cli.json("stats")["queues"]) == ["emails", "new"]


@pytest.mark.parametrize(
    "command",
    [
        ["stats", "emials"],
        ["jobs", "--queue", "emials"],
        ["dead", "--queue", "emials"],
        ["replay", "--queue", "emials"],
        ["tenants", "emials"],
        ["limits", "emials"],
        ["resume", "emials"],
        ["errors", "emials"],
        ["rates", "emials"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_finds_no_such_queue_suggests_a_similar_one(
    cli: Terminal, command: list[str]
) -> None:
    cli.text("enqueue", "emails", "1")
    assert cli.error(*command) == "there is no queue 'emials': did you mean 'emails'?"


def test_a_queue_that_resembles_no_other_is_not_found_without_a_suggestion(cli: Terminal) -> None:
    cli.text("enqueue", "emails", "1")
    assert cli.error("stats", "parcels") == "there is no queue 'parcels'"
    assert cli.error("limits", "parcels") == "there is no queue 'parcels'"


READING = [
    ["stats"], ["jobs"], ["dead"], ["show", "a"], ["tenants", "q"], ["groups", "q"], ["limits"],
    ["schedules"], ["cancel", "a"], ["replay", "a"], ["run-now", "a"], ["delete", "a"],
    ["pause", "q"], ["resume", "q"], ["reconcile", "q"], ["maintain"], ["ack", "a", "--token", "1"],
    ["purge", "--older-than", "1d", "--yes"],
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=lambda command: command[0])
def test_commands_that_have_no_use_for_a_new_store_create_none(
    fresh: Terminal, tmp_path: Path, command: list[str]
) -> None:
    assert "there is no store at sqlite:///" in fresh.error(*command)
    assert list(tmp_path.iterdir()) == []


def test_reading_commands_create_no_schema_in_postgresql(fresh: Terminal, tmp_path: Path) -> None:
    schema = postgres.schema_of(tmp_path)
    postgres.drop_schema(schema)
    fresh.url = postgres.url_of(tmp_path)
    try:
        assert "there is no store at" in fresh.error("stats")
        assert "there is no store at" in fresh.error("stats")
        fresh.text("enqueue", "q", "1")
        assert fresh.json("stats")["ready"] == 1
    finally:
        postgres.drop(tmp_path)


# Messages -----------------------------------------------------------------------------------------


def test_a_message_of_several_lines_is_shown_in_one(cli: Terminal) -> None:
    gone = f"postgresql://nobody@/x?host={cli.folder}"
    result = cli.run("stats", url=gone)
    assert result.exit_code == 1
    assert "\\n" not in result.stderr
    assert "\\t" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_enqueue_says_that_it_created_a_queue_and_suggests_a_similar_one(cli: Terminal) -> None:
    assert cli.text("enqueue", "emails", "1", "--id", "a") == (
        "Job a is ready. Created queue 'emails'.\n"
    )
    assert cli.text("enqueue", "emails", "1", "--id", "b") == "Job b is ready.\n"
    assert cli.text("enqueue", "emials", "1", "--id", "c") == (
        "Job c is ready. Created queue 'emials': did you mean 'emails'?\n"
    )


def test_a_worker_warns_of_a_queue_that_looks_like_a_typo(
    cli: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    cli.text("enqueue", "emails", "1")
    with Tenure(cli.url) as app:

        @app.task(queue="parcels")
        def ship() -> None: ...

        warn_of_typos(app, ["emails", "parcels", "something-else"])
        assert not caplog.records
        warn_of_typos(app, ["emials", "parcel"])
    assert [one.getMessage() for one in caplog.records] == [
        "there is no queue 'emials' yet: did you mean 'emails'?",
        "there is no queue 'parcel' yet: did you mean 'parcels'?",
    ]


def unused_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_command_does_not_wait_for_a_service_that_is_away(cli: Terminal) -> None:
    url = unused_url()
    began = time.monotonic()
    result = cli.run("stats", url=url)
    assert time.monotonic() - began < 5
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"error: {url} does not answer (")
    assert "TENURE_BUSY_TIMEOUT" in result.stderr


def test_a_command_waits_for_a_service_as_long_as_it_is_told(
    cli: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    url = unused_url()
    result = cli.run("stats", url=url, env={"TENURE_BUSY_TIMEOUT": "0.2"})
    assert result.stderr.startswith(f"error: {url} cannot be reached")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{url} cannot be reached")
    assert record.getMessage().endswith("trying again for 0.2 s")


def test_a_service_behind_a_proxy_is_not_connected_to_directly(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = unused_url()
    monkeypatch.setenv("http_proxy", unused_url())
    monkeypatch.setenv("no_proxy", "")
    require_answer(Settings(url=url))  # does not raise


def test_serve_without_its_packages_says_what_to_install(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "httptools":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    for module in ("hosting", "http_server", "connection"):
        monkeypatch.delitem(sys.modules, f"tenure.server.{module}", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    assert cli.error("serve") == (
        "serve: needs httptools, which is not installed: pip install 'tenure[server]'"
    )


def test_every_other_command_runs_without_the_packages_of_the_service(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['httptools'] = sys.modules['prometheus_client'] = None; "
        "from tenure.cli import main; main(['--url', sys.argv[1], 'enqueue', 'q', '1'])"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path}/jobs.db"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Errors -------------------------------------------------------------------------------------------


def test_dead_jobs_are_replayed_and_deleted_by_their_error_group(cli: Terminal) -> None:
    with cli.open() as store:
        for name, message in (("a", "no luck"), ("b", "no luck"), ("c", "no disk")):
            store.enqueue("mail", id=name, max_attempts=1)
            store.fail(store.claim("mail")[0], message)
    groups = {one["message"]: one["group"] for one in cli.json("errors")["errors"]}
    assert cli.text("replay", "--error", groups["no luck"], "--dry-run").startswith("2 jobs would")
    assert cli.text("replay", "--error", groups["no luck"]) == "2 jobs replayed.\n"
    assert cli.text("replay", "--error", groups["no luck"]) == "0 jobs replayed.\n"
    assert cli.get("c").state == State.DEAD
    assert cli.text("delete", "--error", groups["no disk"], "--yes") == "1 job deleted.\n"
    assert [cli.get(name).state for name in "ab"] == [State.PENDING, State.PENDING]


@pytest.mark.parametrize("command", [("replay",), ("delete", "--yes")])
def test_an_error_group_that_does_not_exist_is_an_error(
    cli: Terminal, command: tuple[str, ...]
) -> None:
    with cli.open() as store:
        store.enqueue("mail", max_attempts=1)
        store.fail(store.claim("mail")[0], "no luck")
    text = "there is no error group '0123456789ab': see `tenure errors`"
    assert cli.error(*command, "--error", "0123456789ab") == text


def test_why_shows_the_last_error(cli: Terminal) -> None:
    with cli.open() as store:
        store.enqueue("mail", id="tried")
        store.fail(store.claim("mail", worker="w1")[0], ValueError("no luck"), retry_in=3600)
        store.enqueue("mail", id="gone", max_attempts=1)
        store.fail(store.claim("mail", worker="w1")[0], ValueError("no disk"))
    tried, gone = cli.text("why", "tried"), cli.text("why", "gone")
    assert re.match(r"Attempt 1 failed at \S+ \S+ UTC on w1: ValueError: no luck\n", tried)
    assert cli.json("why", "tried")["last_error"]["message"] == "no luck"
    assert "It is due at" in tried
    assert "ValueError: no disk" in gone
    assert "It has been dead since" in gone


def test_why_says_that_no_worker_has_the_task(cli: Terminal) -> None:
    with cli.open() as store:
        store.enqueue("mail", id="renamed", kind="old_name")
        worker = Worker(store, [Post(["mail"], 1, {})], schedule=False, burst=True)
        asyncio.run(worker.run())
    told = cli.text("why", "renamed")
    assert told.startswith("No worker has a task named 'old_name' yet: first noticed ")
    assert "Start a worker whose app has this task" in told


def test_why_shows_who_paused_a_queue_and_the_reason(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1", "--id", "held")
    cli.text("pause", "mail", "--reason", "the provider bounces")
    assert re.match(
        r"The queue 'mail' was paused at \S+ \S+ UTC by \S+@\S+: the provider bounces\.\n",
        cli.text("why", "held"),
    )


def test_the_pid_of_a_worker_is_not_written_as_a_count(cli: Terminal) -> None:
    with cli.open() as store:
        store_of(store).do([Beat(LiveWorker("w1", ("mail",), pid=12345), 20_000)])
    assert " 12345 " in cli.text("workers")


PROGRAM = """
import tenure
app = tenure.Tenure("sqlite:///jobs.db")
@app.task(queue="mail")
def send() -> None: ...
send.enqueue()
"""


def test_what_a_program_enqueued_is_counted_even_if_it_does_not_close_its_app(
    cli: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, timeout=60)
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as store:
        mail = store.rates("mail").queues["mail"]
    assert sum(point.enqueued for point in mail.points) == 1


def test_a_wrong_name_of_an_app_gets_a_hint(
    cli: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hinted.py").write_text("import tenure\napp = tenure.Tenure('sqlite:///x.db')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert "Write hinted:app, without .py." in cli.usage("worker", "hinted.py")
    assert "Did you mean hinted:app?" in cli.usage("worker", "hinted:ap")
