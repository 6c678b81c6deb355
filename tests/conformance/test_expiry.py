"""Expiry: a job that was not claimed in time is dead."""

from __future__ import annotations

import pytest

from tenure import LeaseLost, Queue, State, fixed
from tenure.model import ops
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import OpenQueue
from tests.conformance.moves import fill, ids, state_of, take


def test_a_job_that_expired_is_not_given_but_dead(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    clock.advance(10)
    assert queue.claim("q") == []
    dead = queue.get("a")
    assert (dead.state, dead.attempts, dead.finished_at) == (State.DEAD, 0, clock.now_ms())
    (failure,) = dead.errors
    assert (failure.message, failure.at) == ("expired before it could run", clock.now_ms())


def test_a_job_is_given_until_it_expires(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    clock.advance(9.999)
    assert take(queue).id == "a"


def test_an_expired_job_holds_no_other_back(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 50, prefix="old", expires_in=10)
    fill(queue, 2)
    clock.advance(10)
    assert ids(queue.claim("q", limit=2)) == ["0", "1"]
    assert queue.stats().dead == 50


def test_a_leased_job_does_not_expire(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    job = take(queue, lease=60)
    clock.advance(30)
    queue.maintain()
    queue.extend(job, 60)
    queue.ack(job, "fine")
    assert queue.get("a").result == "fine"


def test_a_job_that_expired_while_leased_is_not_tried_again_when_the_lease_runs_out(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    take(queue, lease=60)
    clock.advance(60)
    assert queue.claim("q") == []
    assert queue.get("a").error == "the lease ran out"
    assert state_of(queue, "a") is State.DEAD


def test_a_job_that_expired_while_leased_is_not_tried_again_when_it_fails(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a", expires_in=10, backoff=fixed(0))
    job = take(queue, lease=60)
    clock.advance(10)
    queue.fail(job, "boom")
    assert queue.claim("q") == []
    dead = queue.get("a")
    assert dead.state is State.DEAD
    assert [one.message for one in dead.errors] == ["boom", "expired before it could run"]


def test_a_job_that_expired_while_leased_is_not_tried_again_when_it_is_released(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    job = take(queue, lease=60)
    clock.advance(10)
    queue.release(job)
    assert queue.claim("q") == []
    assert state_of(queue, "a") is State.DEAD


@pytest.mark.parametrize("delay", [10, 11, 3600])
def test_a_job_may_expire_before_its_time_comes(
    queue: Queue, clock: ManualClock, delay: float
) -> None:
    queue.enqueue("q", id="a", delay=delay, expires_in=10)
    clock.advance(10)
    assert queue.claim("q") == []
    assert state_of(queue, "a") is State.DEAD


def test_a_waiting_job_may_expire(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], expires_in=10)
    clock.advance(10)
    queue.ack(take(queue))
    assert queue.claim("q") == []
    assert state_of(queue, "child") is State.DEAD


def test_a_job_that_expired_with_its_parent_is_dead_and_not_cancelled(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    queue.enqueue("q", id="b", expires_in=10, after=["a"], if_parent_fails="cancel")
    queue.enqueue("q", id="c", expires_in=10, after=["b"], if_parent_fails="cancel")
    clock.advance(10)
    queue.maintain()
    assert [state_of(queue, id) for id in "abc"] == [State.DEAD] * 3


def test_the_children_of_an_expired_job_are_told(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10, delay=60)
    queue.enqueue("q", id="b", after=["a"], if_parent_fails="cancel")
    queue.enqueue("q", id="c", after=["a"], if_parent_fails="run")
    clock.advance(10)
    queue.maintain()
    assert state_of(queue, "b") is State.CANCELLED
    assert take(queue).id == "c"


def test_the_unique_key_of_an_expired_job_is_free(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10, unique_key="k")
    clock.advance(10)
    queue.maintain()
    assert queue.enqueue("q", unique_key="k").id != "a"


def test_maintenance_finds_what_expired(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="ready", expires_in=10)
    queue.enqueue("q", id="delayed", expires_in=10, delay=60)
    queue.enqueue("q", id="waiting", expires_in=10, after=["ready"])
    queue.enqueue("q", id="later", expires_in=11)
    clock.advance(10)
    assert queue.maintain().expired == 3
    assert queue.stats().dead == 3
    assert ids(queue.claim("q")) == ["later"]


def test_a_paused_job_expires_too(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    queue.pause("q")
    clock.advance(10)
    queue.maintain()
    assert state_of(queue, "a") is State.DEAD


def test_a_replayed_job_does_not_expire_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    clock.advance(10)
    queue.maintain()
    queue.replay("a")
    assert queue.get("a").expires_at is None
    clock.advance(3600)
    assert take(queue).id == "a"


def test_an_expired_job_is_never_given_however_many_expire_at_once(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=1)  # a claim looks after one of them at a time
    fill(queue, 20, expires_in=10)
    queue.enqueue("q", id="good")
    clock.advance(10)
    given: list[str] = []
    for _ in range(30):
        given += ids(queue.claim("q", limit=2))
    assert given == ["good"]
    assert queue.stats().dead == 20


def test_a_worker_whose_job_expired_with_its_lease_can_do_nothing(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a", expires_in=10)
    job = take(queue, lease=20)
    clock.advance(20)
    queue.maintain()
    with pytest.raises(LeaseLost) as caught:
        queue.ack(job)
    assert caught.value.state == "dead"


def test_claims_of_one_batch_promote_as_many_due_jobs_as_they_would_apart(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=2)
    for n in range(6):
        queue.enqueue("q", id=str(n), delay=10)
    clock.advance(10)
    claim = ops.Claim(("q",), "w", 60_000, 2)
    answers = store_of(queue).committer.run([claim, claim, claim])
    given = [[job.id for job in one.jobs] for one in answers if isinstance(one, ops.Leased)]
    assert given == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_jobs_that_expired_unseen_take_no_other_out_of_a_claim(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=1)  # a claim sweeps one of them and finds the others in its lane
    queue.enqueue("q", id="first")
    fill(queue, 3, expires_in=10)
    queue.enqueue("q", id="last")
    clock.advance(10)
    assert ids(queue.claim("q", limit=5)) == ["first", "last"]
    assert queue.stats().dead == 3


@pytest.mark.queue_limit
def test_a_job_that_expired_unseen_takes_no_room_of_the_next_claim_of_its_batch(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=1)  # two claims sweep two of them and find the third in its lane
    queue.limits.set("q", concurrency=1)
    fill(queue, 3, expires_in=10)
    queue.enqueue("q", id="good")
    clock.advance(10)
    claim = ops.Claim(("q",), "w", 60_000, 1)
    answers = store_of(queue).committer.run([claim, claim])
    given = [job.id for one in answers if isinstance(one, ops.Leased) for job in one.jobs]
    assert given == ["good"]
    assert queue.stats().dead == 3


@pytest.mark.parametrize(
    ("parent", "child", "becomes"), [("a", "b", State.CANCELLED), ("b", "a", State.DEAD)]
)
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_claim_looks_after_its_queues_in_the_order_of_their_names(
    queue: Queue,
    clock: ManualClock,
    names: tuple[str, str],
    parent: str,
    child: str,
    becomes: State,
) -> None:
    queue.enqueue(parent, id="parent", expires_in=10)
    queue.enqueue(child, id="child", expires_in=10, after=["parent"], if_parent_fails="cancel")
    clock.advance(10)
    assert queue.claim(names) == []
    assert (state_of(queue, "parent"), state_of(queue, "child")) == (State.DEAD, becomes)


def test_a_claim_that_meets_an_expired_job_after_others_tells_its_children(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=1)
    queue.enqueue("q", id="swept", expires_in=1)
    queue.enqueue("q", id="n")
    queue.enqueue("q", id="parent", expires_in=2)
    for name in ("a", "z"):  # around the job that is claimed first
        queue.enqueue("q", id=name, after=["parent"], if_parent_fails="cancel")
    clock.advance(3_000)
    assert [job.id for job in queue.claim("q", limit=3)] == ["n"]
    assert [queue.get(name).state for name in "az"] == [State.CANCELLED, State.CANCELLED]
