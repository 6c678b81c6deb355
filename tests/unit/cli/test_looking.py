"""What the command line shows: to people, and to programs."""

from __future__ import annotations

import json
import re

import click
import msgspec
import pytest

from tenure import Job, NewJob, Queue, __version__, exponential
from tenure.cli import main
from tests.unit.cli.terminal import Terminal

COMMANDS = [
    "stats", "top", "jobs", "show", "why", "dead", "workers", "tenants", "groups", "limits",
    "enqueue", "claim", "ack", "fail", "extend", "release", "cancel", "replay", "run-now",
    "delete", "purge", "pause", "resume", "limit", "maintain", "reconcile", "demo", "worker",
    "scheduler", "schedules", "serve", "token", "migrate", "copy", "reshard", "readmit", "errors",
    "mute-error", "audit", "rates", "update", "history", "related", "find", "steps",
    "signal", "replay-from",
]  # fmt: skip
JOB_FIELDS = {field.encode_name for field in msgspec.structs.fields(Job)}
HOSTILE = "\x1b[2J[red]\u202eevil\x9b2J\x7f\u2066\u061c\nline"
OBEYED = r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"


def test_the_commands_are_these() -> None:
    assert sorted(main.commands) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(cli: Terminal, name: str) -> None:
    text = cli.text(name, "--help")

    assert "Example:\n" in text
    assert f"  tenure {name}" in text
    assert "--json" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    options = [one for one in main.commands[name].params if isinstance(one, click.Option)]

    assert [one.name for one in options if not one.help] == []


def test_the_overview_names_every_command(cli: Terminal) -> None:
    words = cli.text("--help").split()

    assert set(COMMANDS) <= set(words)


def test_the_version_is_told(cli: Terminal) -> None:
    assert cli.text("--version") == f"tenure, version {__version__}\n"


def test_a_wrong_option_is_wrong_usage(cli: Terminal) -> None:
    assert "No such option" in cli.usage("stats", "--nope")


def test_wrong_usage_is_json_where_that_was_asked_for(cli: Terminal) -> None:
    result = cli.run("stats", "--nope", "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"]["code"] == "usage"


def test_json_may_be_asked_for_before_the_command(cli: Terminal) -> None:
    found = json.loads(cli.text("--json", "jobs"))
    assert found == {"jobs": [], "cursor": None, "scanned": 0, "scanned_to": None}


