"""Run now: delayed jobs, and those that wait for their next attempt, become ready at once."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import InvalidInput, NewJob, Queue, State
from tenure.testing import ManualClock
from tests.conformance.moves import BIG, drain, ids, make_cancelled, make_dead, make_done, take
from tests.conformance.state import nothing_changes


def test_a_delayed_job_runs_now(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", BIG, id="a", delay=3600, unique_key="k", expires_in=7200)
    expires_at = queue.get("a").expires_at
    clock.advance(1)
    assert queue.run_now("a") == 1
    job = queue.get("a")
    assert (job.state, job.run_at, job.expires_at) == (State.PENDING, clock.now_ms(), expires_at)
    assert queue.stats("q").ready == 1
    assert queue.stats("q").delayed == 0
    again = take(queue)
    assert (again.id, again.payload, again.attempts) == ("a", BIG, 1)
    queue.ack(again)
    queue.enqueue("q", id="b", unique_key="k")  # the key was held, and is free now


def test_a_job_that_waits_for_its_next_attempt_keeps_its_attempts(queue: Queue) -> None:
    queue.enqueue("q", id="a", max_attempts=3)
    queue.fail(take(queue), "no luck", retry_in=3600)
    assert queue.claim("q") == []
    assert queue.run_now("a") == 1
    job = take(queue)
    assert (job.attempts, [one.message for one in job.errors]) == (2, ["no luck"])


def test_a_job_that_runs_now_takes_its_place_in_line(queue: Queue) -> None:
    queue.enqueue("q", id="old", delay=60)
    queue.enqueue("q", id="new")
    queue.enqueue("q", id="urgent", priority=-1, delay=60)
    assert queue.run_now(["urgent", "old", "old"]) == 2
    assert drain(queue) == ["urgent", "old", "new"]


@pytest.mark.parametrize("kind", ["ready", "waiting", "leased", "done", "dead", "cancelled"])
def test_only_jobs_that_are_not_due_are_changed(queue: Queue, kind: str) -> None:
    queue.enqueue("parent", id="parent")
    if kind == "ready":
        queue.enqueue("q", id="a")
    elif kind == "waiting":
        queue.enqueue("q", id="a", after=["parent"], delay=60)
    elif kind == "leased":
        queue.enqueue("q", id="a")
        take(queue)
    else:
        {"done": make_done, "dead": make_dead, "cancelled": make_cancelled}[kind](queue, "a")
    with nothing_changes(queue):
        assert queue.run_now("a") == 0


def test_a_job_that_is_due_needs_no_hurry(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", delay=5)
    clock.advance(5)
    assert queue.run_now("a") == 0
    assert take(queue).id == "a"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"queue": "q"}, "abc"),
        ({"tenant": "acme"}, "bd"),
        ({"queue": "q", "group": "g"}, "c"),
        ({"queue": "q", "kind": "x"}, "a"),
    ],
)
def test_all_that_match_run_now(queue: Queue, where: dict[str, Any], expected: str) -> None:
    queue.enqueue("q", id="ready")
    queue.enqueue("q", id="a", kind="x", delay=60)
    queue.enqueue("q", id="b", tenant="acme", delay=60)
    queue.enqueue("q", id="c", group="g", delay=60)
    queue.enqueue("r", id="d", tenant="acme", delay=60)
    assert queue.run_now(**where) == len(expected)
    hurried = set(ids(queue.claim(["q", "r"], limit=10))) - {"ready"}
    assert hurried == set(expected)


def test_a_hurried_job_still_obeys_limits_and_pauses(queue: Queue) -> None:
    queue.enqueue_many(NewJob(queue="q", id=f"{n}", tenant="acme", delay=60) for n in range(3))
    queue.limits.set("q", tenant="acme", concurrency=1)
    assert queue.run_now(tenant="acme") == 3
    assert len(queue.claim("q", limit=5)) == 1
    queue.pause("q")
    assert queue.claim("q", limit=5) == []


def test_run_now_is_not_done_to_all_jobs_by_a_slip(queue: Queue) -> None:
    queue.enqueue("q", id="a", delay=60)
    with nothing_changes(queue), pytest.raises(InvalidInput, match="say which jobs"):
        queue.run_now()


def test_a_history_says_that_a_job_was_run_now(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", delay=3600)
    clock.advance(1)
    queue.run_now("a")
    assert [(one.what, one.at) for one in queue.history("a")][1:] == [("run_now", clock.now_ms())]
