"""Changing many jobs, flow control and upkeep, from the command line."""

from __future__ import annotations

import json

import msgspec
import pytest

from tenure import Queue, State
from tenure.features.steps.data import Checkpoint, Suspend
from tenure.queue import store_of
from tests.support.sizes import let
from tests.unit.cli.terminal import Terminal


def add(cli: Terminal, *ids: str, queue: str = "mail", tenant: str = "") -> None:
    with cli.open() as store:
        for id in ids:
            store.enqueue(queue, id=id, tenant=tenant)


def kill(cli: Terminal, *ids: str, tenant: str = "") -> None:
    """Dead jobs."""
    add(cli, *ids, tenant=tenant)
    with cli.open() as store:
        for job in store.claim("mail", limit=len(ids)):
            store.fail(job, "boom", fatal=True)


def finish(cli: Terminal, *ids: str) -> None:
    """Done jobs."""
    add(cli, *ids)
    with cli.open() as store:
        store.ack_many(store.claim("mail", limit=len(ids)))


def states(cli: Terminal) -> dict[str, str]:
    with cli.open() as store:
        return {job.id: job.state.value for job in store.jobs().jobs}


# By id ------------------------------------------------------------------------------------------


def test_jobs_are_cancelled_by_id(cli: Terminal) -> None:
    add(cli, "a", "b", "c")

    assert cli.text("cancel", "a", "b") == "2 jobs cancelled.\n"
    assert states(cli) == {"a": "cancelled", "b": "cancelled", "c": "pending"}


def test_jobs_are_replayed_by_id(cli: Terminal) -> None:
    kill(cli, "a", "b")

    assert cli.json("replay", "a") == {"replayed": 1, "unchanged": [], "failed": 0}
    assert states(cli) == {"a": "pending", "b": "dead"}


def test_jobs_are_deleted_by_id_without_a_question(cli: Terminal) -> None:
    add(cli, "a", "b")

    result = cli.run("delete", "a", interactive=True)

    assert (result.exit_code, result.stdout) == (0, "1 job deleted.\n")
    assert states(cli) == {"b": "pending"}


def test_a_job_in_the_wrong_state_is_named(cli: Terminal) -> None:
    finish(cli, "a")

    assert cli.json("cancel", "a") == {"cancelled": 0, "unchanged": ["a"], "failed": 0}
    assert "because of their state: a." in cli.text("replay", "a")


def test_an_unknown_id_is_named_and_the_others_are_changed(cli: Terminal) -> None:
    add(cli, "a", "b")

    result = cli.run("cancel", "a", "nope", "b")

    assert (result.exit_code, result.stdout) == (1, "2 jobs cancelled.\n")
    assert result.stderr == "error: there is no job 'nope'\n"


