"""Changing one job, and its history, from the command line."""

from __future__ import annotations

import json

from tests.unit.cli.terminal import Terminal


def dead(cli: Terminal, id: str) -> None:
    with cli.open() as store:
        store.enqueue("mail", {"n": 1}, id=id)
        (job,) = store.claim("mail")
        store.fail(job, "boom", fatal=True)


def test_a_waiting_job_is_changed(cli: Terminal) -> None:
    with cli.open() as store:
        store.enqueue("mail", {"n": 1}, id="a", delay=60)
    text = cli.text("update", "a", "--priority", "-5", "--in", "2h", "--payload", '{"n": 2}')
    assert text == "Updated a.\n"
    with cli.open() as store:
        job = store.get("a")
    assert (job.priority, job.payload) == (-5, {"n": 2})
    changed = json.loads(cli.text("update", "a", "--at", "2030-01-01T00:00:00+00:00", "--json"))
    assert changed["run_at"] == 1_893_456_000_000


def test_a_job_that_is_over_is_not_changed_but_replayed_with_changes(cli: Terminal) -> None:
    dead(cli, "a")
    assert "only jobs that wait" in cli.error("update", "a", "--priority", "1")
    found = json.loads(cli.text("replay", "a", "--payload", '{"n": 2}', "--json"))
    with cli.open() as store:
        job = store.get(found["id"])
    assert (job.replay_of, job.payload) == ("a", {"n": 2})


def test_changes_are_for_one_job(cli: Terminal) -> None:
    dead(cli, "a")
    assert "give its id" in cli.usage("replay", "--queue", "mail", "--priority", "1")


def test_the_history_of_a_job_is_listed(cli: Terminal) -> None:
    dead(cli, "a")
    cli.text("replay", "a")
    text = cli.text("history", "a")
    assert [word for word in ("created", "claimed", "failed", "replayed") if word not in text] == []
    moves = json.loads(cli.text("history", "a", "--json"))
    assert moves[0]["what"] == "created"


def test_a_dry_run_counts_and_shows_some_and_changes_nothing(cli: Terminal) -> None:
    dead(cli, "a")
    with cli.open() as store:
        store.enqueue("mail", id="b", kind="k")
        store.enqueue("mail", id="c", delay=60)
    assert "1 job would be changed" in cli.text("replay", "--queue", "mail", "--dry-run")
    assert "2 jobs would be changed" in cli.text("cancel", "--queue", "mail", "--dry-run")
    assert "1 job would be changed" in cli.text("run-now", "--kind", "k", "--dry-run")
    assert "0 jobs would be changed" in cli.text("purge", "--older-than", "7d", "--dry-run")
    found = json.loads(cli.text("delete", "--queue", "mail", "--dry-run", "--json"))
    assert (found["count"], found["exact"]) == (3, True)
    assert sorted(one["id"] for one in found["sample"]) == ["a", "b", "c"]
    with cli.open() as store:
        assert sorted(job.id for job in store.jobs().jobs) == ["a", "b", "c"]
    assert "give no ids" in cli.usage("cancel", "a", "--dry-run")
