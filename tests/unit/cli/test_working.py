"""Adding jobs and working on them, from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import msgspec
import pytest

from tenure import Job, State
from tests.unit.cli.terminal import Terminal

JOB_FIELDS = {field.encode_name for field in msgspec.structs.fields(Job)}


def claim_one(cli: Terminal, *args: str) -> tuple[str, str]:
    """The id and the token of a new job that is leased."""
    cli.json("enqueue", "mail", "{}", *args)
    (job,) = cli.json("claim", "mail")
    return job["id"], str(job["token"])


def test_a_job_is_added_and_named(cli: Terminal) -> None:
    text = cli.text("enqueue", "mail", '{"to": "ann"}', "--id", "a")

    assert text == "Job a is ready. Created queue 'mail'.\n"
    assert cli.get("a").payload == {"to": "ann"}


def test_every_option_of_a_job_is_stored(cli: Terminal) -> None:
    cli.json("enqueue", "mail", "null", "--id", "parent")
    job = cli.json(
        "enqueue", "mail", "[1]", "--kind", "welcome", "--tenant", "acme", "--group", "g",
        "--priority", "-5", "--delay", "5m", "--id", "a", "--unique-key", "k",
        "--after", "parent", "--if-parent-fails", "cancel", "--max-attempts", "7",
        "--expires-in", "2h", "--timeout", "90",
    )  # fmt: skip

    now = cli.clock.now_ms()
    assert (job["kind"], job["tenant"]) == ("welcome", "acme")
    assert (job["group"], job["priority"], job["unique_key"]) == ("g", -5, "k")
    assert (job["state"], job["after"], job["if_parent_fails"]) == (
        "waiting",
        ["parent"],
        "cancel",
    )
    assert (job["run_at"], job["expires_at"]) == (now + 300_000, now + 7_200_000)
    assert (job["max_attempts"], job["timeout_ms"], job["payload"]) == (7, 90_000, [1])


def test_a_job_as_json_has_all_its_fields_whatever_their_values(cli: Terminal) -> None:
    assert cli.json("enqueue", "mail", "null").keys() == JOB_FIELDS


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90", 90_000),
        ("90s", 90_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("500ms", 500),
        ("1.5h", 5_400_000),
        ("0", 0),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(cli: Terminal, text: str, ms: int) -> None:
    job = cli.json("enqueue", "mail", "1", "--delay", text)

    assert job["run_at"] - cli.clock.now_ms() == ms


@pytest.mark.parametrize("text", ["", "x", "5 m", "-5", "5w", "1e3", "٣", "5m5"])
def test_what_is_not_a_duration_is_wrong_usage(cli: Terminal, text: str) -> None:
    assert "is not a duration such as 90" in cli.usage("enqueue", "q", "1", "--delay", text)


def test_a_span_beyond_all_limits_is_an_error(cli: Terminal) -> None:
    assert "delay" in cli.error("enqueue", "mail", "1", "--delay", "9" * 400 + "d")


def test_text_without_quotes_is_explained(cli: Terminal) -> None:
    said = cli.usage("enqueue", "mail", "hello")

    assert "is not JSON" in said
    assert "needs double quotes" in said


@pytest.mark.parametrize("args", [[], ["mail"], ["--queue", "mail"], ["a", "1", "--queue", "b"]])
def test_a_job_needs_a_queue_and_a_payload(cli: Terminal, args: list[str]) -> None:
    assert "Give QUEUE and JSON, or --file." in cli.usage("enqueue", *args)


def test_a_duplicate_is_an_error_in_one_line(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1", "--id", "a")

    assert cli.error("enqueue", "mail", "1", "--id", "a").startswith("id 'a' is held by job 'a'")


def test_an_error_is_json_where_that_was_asked_for(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1", "--id", "a")

    result = cli.run("enqueue", "mail", "1", "--id", "a", "--json")

    assert (result.exit_code, result.stdout) == (1, "")
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "duplicate"
    assert error["message"].startswith("id 'a' is held")


def test_with_skip_the_job_that_exists_is_the_answer(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1", "--id", "a", "--unique-key", "k")

    job = cli.json("enqueue", "mail", "2", "--unique-key", "k", "--if-exists", "skip")

    assert (job["id"], job["payload"]) == ("a", 1)


def test_a_delayed_job_says_when_it_is_ready(cli: Terminal) -> None:
    text = cli.text("enqueue", "mail", "1", "--id", "a", "--delay", "5m")

    assert text == "Job a is pending, ready in 5m. Created queue 'mail'.\n"


def test_claim_takes_from_several_queues_in_order(cli: Terminal) -> None:
    for queue in ("web", "mail"):
        cli.text("enqueue", queue, "1", "--id", queue)

    jobs = cli.json("claim", "mail", "web", "--limit", "5", "--lease", "2m", "--worker", "me")

    assert [job["id"] for job in jobs] == ["mail", "web"]
    assert jobs[0].keys() == JOB_FIELDS
    assert {job["worker"] for job in jobs} == {"me"}
    assert {job["lease_until"] for job in jobs} == {cli.clock.now_ms() + 120_000}


def test_claim_keeps_to_a_tenant_and_out_of_groups(cli: Terminal) -> None:
    for name, tenant, group in [("a", "acme", "g"), ("b", "acme", "h"), ("c", "bolt", "h")]:
        cli.text("enqueue", "mail", "1", "--id", name, "--tenant", tenant, "--group", group)

    jobs = cli.json("claim", "mail", "--limit", "9", "--tenant", "acme", "--not-group", "g")

    assert [job["id"] for job in jobs] == ["b"]


def test_a_person_sees_the_token_and_the_payload_of_a_claim(cli: Terminal) -> None:
    cli.text("enqueue", "mail", '{"to": "ann"}', "--id", "a")

    text = cli.text("claim", "mail")

    token = str(cli.get("a").token)
    assert text.splitlines()[1].split() == ["a", token, "mail", '{"to":"ann"}']
    assert "The lease expires in 60s." in text


def test_nothing_ready_is_no_error(cli: Terminal) -> None:
    assert cli.text("claim", "mail") == "Nothing is ready.\n"
    assert cli.json("claim", "mail") == []


def test_ack_stores_the_result(cli: Terminal) -> None:
    id, token = claim_one(cli)

    assert cli.json("ack", id, "--token", token, "--result", '{"n": 1}') == {
        "id": id,
        "state": "done",
    }
    assert (cli.get(id).state, cli.get(id).result) == (State.DONE, {"n": 1})


@pytest.mark.parametrize("command", ["ack", "fail", "extend", "release"])
def test_an_old_token_can_do_nothing(cli: Terminal, command: str) -> None:
    id, token = claim_one(cli)
    cli.text("release", id, "--token", token)

    assert "no longer leased under this token" in cli.error(command, id, "--token", token)
    assert cli.get(id).state == State.PENDING


@pytest.mark.parametrize("command", ["ack", "fail", "extend", "release"])
def test_a_job_that_does_not_exist_is_an_error(cli: Terminal, command: str) -> None:
    assert "there is no job 'nope'" in cli.error(command, "nope", "--token", "1")


def test_fail_is_tried_again_when_it_was_told_to(cli: Terminal) -> None:
    id, token = claim_one(cli)

    answer = cli.json("fail", id, "--token", token, "--error", "boom", "--retry-in", "5m")

    assert answer == {"id": id, "state": "pending"}
    job = cli.get(id)
    assert (job.error, job.run_at) == ("boom", cli.clock.now_ms() + 300_000)


def test_a_fatal_failure_is_the_end(cli: Terminal) -> None:
    id, token = claim_one(cli)

    assert cli.text("fail", id, "--token", token, "--fatal") == f"Job {id} is dead.\n"


def test_extend_counts_from_now(cli: Terminal) -> None:
    id, token = claim_one(cli)
    cli.clock.advance(30)

    assert cli.json("extend", id, "--token", token, "--lease", "10m")["state"] == "leased"
    assert cli.get(id).lease_until == cli.clock.now_ms() + 600_000


def test_release_gives_the_attempt_back(cli: Terminal) -> None:
    id, token = claim_one(cli)

    assert cli.json("release", id, "--token", token, "--delay", "30s")["state"] == "pending"
    job = cli.get(id)
    assert (job.attempts, job.run_at) == (0, cli.clock.now_ms() + 30_000)


def test_a_token_must_be_given(cli: Terminal) -> None:
    assert "--token" in cli.usage("ack", "a")


# Calls of tasks -----------------------------------------------------------------------------------

PROGRAM = """
import tenure