def test_an_unknown_id_is_named_as_json(cli: Terminal) -> None:
    result = cli.run("delete", "nope", "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"deleted": 0, "unchanged": [], "failed": 1}
    assert json.loads(result.stderr)["error"]["code"] == "job_not_found"


def test_a_job_whose_key_is_held_cannot_be_replayed(cli: Terminal) -> None:
    with cli.open() as store:
        store.enqueue("mail", id="a", unique_key="k")
        store.cancel("a")
        store.enqueue("mail", id="b", unique_key="k")

    assert "unique_key 'k' is held" in cli.run("replay", "a").stderr


# By filter --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["cancel", "replay", "delete"])
def test_without_ids_and_filters_nothing_is_changed(cli: Terminal, command: str) -> None:
    add(cli, "a")

    said = cli.usage(command)

    assert "Say which jobs" in said
    assert "--queue" in said
    assert states(cli) == {"a": "pending"}


@pytest.mark.parametrize("command", ["cancel", "replay", "delete"])
def test_ids_and_filters_do_not_go_together(cli: Terminal, command: str) -> None:
    assert "not both" in cli.usage(command, "a", "--queue", "mail")


def test_jobs_are_cancelled_by_filter(cli: Terminal) -> None:
    add(cli, "a", "b", tenant="acme")
    add(cli, "c", tenant="")

    assert cli.json("cancel", "--tenant", "acme") == {
        "cancelled": 2,
        "unchanged": [],
        "failed": 0,
    }
    assert cli.json("cancel", "--tenant", "")["cancelled"] == 1


def test_dead_jobs_are_replayed_by_filter(cli: Terminal) -> None:
    kill(cli, "a", "b")
    add(cli, "c")
    cli.text("cancel", "c")

    assert cli.text("replay", "--queue", "mail") == "2 jobs replayed.\n"
    assert cli.json("replay", "--state", "cancelled")["replayed"] == 1
    assert set(states(cli).values()) == {"pending"}


def test_a_filter_on_an_unknown_queue_is_an_error(cli: Terminal) -> None:
    assert cli.error("cancel", "--queue", "nope") == "there is no queue 'nope'"


@pytest.mark.parametrize(
    ("args", "question"),
    [
        (
            ["delete", "--queue", "mail", "--state", "done"],
            "Permanently delete all done jobs of queue 'mail'?",
        ),
        (["delete", "--tenant", ""], "Permanently delete all jobs of tenant ''?"),
        (
            ["purge", "--older-than", "7d"],
            "Permanently delete all done and cancelled jobs of every queue that finished over 7d "
            "ago?",
        ),
    ],
)
def test_a_person_is_asked_before_many_jobs_are_deleted(
    cli: Terminal, args: list[str], question: str
) -> None:
    finish(cli, "a")
    cli.clock.advance(8 * 86_400)

    refused = cli.run(*args, interactive=True, input="n\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert question in refused.stderr
    assert "Nothing was deleted." in refused.stderr
    assert states(cli) == {"a": "done"}

    agreed = cli.run(*args, interactive=True, input="y\n")
    assert (agreed.exit_code, states(cli)) == (0, {})


def test_a_person_who_says_yes_beforehand_is_not_asked(cli: Terminal) -> None:
    finish(cli, "a")

    result = cli.run("delete", "--queue", "mail", "--yes", "--json", interactive=True)

    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"deleted": 1, "unchanged": [], "failed": 0}


def test_a_script_is_not_asked(cli: Terminal) -> None:
    finish(cli, "a")

    assert cli.json("delete", "--queue", "mail")["deleted"] == 1


def test_purge_removes_what_ended_long_ago(cli: Terminal) -> None:
    finish(cli, "old")
    kill(cli, "dead")
    cli.clock.advance(3600)
    finish(cli, "new")
    cli.clock.advance(1)

    assert cli.text("purge", "--older-than", "1h") == "1 job purged.\n"
    assert states(cli) == {"dead": "dead", "new": "done"}
    purged = cli.json("purge", "--older-than", "0s", "--state", "dead", "--queue", "mail")
    assert purged["purged"] == 1


def test_purge_needs_an_age_and_a_final_state(cli: Terminal) -> None:
    assert "--older-than" in cli.usage("purge")
    assert "--state" in cli.usage("purge", "--older-than", "1d", "--state", "pending")


# Flow control -----------------------------------------------------------------------------------


def test_a_paused_queue_gives_nothing_until_it_is_resumed(cli: Terminal) -> None:
    add(cli, "a")

    assert cli.text("pause", "mail") == "Paused: queue 'mail'.\n"
    assert cli.json("claim", "mail") == []
    assert cli.json("resume", "mail") == {
        "queue": "mail",
        "tenant": None,
        "group": None,
        "paused": False,
    }
    assert len(cli.json("claim", "mail")) == 1


def test_a_tenant_and_a_group_can_be_paused(cli: Terminal) -> None:
    add(cli, "a", tenant="acme")

    assert cli.text("pause", "mail", "--tenant", "acme") == (
        "Paused: queue 'mail', tenant 'acme'.\n"
    )
    assert cli.json("pause", "mail", "--tenant", "acme", "--group", "g")["group"] == "g"
    assert cli.json("claim", "mail") == []
    assert [one["paused"] for one in cli.json("limits", "mail")] == [True, True]


def test_a_queue_that_does_not_exist_cannot_be_resumed(cli: Terminal) -> None:
    assert cli.error("resume", "nope") == "there is no queue 'nope'"


def test_a_limit_is_set_shown_and_cleared(cli: Terminal) -> None:
    limit = cli.json(
        "limit", "mail", "--create", "--concurrency", "50", "--rate", "100", "--per", "1m"
    )
    assert limit == {
        "queue": "mail",
        "tenant": None,
        "group": None,
        "concurrency": 50,
        "rate": 100,
        "per_ms": 60_000,
        "weight": None,
        "paused": False,
    }
    assert cli.json("limits") == [limit]
    assert cli.text("limits").splitlines()[1].split() == ["mail", "50", "100", "per", "1m"]

    assert cli.text("limit", "mail", "--clear") == "No limit: queue 'mail'.\n"
    assert cli.json("limits") == []


def test_a_tenant_gets_a_weight_and_a_group_a_bound(cli: Terminal) -> None:
    assert cli.json("limit", "mail", "--create", "--tenant", "acme", "--weight", "3")["weight"] == 3
    limit = cli.json("limit", "mail", "--group", "g", "--concurrency", "2")
    assert (limit["tenant"], limit["group"], limit["concurrency"]) == ("*", "g", 2)


@pytest.mark.parametrize(
    "args", [[], ["--clear", "--weight", "1"], ["--rate", "5"], ["--per", "5s"], ["--rate", "0"]]
)
def test_a_limit_that_makes_no_sense_is_wrong_usage(cli: Terminal, args: list[str]) -> None:
    cli.usage("limit", "mail", *args)
    assert cli.json("limits") == []


def test_a_limit_that_cannot_be_is_an_error(cli: Terminal) -> None:
    assert "a weight applies to a tenant" in cli.error("limit", "mail", "--create", "--weight", "2")


# Upkeep -----------------------------------------------------------------------------------------


def test_maintain_goes_on_until_nothing_is_left(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_of_a_pass_of_maintenance=2)
    with cli.open() as store:
        for n in range(7):
            store.enqueue("mail", id=f"{n}", delay=60)
        store.enqueue("web", id="lost")
        store.claim("web", lease=60)
    cli.clock.advance(61)

    text = cli.text("maintain")

    assert text == "7 due, 1 lease expired, 0 jobs expired, 0 slots expired, 0 removed.\n"
    assert cli.json("maintain") == {
        "promoted": 0,
        "leases": 0,
        "expired": 0,
        "slots": 0,
        "purged": 0,
    }
    assert cli.get("lost").state == State.PENDING


def test_maintain_keeps_to_the_retention_of_the_environment(cli: Terminal) -> None:
    finish(cli, "a")
    cli.clock.advance(61)

    result = cli.run("maintain", "--json", env={"TENURE_KEEP_DONE": "60"})

    assert json.loads(result.stdout)["purged"] == 1


def test_reconcile_finds_every_counter_right(cli: Terminal) -> None:
    add(cli, "a", tenant="acme")

    assert cli.text("reconcile", "mail") == "All counters were correct.\n"
    assert cli.json("reconcile", "mail", "--tenant", "acme") == {"corrected": {}}


def test_reconcile_says_what_was_wrong(cli: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queue, "reconcile", lambda *args, **more: {"ready": -2, "done": 1000})

    assert cli.text("reconcile", "mail") == "Corrected: ready by -2, done by +1,000.\n"
    assert cli.json("reconcile", "mail") == {"corrected": {"ready": -2, "done": 1000}}


# Demonstration ----------------------------------------------------------------------------------


def test_the_demonstration_ends_by_itself_and_leaves_one_dead_job(cli: Terminal) -> None:
    began = cli.clock.monotonic()
    path = cli.folder / "demo file.db"

    text = cli.text("demo", "--path", str(path))

    assert cli.clock.monotonic() - began < 5
    assert text.count("failed, will be tried again") == 5
    assert text.count("attempt 3  dead\n") == 1
    assert f"TENURE_URL=sqlite:///{cli.folder}/demo%20file.db" in text
    cli.url = f"sqlite:///{cli.folder}/demo%20file.db"
    assert cli.json("stats")["done"] == 14
    (dead,) = cli.json("dead")["jobs"]
    assert dead["tenant"] == "cask"


def test_the_demonstration_shows_a_live_table_on_a_terminal(cli: Terminal) -> None:
    env = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}

    result = cli.run("demo", "--path", str(cli.folder / "demo.db"), env=env)

    assert result.exit_code == 0
    assert result.stdout.count("tenant") > 20, "drawn again with each attempt"
    assert "Try next:" in result.stdout


