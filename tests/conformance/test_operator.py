"""What an operator does: cancel, replay, run now, delete and purge, by id and by filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure import InvalidInput, JobNotFound, NewJob, Queue, QueueNotFound, State
from tenure.features import ACTIONS
from tenure.model.fields import MAX_JOBS_PER_CALL
from tenure.testing import ManualClock
from tests.conformance.moves import (
    BIG,
    drain,
    fill,
    ids,
    make_cancelled,
    make_dead,
    make_done,
    state_of,
    take,
)
from tests.conformance.state import all_jobs, nothing_changes

MANY = 2_500  # more than one step of a call by filter changes

FILTERS: list[tuple[dict[str, str], str]] = [
    ({"queue": "q"}, "abcde"),
    ({"tenant": "acme"}, "bcf"),
    ({"group": "g"}, "cd"),
    ({"kind": "x"}, "ce"),
    ({"queue": "q", "tenant": "acme"}, "bc"),
    ({"queue": "q", "tenant": "", "group": ""}, "ae"),
    ({"queue": "q", "kind": "x", "group": "g"}, "c"),
    ({"queue": "q", "tenant": "nobody"}, ""),
]
by_filter = pytest.mark.parametrize(("where", "expected"), FILTERS, ids=str)


def family(queue: Queue) -> None:
    """Six jobs that differ in where they belong."""
    queue.enqueue("q", id="a")
    queue.enqueue("q", id="b", tenant="acme")
    queue.enqueue("q", id="c", tenant="acme", group="g", kind="x")
    queue.enqueue("q", id="d", group="g")
    queue.enqueue("q", id="e", kind="x")
    queue.enqueue("r", id="f", tenant="acme")


def in_state(queue: Queue, state: State) -> list[str]:
    return sorted(job.id for job in all_jobs(queue) if job.state is state)


# Cancel -----------------------------------------------------------------------------------------


def test_a_cancelled_job_is_not_run(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    clock.advance(1)
    assert queue.cancel("a") == 1
    job = queue.get("a")
    assert (job.state, job.errors) == (State.CANCELLED, ())
    assert job.finished_at == job.updated_at == clock.now_ms()
    assert queue.claim("q") == []


@pytest.mark.parametrize("kind", ["waiting", "delayed", "ready", "leased"])
def test_a_job_is_cancelled_whatever_it_is_at(queue: Queue, kind: str) -> None:
    queue.enqueue("q", id="parent")
    if kind != "waiting":
        queue.ack(take(queue))
    queue.enqueue("q", id="a", after=["parent"], delay=60 if kind == "delayed" else 0)
    if kind == "leased":
        take(queue)
    assert queue.cancel("a") == 1
    assert state_of(queue, "a") is State.CANCELLED


@pytest.mark.parametrize("make", [make_done, make_dead, make_cancelled])
def test_a_job_that_ended_is_not_cancelled(queue: Queue, make: Callable[..., object]) -> None:
    make(queue, "a")
    with nothing_changes(queue):
        assert queue.cancel("a") == 0


def test_a_job_may_be_cancelled_as_a_job(queue: Queue) -> None:
    job = queue.enqueue("q")
    assert queue.cancel(job) == 1


def test_some_are_cancelled_and_those_that_are_not_there_are_passed_over(queue: Queue) -> None:
    family(queue)
    job = queue.get("c")
    assert queue.cancel(["a", job, "nobody", "a"]) == 2
    assert in_state(queue, State.CANCELLED) == ["a", "c"]
    assert queue.cancel([]) == 0


@by_filter
def test_all_that_match_are_cancelled(queue: Queue, where: Any, expected: str) -> None:
    family(queue)
    assert queue.cancel(**where) == len(expected)
    assert in_state(queue, State.CANCELLED) == list(expected)


@pytest.mark.many_jobs
def test_however_many_match_are_cancelled(queue: Queue) -> None:
    fill(queue, MANY)
    queue.claim("q", limit=3)
    assert queue.cancel(queue="q") == MANY
    assert queue.stats().cancelled == MANY


def test_a_waiting_job_is_cancelled_once_with_its_parent(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails="cancel")
    assert queue.cancel(queue="q") == 2


# Replay -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_dead, make_cancelled])
def test_a_replayed_job_begins_anew(
    queue: Queue, clock: ManualClock, make: Callable[..., object]
) -> None:
    make(queue, "a", expires_in=60, max_attempts=1, payload=BIG)
    errors = queue.get("a").errors
    clock.advance(3600)
    assert queue.replay("a") == 1
    job = queue.get("a")
    assert (job.state, job.attempts, job.worker) == (State.PENDING, 0, "")
    assert (job.expires_at, job.finished_at, job.lease_until) == (None, None, None)
    assert job.run_at == job.updated_at == clock.now_ms()
    assert job.errors == errors
    again = take(queue)
    assert (again.attempts, again.payload) == (1, BIG)
    queue.ack(again, "fine")
    assert queue.get("a").result == "fine"


def test_a_replayed_job_has_all_its_attempts(queue: Queue) -> None:
    queue.enqueue("q", id="a", max_attempts=2)
    for _ in range(3):
        queue.fail(take(queue), retry_in=0)
        assert queue.fail(take(queue), retry_in=0) is State.DEAD
        queue.replay("a")
    assert queue.get("a").attempts == 0


def test_a_replayed_job_returns_to_its_place(queue: Queue) -> None:
    make_dead(queue, "old")
    fill(queue, 2)
    queue.replay("old")
    assert drain(queue) == ["old", "0", "1"]


@pytest.mark.parametrize("kind", ["waiting", "pending", "leased", "done"])
def test_only_dead_and_cancelled_jobs_are_replayed(queue: Queue, kind: str) -> None:
    if kind == "done":
        make_done(queue, "a")
    else:
        queue.enqueue("q", id="parent", delay=60)
        queue.enqueue("q", id="a", after=["parent"] if kind == "waiting" else [])
    if kind == "leased":
        take(queue)
    with nothing_changes(queue):
        assert queue.replay("a") == 0


def test_all_that_are_dead_are_replayed(queue: Queue) -> None:
    make_dead(queue, "a")
    make_dead(queue, "b", tenant="acme")
    make_cancelled(queue, "c")
    make_done(queue, "d")
    assert queue.replay() == 2
    assert in_state(queue, State.PENDING) == ["a", "b"]


def test_all_that_were_cancelled_are_replayed_when_asked_for(queue: Queue) -> None:
    make_dead(queue, "a")
    make_cancelled(queue, "b")
    assert queue.replay(queue="q", state="cancelled") == 1
    assert in_state(queue, State.PENDING) == ["b"]


@by_filter
def test_all_that_match_are_replayed(queue: Queue, where: Any, expected: str) -> None:
    family(queue)
    for job in queue.claim(["q", "r"], limit=10):
        queue.fail(job, fatal=True)
    assert queue.replay(**where) == len(expected)
    assert in_state(queue, State.PENDING) == list(expected)


@pytest.mark.many_jobs
def test_however_many_match_are_replayed(queue: Queue) -> None:
    fill(queue, MANY)
    queue.cancel(queue="q")
    assert queue.replay(queue="q", state="cancelled") == MANY
    assert queue.stats().ready == MANY


@pytest.mark.parametrize("state", ["done", "pending", "leased", "waiting", "nonsense"])
def test_a_replay_by_filter_is_of_dead_or_cancelled_jobs(queue: Queue, state: str) -> None:
    queue.enqueue("q")
    with nothing_changes(queue), pytest.raises(InvalidInput, match="state"):
        queue.replay(queue="q", state=state)


# Delete -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["waiting", "delayed", "ready", "leased"])
def test_a_job_is_deleted_whatever_it_is_at(queue: Queue, kind: str) -> None:
    queue.enqueue("q", id="parent")
    if kind != "waiting":
        queue.ack(take(queue))
    queue.enqueue("q", BIG, id="a", after=["parent"], delay=60 if kind == "delayed" else 0)
    if kind == "leased":
        take(queue)
    assert queue.delete("a") == 1
    with pytest.raises(JobNotFound):
        queue.get("a")
    assert ids(all_jobs(queue)) == ["parent"]


@pytest.mark.parametrize("make", [make_done, make_dead, make_cancelled])
def test_a_job_that_ended_may_be_deleted(queue: Queue, make: Callable[..., object]) -> None:
    make(queue, "a")
    assert queue.delete("a") == 1
    assert all_jobs(queue) == []


def test_some_are_deleted_and_those_that_are_not_there_are_passed_over(queue: Queue) -> None:
    family(queue)
    assert queue.delete(["a", queue.get("c"), "nobody", "a"]) == 2
    assert sorted(ids(all_jobs(queue))) == ["b", "d", "e", "f"]


@by_filter
def test_all_that_match_are_deleted(queue: Queue, where: Any, expected: str) -> None:
    family(queue)
    assert queue.delete(**where) == len(expected)
    assert sorted(ids(all_jobs(queue))) == sorted(set("abcdef") - set(expected))


def test_jobs_are_deleted_by_their_state(queue: Queue) -> None:
    make_dead(queue, "dead")
    make_done(queue, "done")
    make_cancelled(queue, "cancelled")
    queue.enqueue("q", id="pending")
    assert queue.delete(state="dead") == 1
    assert queue.delete(queue="q", state=["done", "cancelled"]) == 2
    assert ids(all_jobs(queue)) == ["pending"]


def test_a_job_is_deleted_only_in_the_state_that_was_named(queue: Queue) -> None:
    family(queue)
    queue.cancel("a")
    assert queue.delete("b", state="cancelled") == 0
    assert queue.delete(["a", "b"], state="cancelled") == 1
    assert len(all_jobs(queue)) == 5


@pytest.mark.many_jobs
def test_however_many_match_are_deleted(queue: Queue) -> None:
    fill(queue, MANY, payload="x" * 2_000)
    queue.claim("q", limit=3)
    assert queue.delete(queue="q") == MANY
    assert queue.stats("q").unfinished == 0


def test_nothing_is_deleted_where_nothing_is_named(queue: Queue) -> None:
    family(queue)
    with nothing_changes(queue), pytest.raises(InvalidInput, match="delete"):
        queue.delete()


def test_a_queue_whose_jobs_are_deleted_is_still_known(queue: Queue) -> None:
    queue.enqueue("q", id="a", tenant="acme")
    queue.delete("a")
    assert queue.stats("q").unfinished == 0
    assert queue.tenants("q") == []


# Purge ------------------------------------------------------------------------------------------


def test_jobs_that_ended_long_ago_are_purged(queue: Queue, clock: ManualClock) -> None:
    make_done(queue, "old")
    make_cancelled(queue, "old too")
    clock.advance(10)
    make_done(queue, "young")
    queue.enqueue("q", id="open")
    clock.advance(10)
    assert queue.purge(20) == 0
    assert queue.purge(19.999) == 2
    assert ids(all_jobs(queue)) == ["open", "young"]


def test_the_dead_are_purged_only_when_asked_for(queue: Queue, clock: ManualClock) -> None:
    make_dead(queue, "dead")
    make_done(queue, "done")
    clock.advance(1)
    assert queue.purge(0) == 1
    assert queue.purge(0, state="dead") == 1
    assert all_jobs(queue) == []


def test_a_purge_may_be_of_one_queue(queue: Queue, clock: ManualClock) -> None:
    make_done(queue, "a")
    make_done(queue, "b", "r")
    clock.advance(1)
    assert queue.purge(0, queue="r") == 1
    assert ids(all_jobs(queue)) == ["a"]


@pytest.mark.many_jobs
def test_however_many_are_purged(queue: Queue, clock: ManualClock) -> None:
    fill(queue, MANY)
    queue.cancel(queue="q")
    clock.advance(1)
    assert queue.purge(0) == MANY


@pytest.mark.parametrize("state", ["pending", "leased", "waiting", "nonsense"])
def test_only_jobs_that_ended_are_purged(queue: Queue, clock: ManualClock, state: str) -> None:
    make_done(queue, "a")
    clock.advance(1)
    with nothing_changes(queue), pytest.raises(InvalidInput, match="state"):
        queue.purge(0, state=state)


def test_a_purge_with_one_bad_state_removes_nothing(queue: Queue, clock: ManualClock) -> None:
    make_done(queue, "a")
    clock.advance(1)
    with nothing_changes(queue), pytest.raises(InvalidInput, match="state"):
        queue.purge(0, state=["done", "pending"])


# What is not there ------------------------------------------------------------------------------


@pytest.mark.parametrize("act", sorted(ACTIONS))
def test_a_job_that_does_not_exist_is_an_error(queue: Queue, act: str) -> None:
    family(queue)
    with nothing_changes(queue), pytest.raises(JobNotFound) as caught:
        getattr(queue, act)("nobody")
    assert caught.value.job_id == "nobody"


@pytest.mark.parametrize("act", sorted(ACTIONS))
def test_a_queue_that_does_not_exist_is_an_error(queue: Queue, act: str) -> None:
    family(queue)
    with nothing_changes(queue), pytest.raises(QueueNotFound) as caught:
        getattr(queue, act)(queue="nowhere")
    assert caught.value.queue == "nowhere"


def test_an_unknown_queue_cannot_be_purged(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(QueueNotFound):
        queue.purge(0, queue="nowhere")


@pytest.mark.parametrize("act", sorted(ACTIONS))
def test_one_id_is_not_a_list_of_letters(queue: Queue, act: str) -> None:
    queue.enqueue_many(NewJob(queue="q", id=one) for one in "abc")
    with nothing_changes(queue), pytest.raises(JobNotFound):
        getattr(queue, act)("abc")


@pytest.mark.parametrize("call", sorted(ACTIONS))
def test_jobs_are_named_by_id_or_by_a_filter_not_by_both(queue: Queue, call: str) -> None:
    queue.enqueue("q", id="a")
    with nothing_changes(queue), pytest.raises(InvalidInput, match="not by both"):
        getattr(queue, call)("a", queue="other")


@pytest.mark.parametrize("call", ["cancel", "delete"])
def test_what_cannot_be_taken_back_is_not_done_to_all_jobs_by_a_slip(
    queue: Queue, call: str
) -> None:
    queue.enqueue("q", id="a")
    with nothing_changes(queue), pytest.raises(InvalidInput, match="say which jobs"):
        getattr(queue, call)()


def test_more_jobs_can_be_named_than_one_operation_changes(queue: Queue) -> None:
    ids = [f"{n}" for n in range(MAX_JOBS_PER_CALL + 1)]
    queue.enqueue("q", id=ids[0])
    queue.enqueue("q", id=ids[-1])
    assert queue.cancel(ids) == 2
    assert queue.replay(ids) == 2
    assert queue.delete(ids) == 2
