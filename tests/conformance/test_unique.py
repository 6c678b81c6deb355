"""Unique keys: of the unfinished jobs of a queue and tenant, at most one has a key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure import Duplicate, NewJob, Queue, State
from tenure.testing import ManualClock
from tests.conformance.moves import ids, make_cancelled, make_dead, make_done, state_of, take
from tests.conformance.state import all_jobs, nothing_changes


def is_held(queue: Queue, by: str = "a") -> bool:
    """Whether the key `k` is held by this job."""
    job = queue.enqueue("q", unique_key="k", delay=60, if_exists="skip")
    if job.id == by:
        return True
    queue.delete(job.id)
    return False


def test_a_key_that_is_held_is_refused(queue: Queue) -> None:
    queue.enqueue("q", id="a", unique_key="k")
    with nothing_changes(queue), pytest.raises(Duplicate) as caught:
        queue.enqueue("q", id="b", unique_key="k")
    assert (caught.value.field, caught.value.value) == ("unique_key", "k")
    assert caught.value.job_id == "a"


def test_a_key_is_held_until_the_job_is_done(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("parents", id="parent")
    queue.enqueue("q", id="a", unique_key="k", after=["parent"], delay=1)
    assert is_held(queue)  # waiting
    queue.ack(take(queue, "parents"))
    assert is_held(queue)  # delayed
    clock.advance(1)
    queue.maintain()
    assert is_held(queue)  # ready
    job = take(queue)
    assert is_held(queue)  # leased
    queue.fail(job, retry_in=1)
    assert is_held(queue)  # to be tried again
    clock.advance(1)
    queue.release(take(queue))
    assert is_held(queue)
    job = take(queue, lease=1)
    clock.advance(1)
    queue.maintain()
    assert is_held(queue)  # the lease ran out
    queue.ack(take(queue))
    assert not is_held(queue)


@pytest.mark.parametrize("make", [make_done, make_dead, make_cancelled])
def test_the_key_of_a_job_that_ended_is_free(queue: Queue, make: Callable[..., object]) -> None:
    make(queue, "a", unique_key="k")
    assert not is_held(queue)


def test_the_key_of_a_deleted_job_is_free(queue: Queue) -> None:
    queue.enqueue("q", id="a", unique_key="k")
    queue.delete("a")
    assert not is_held(queue)


def test_deleting_a_job_that_ended_frees_no_key_of_another(queue: Queue) -> None:
    make_done(queue, "old", unique_key="k")
    queue.enqueue("q", id="a", unique_key="k")
    queue.delete("old")
    assert is_held(queue)


def test_the_key_of_a_job_that_died_of_its_leases_is_free(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", unique_key="k", max_attempts=1)
    take(queue, lease=1)
    clock.advance(1)
    queue.maintain()
    assert not is_held(queue)


def test_the_key_of_a_job_cancelled_with_its_parent_is_free(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="a", unique_key="k", after=["parent"], if_parent_fails="cancel")
    queue.cancel("parent")
    assert not is_held(queue)


def test_a_key_is_of_a_queue_and_tenant(queue: Queue) -> None:
    for name in ("q", "r"):
        for tenant in ("", "acme"):
            queue.enqueue(name, tenant=tenant, unique_key="k")
    assert len(all_jobs(queue)) == 4
    with pytest.raises(Duplicate):
        queue.enqueue("r", tenant="acme", unique_key="k")


def test_a_key_is_not_of_a_group_or_kind(queue: Queue) -> None:
    queue.enqueue("q", group="g", kind="x", unique_key="k")
    with nothing_changes(queue), pytest.raises(Duplicate):
        queue.enqueue("q", group="h", kind="y", unique_key="k")


def test_jobs_without_a_key_are_many(queue: Queue) -> None:
    assert len({queue.enqueue("q").id for _ in range(3)}) == 3


def test_two_jobs_of_a_call_cannot_share_a_key(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(Duplicate) as caught:
        queue.enqueue_many(NewJob(queue="q", id=one, unique_key="k") for one in "ab")
    assert caught.value.job_id == "a"


def test_skip_answers_with_the_holder_of_the_key(queue: Queue) -> None:
    queue.enqueue("q", "first", id="a", unique_key="k")
    with nothing_changes(queue):
        job = queue.enqueue("q", "second", unique_key="k", if_exists="skip")
    assert (job.id, job.payload) == ("a", "first")


def test_skip_passes_over_those_whose_key_is_held(queue: Queue) -> None:
    queue.enqueue("q", id="a", unique_key="k")
    jobs = [
        NewJob(queue="q", id="b", unique_key="k"),
        NewJob(queue="q", id="c", unique_key="l"),
        NewJob(queue="q", id="d", unique_key="l"),
    ]
    assert queue.enqueue_many(jobs, if_exists="skip") == ["a", "c", "c"]
    assert ids(all_jobs(queue)) == ["c", "a"]


# Replay -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_dead, make_cancelled])
def test_a_replayed_job_holds_its_key_again(queue: Queue, make: Callable[..., object]) -> None:
    make(queue, "a", unique_key="k")
    assert queue.replay("a") == 1
    assert is_held(queue)
    queue.ack(take(queue))
    assert not is_held(queue)


def test_a_job_whose_key_another_holds_is_not_replayed(queue: Queue) -> None:
    make_dead(queue, "old", unique_key="k")
    queue.enqueue("q", id="a", unique_key="k")
    with nothing_changes(queue), pytest.raises(Duplicate) as caught:
        queue.replay("old")
    assert (caught.value.field, caught.value.value) == ("unique_key", "k")


def test_a_replay_that_is_refused_names_the_holder(queue: Queue) -> None:
    make_dead(queue, "old", unique_key="k")
    queue.enqueue("q", id="a", unique_key="k")
    with pytest.raises(Duplicate) as caught:
        queue.replay("old")
    assert caught.value.job_id == "a"


def test_of_many_those_are_replayed_whose_key_is_free(queue: Queue) -> None:
    make_dead(queue, "old", unique_key="k")
    make_dead(queue, "other", unique_key="l")
    queue.enqueue("q", id="a", unique_key="k")
    assert queue.replay(["old", "other"]) == 1
    assert state_of(queue, "old") is State.DEAD
    assert state_of(queue, "other") is State.PENDING


def test_of_two_dead_jobs_with_one_key_the_first_is_replayed(queue: Queue) -> None:
    make_dead(queue, "old", unique_key="k")
    make_dead(queue, "older", unique_key="k")
    assert queue.replay(["old", "older"]) == 1
    assert is_held(queue, by="old")


def test_a_key_refuses_only_a_replay_that_could_be(queue: Queue) -> None:
    make_done(queue, "old", unique_key="k")
    queue.enqueue("q", id="a", unique_key="k")
    with nothing_changes(queue):
        assert queue.replay("old") == 0
        assert queue.replay("a") == 0


def test_a_key_of_a_job_whose_id_is_made_up_is_held(queue: Queue) -> None:
    first = queue.enqueue("q", unique_key="k")
    with nothing_changes(queue), pytest.raises(Duplicate) as caught:
        queue.enqueue("q", unique_key="k")
    assert caught.value.job_id == first.id