def test_the_demonstration_makes_a_file_of_its_own(
    cli: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(cli.folder))

    answer = cli.json("demo")

    assert answer["url"].startswith(f"sqlite:///{cli.folder}/tenure-demo-")
    assert (answer["stats"]["done"], answer["stats"]["dead"]) == (14, 1)


def test_steps_are_listed_and_a_signal_wakes_the_job(cli: Terminal) -> None:
    with cli.open() as queue:
        queue.enqueue("mail", id="order-1")
        (job,) = queue.claim("mail")
        store_of(queue).do(
            [
                Checkpoint(
                    job.id, job.token, "charge", result=msgspec.Raw(b'{"paid":3}'), took_ms=9
                ),
                Checkpoint(job.id, job.token, "reserve", "sku-7"),
                Suspend(job.id, job.token, "approval", kind="wait"),
            ]
        )
    assert cli.text("steps", "order-1").splitlines() == [
        "#  step             kind  when  took  result",
        '1  charge           step  now   9ms   {"paid":3}',
        "2  reserve (sku-7)  step  now         null",
        "3  approval         wait  now         until there is a signal",
    ]
    assert "tenure signal order-1 approval '{}'" in cli.text("why", "order-1")
    assert cli.text("signal", "order-1", "approval", '{"by": "ann"}') == (
        "Sent 'approval' to order-1.\n"
    )
    again = cli.text("signal", "order-1", "approval")
    assert again == "Nothing was sent: job order-1 is pending, or has such a signal already.\n"
    last = cli.text("steps", "order-1").splitlines()[-1]
    assert last.startswith("signal 'approval'")
    assert last.endswith(', now: {"by":"ann"}')
    assert cli.json("steps", "order-1")["steps"][0]["result"] == {"paid": 3}
    with cli.open() as queue:
        queue.fail(queue.claim("mail")[0], "boom", fatal=True)
    assert cli.text("replay-from", "order-1", "reserve", "--key", "sku-7") == (
        "Replayed order-1 from 'reserve'.\n"
    )
    assert [one["name"] for one in cli.json("steps", "order-1")["steps"]] == ["charge"]