app = tenure.Tenure(default_queue="mail")


@app.task(max_attempts=7, timeout=30, backoff=tenure.fixed(5))
def send(to: str, copies: int = 1) -> None: ...


@app.task(queue="reports", unique=True)
def report(day: str) -> None: ...
"""


@pytest.fixture
def tasks(cli: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an app in a module of its own."""
    (cli.folder / "called.py").write_text(PROGRAM)
    monkeypatch.chdir(cli.folder)
    monkeypatch.syspath_prepend(str(cli.folder))
    yield "called:app"
    sys.modules.pop("called", None)


def test_a_call_of_a_task_has_the_options_of_the_task(cli: Terminal, tasks: str) -> None:
    job = cli.json("enqueue", "--app", tasks, "--task", "send", '{"to": "ann"}', "--id", "a")
    assert (job["queue"], job["kind"], job["payload"]) == ("mail", "send", {"to": "ann"})
    assert (job["max_attempts"], job["timeout_ms"]) == (7, 30_000)
    assert job["backoff"]["kind"] == "fixed"


def test_options_of_the_command_take_precedence_over_those_of_the_task(
    cli: Terminal, tasks: str
) -> None:
    job = cli.json(
        *("enqueue", "letters", "--app", tasks, "--task", "send", '{"to": "ann"}'),
        *("--max-attempts", "2", "--timeout", "5"),
    )
    assert (job["queue"], job["max_attempts"], job["timeout_ms"]) == ("letters", 2, 5_000)


def test_arguments_that_do_not_fit_the_task_are_not_enqueued(cli: Terminal, tasks: str) -> None:
    call = ("enqueue", "--app", tasks, "--task")
    assert "Expected `int`, got `str`" in cli.error(*call, "send", '{"to": "a", "copies": "x"}')
    assert "must be an object" in cli.error(*call, "send", "[1]")
    assert "did you mean 'report'?" in cli.error(*call, "reports", "{}")
    assert "belong together" in cli.usage("enqueue", "--app", tasks, "{}")
    assert "--kind" in cli.usage(*call, "send", "{}", "--kind", "send")
    assert cli.json("stats")["queues"] == {}


def test_a_unique_call_that_exists_is_not_an_error(cli: Terminal, tasks: str) -> None:
    call = ("enqueue", "--app", tasks, "--task", "report", '{"day": "monday"}')
    assert cli.json(*call)["id"] == cli.json(*call)["id"]
    assert "is held by job" in cli.error(*call, "--if-exists", "error")