def test_the_environment_says_where_the_jobs_are_and_the_option_comes_first(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.text("enqueue", "mail", "1", "--id", "a")
    monkeypatch.setenv("TENURE_URL", cli.url)
    no_url = ["show", "a"]

    assert cli.run(*no_url, url=None).exit_code == 0
    assert cli.run(*no_url, url=f"sqlite:///{cli.folder}/other.db").exit_code == 1


@pytest.mark.parametrize("url", ["nope", "redis://x", "sqlite:////nowhere/at/all.db"])
def test_a_url_that_cannot_be_opened_is_an_error(cli: Terminal, url: str) -> None:
    cli.url = url
    cli.error("stats")


def test_ctrl_c_ends_with_130_and_says_nothing(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Queue, "stats", interrupted)

    result = cli.run("stats")

    assert (result.exit_code, result.output.strip()) == (130, "")


# Counts -----------------------------------------------------------------------------------------


def test_stats_show_queues_as_rows_and_states_as_columns(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1")
    cli.text("enqueue", "mail", "1", "--delay", "5m")
    cli.text("enqueue", "web", "1")
    cli.text("pause", "web")

    lines = [line.split() for line in cli.text("stats").splitlines()]

    states = ["waiting", "delayed", "ready", "paused", "leased", "done", "dead", "cancelled"]
    assert lines == [
        ["queue", *states, "oldest"],
        ["mail", "0", "1", "1", "0", "0", "0", "0", "0", "0s"],
        ["web", "(paused)", "0", "0", "0", "1", "0", "0", "0", "0", "0s"],
        ["total", "0", "1", "1", "1", "0", "0", "0", "0"],
        ["in", cli.url],
    ]


def test_stats_of_one_queue_have_no_total(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1")
    cli.text("enqueue", "web", "1")

    assert "total" not in cli.text("stats", "mail")


def test_stats_as_json(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1")

    stats = cli.json("stats")

    counts = dict.fromkeys(["waiting", "delayed", "leased", "done", "dead", "cancelled"], 0)
    counts["ready"] = 1
    mail = {**counts, "queue": "mail", "paused": False, "held_by_pauses": 0, "held_by_limits": 0}
    mail["oldest_ready_at"] = cli.clock.now_ms()
    assert stats == {**counts, "queues": {"mail": mail}, "log_bytes": 0, "away": []}


def test_an_empty_store_says_that_it_is(cli: Terminal) -> None:
    assert cli.text("stats") == f"There is no queue yet in {cli.url}.\n"
    assert cli.text("jobs") == "No jobs.\n"
    assert cli.text("dead") == "No jobs.\n"
    assert cli.text("limits") == "No limits.\n"
    assert cli.json("limits") == []


@pytest.mark.parametrize("command", ["stats", "tenants", "groups", "reconcile"])
def test_a_queue_that_does_not_exist_is_an_error(cli: Terminal, command: str) -> None:
    assert cli.error(command, "nope") == "there is no queue 'nope'"


def test_tenants_are_listed_by_name(cli: Terminal) -> None:
    for tenant in ("bolt", "acme", ""):
        cli.text("enqueue", "mail", "1", "--tenant", tenant)

    lines = cli.text("tenants", "mail").splitlines()
    assert [line.split()[0] for line in lines] == ["tenant", "(none)", "acme", "bolt"]
    found = cli.json("tenants", "mail", "--limit", "1", "--after", "acme")
    assert [(one["tenant"], one["ready"]) for one in found] == [("bolt", 1)]
    by_name = cli.text("tenants", "mail", "--limit", "2", "--sort", "name")
    assert "There may be more: --after 'acme'" in by_name
    assert "There may be more: --limit 20" in cli.text("tenants", "mail", "--limit", "2")


def test_groups_of_a_tenant_are_listed_by_name(cli: Terminal) -> None:
    for group in ("h", "g"):
        cli.text("enqueue", "mail", "1", "--tenant", "acme", "--group", group)

    lines = cli.text("groups", "mail", "--tenant", "acme").splitlines()
    assert [line.split()[0] for line in lines] == ["group", "g", "h"]
    found = cli.json("groups", "mail", "--tenant", "acme", "--after", "g")
    assert [(one["tenant"], one["group"]) for one in found] == [("acme", "h")]
    assert cli.text("groups", "mail", "--tenant", "bolt") == "No groups.\n"


def test_groups_of_all_tenants_are_listed_together(cli: Terminal) -> None:
    for tenant, group in (("acme", "g"), ("bolt", "g"), ("bolt", "h"), ("", "i")):
        cli.text("enqueue", "mail", "1", "--tenant", tenant, "--group", group)

    lines = [line.split() for line in cli.text("groups", "mail").splitlines()]
    assert lines[1:] == [["g", "2", "0"], ["h", "1", "0"], ["i", "1", "0"]]
    found = cli.json("groups", "mail", "--after", "g")
    assert [(one["group"], one["unfinished"]) for one in found] == [("h", 1), ("i", 1)]
    lines = [line.split() for line in cli.text("groups", "mail", "--tenant", "").splitlines()]
    assert [line[0] for line in lines] == ["group", "i"]


# Jobs -------------------------------------------------------------------------------------------


def test_jobs_are_listed_by_what_they_have_in_common(cli: Terminal) -> None:
    for n, args in enumerate(["--tenant acme", "--group g", "--kind k", "--delay 5m"]):
        cli.text("enqueue", "mail", "1", "--id", f"{n}", *args.split())
    cli.text("enqueue", "web", "1", "--id", "web")

    def found(*args: str) -> list[str]:
        return [job["id"] for job in cli.json("jobs", *args)["jobs"]]

    assert found("--tenant", "acme") == ["0"]
    assert found("--group", "g") == ["1"]
    assert found("--kind", "k") == ["2"]
    assert found("--queue", "web") == ["web"]
    assert found("--state", "dead", "--state", "done") == []
    assert found() == ["web", "3", "2", "1", "0"]


def test_a_long_list_goes_on_at_its_cursor(cli: Terminal) -> None:
    for n in range(3):
        cli.text("enqueue", "mail", "1", "--id", f"{n}")

    first = cli.json("jobs", "--limit", "2")
    rest = cli.json("jobs", "--limit", "2", "--cursor", first["cursor"])

    assert [job["id"] for job in first["jobs"] + rest["jobs"]] == ["2", "1", "0"]
    assert first["jobs"][0].keys() == JOB_FIELDS
    assert rest["cursor"] is None
    assert f"continue with --cursor {first['cursor']}" in cli.text("jobs", "--limit", "2")


def test_a_wrong_cursor_is_an_error(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1")

    assert cli.error("jobs", "--cursor", "x").startswith("cursor: ")


def test_a_list_says_of_each_state_what_matters(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("q", id="done")
        queue.ack(queue.claim("q")[0])
        queue.enqueue("q", id="leased", priority=-1)
        queue.claim("q", lease=60)
        queue.enqueue("q", id="ready")
        queue.enqueue("q", id="late", delay=7200)
        queue.enqueue("q", id="child", after=["ready", "late"])
    cli.clock.advance(3)

    rows = [line.split(maxsplit=4) for line in cli.text("jobs").splitlines()]

    assert [[row[0], row[4]] for row in rows[1:]] == [
        ["child", "waiting for 2"],
        ["late", "pending, in 2h"],
        ["ready", "pending"],
        ["leased", "leased, ends in 57s"],
        ["done", "done 3s ago"],
    ]
    cli.clock.advance(60)
    assert "leased, over 3s ago" in cli.text("jobs", "--state", "leased")


def test_dead_jobs_are_listed_with_their_last_error(cli: Terminal) -> None:
    with cli.open() as queue:
        for name in ("a", "b"):
            queue.enqueue("mail", id=name, tenant="acme")
            error = f"{name} broke" if name == "a" else KeyError("broke")
            queue.fail(queue.claim("mail")[0], error, fatal=True)
            cli.clock.advance(60)

    assert cli.text("dead").splitlines() == [
        "b  mail  acme  1/3  60s ago",
        "    KeyError: 'broke'",
        "a  mail  acme  1/3  2m ago",
        "    a broke",
    ]
    page = cli.json("dead", "--tenant", "acme", "--limit", "1")
    assert [job["errors"][0]["message"] for job in page["jobs"]] == ["'broke'"]


def test_show_prints_every_field_that_is_set(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", 1, id="parent")
        queue.enqueue(
            "mail",
            {"to": "ann"},
            id="a",
            tenant="acme",
            after=["parent"],
            timeout=90,
            backoff=exponential(5, factor=3, jitter=0.1),
            unique_key="k",
            expires_in=86_400,
        )
    text = cli.text("show", "a")
    fields = dict(line.split(maxsplit=1) for line in text.partition("payload")[0].splitlines())

    assert fields == {
        "id": "a",
        "queue": "mail",
        "state": "waiting",
        "priority": "0",
        "attempts": "0 of 3",
        "tenant": "acme",
        "token": "0",
        "unique_key": "k",
        "timeout_ms": "90s",
        "backoff": "exponential, 5s times 3, at most 1d, give or take 10%",
        "after": "parent",
        "if_parent_fails": "wait",
        "run_at": "2023-11-14 22:13:20.000 UTC (now)",
        "created_at": "2023-11-14 22:13:20.000 UTC (now)",
        "updated_at": "2023-11-14 22:13:20.000 UTC (now)",
        "expires_at": "2023-11-15 22:13:20.000 UTC (in 24h)",
    }
    assert text.endswith('payload\n  {\n    "to": "ann"\n  }\n')


def test_show_prints_the_result_and_the_failures_with_their_tracebacks(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", 1, id="a")
        with pytest.raises(OSError, match="no route") as caught:
            raise OSError("no route")
        queue.fail(queue.claim("mail", worker="w1")[0], caught.value, retry_in=0)
        queue.fail(queue.claim("mail", worker="w2")[0], "plain words", retry_in=0)
        queue.ack(queue.claim("mail")[0], {"sent": True})

    text = cli.text("show", "a")

    assert 'result\n  {\n    "sent": true\n  }\n' in text
    assert "attempt 1 failed 2023-11-14 22:13:20.000 UTC (now) on w1\n  Traceback (most" in text
    assert text.count("OSError: no route") == 1
    assert text.endswith("(now) on w2\n  plain words\n")


def test_show_as_json_is_the_job(cli: Terminal) -> None:
    cli.text("enqueue", "mail", '{"big": 9007199254740993, "text": "é\\n"}', "--id", "a")

    job = cli.json("show", "a")

    assert job.keys() == JOB_FIELDS
    assert job["payload"] == {"big": 9007199254740993, "text": "é\n"}


def test_a_job_that_does_not_exist_cannot_be_shown(cli: Terminal) -> None:
    assert cli.error("show", "nope") == "there is no job 'nope'"


def test_a_job_cannot_give_orders_to_the_terminal(cli: Terminal) -> None:
    with cli.open() as queue:
        new = NewJob(
            queue=HOSTILE,
            payload={HOSTILE: HOSTILE},
            id=HOSTILE,
            tenant=HOSTILE,
            group=HOSTILE,
            kind=HOSTILE,
        )
        queue.enqueue_many([new])
        (job,) = queue.claim(HOSTILE, worker=HOSTILE)
        queue.fail(job, HOSTILE, retry_in=0)
        (job,) = queue.claim(HOSTILE)
        queue.fail(job, HOSTILE, fatal=True)
        queue.pause(HOSTILE, tenant=HOSTILE)

    for args in (
        ["stats"], ["jobs"], ["dead"], ["show", HOSTILE], ["limits"], ["tenants", HOSTILE],
        ["groups", HOSTILE, "--tenant", HOSTILE], ["replay", HOSTILE], ["claim", HOSTILE],
        ["pause", HOSTILE], ["cancel", HOSTILE], ["cancel", HOSTILE],
    ):  # fmt: skip
        text = cli.text(*args)
        assert "\x1b" not in text
        assert "\u202e" not in text
        if args[0] not in ("claim", "cancel", "replay"):
            assert "[red]" in text
    assert "\x1b" not in cli.error("show", HOSTILE + "x")
    assert cli.json("show", HOSTILE)["id"] == HOSTILE
    assert not re.search(OBEYED, cli.text("show", HOSTILE, "--json"))


def test_json_has_no_colours_and_no_wrapped_lines_on_any_terminal(cli: Terminal) -> None:
    cli.text("enqueue", "mail", json.dumps("word " * 1000))
    env = {"FORCE_COLOR": "1", "COLUMNS": "20", "TTY_COMPATIBLE": "1"}

    result = cli.run("jobs", "--json", env=env)

    assert "\x1b" not in result.stdout
    assert len(json.loads(result.stdout)["jobs"]) == 1
    assert result.stdout.count("\n") == 1
