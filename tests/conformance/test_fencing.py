"""Fencing: who no longer holds the lease can do nothing; who holds it can do everything."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from msgspec import Raw

from tenure import Job, JobNotFound, Lease, LeaseLost, NewJob, Queue, State
from tenure.model.ops import Ack, Moved, Ok
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import fill, state_of, take
from tests.conformance.state import nothing_changes

pytestmark = pytest.mark.over_http

Act = Callable[[Queue, Job | Lease], object]
ACTS: dict[str, Act] = {
    "ack": lambda queue, job: queue.ack(job, "result"),
    "ack and remove": lambda queue, job: queue.ack(job, keep=False),
    "ack and enqueue": lambda queue, job: queue.ack(job, then=[NewJob(queue="q", id="next")]),
    "fail": lambda queue, job: queue.fail(job, "boom"),
    "fail fatally": lambda queue, job: queue.fail(job, "boom", fatal=True),
    "release": lambda queue, job: queue.release(job),
    "extend": lambda queue, job: queue.extend(job, 600),
    "progress": lambda queue, job: queue.progress(job, 50, "halfway"),
}
acts = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())


@pytest.fixture
def job(queue: Queue) -> Job:
    """A job that w1 holds for ten seconds."""
    queue.enqueue("q", id="a", max_attempts=5)
    return take(queue, worker="w1", lease=10)


def loses(queue: Queue, act: Act, job: Job | Lease, state: str) -> None:
    with nothing_changes(queue), pytest.raises(LeaseLost) as caught:
        act(queue, job)
    assert (caught.value.job_id, caught.value.state) == ("a", state)


@acts
def test_a_worker_whose_job_another_took_can_do_nothing(
    queue: Queue, clock: ManualClock, job: Job, act: Act
) -> None:
    clock.advance(10)
    other = take(queue, worker="w2", lease=10)
    loses(queue, act, job, "leased")
    act(queue, other)


@acts
def test_a_worker_whose_job_another_finished_can_do_nothing(
    queue: Queue, clock: ManualClock, job: Job, act: Act
) -> None:
    clock.advance(10)
    queue.ack(take(queue, worker="w2"), "theirs")
    loses(queue, act, job, "done")


@acts
def test_a_worker_whose_lease_ran_out_may_go_on_while_nobody_took_the_job(
    queue: Queue, clock: ManualClock, job: Job, act: Act
) -> None:
    clock.advance(3600)
    act(queue, job)


def test_an_ack_after_the_lease_ran_out_counts_if_nobody_took_the_job(
    queue: Queue, clock: ManualClock, job: Job
) -> None:
    clock.advance(3600)
    queue.ack(job, "late")
    assert (queue.get("a").state, queue.get("a").result) == (State.DONE, "late")
    assert queue.claim("q") == []


def test_an_extension_after_the_lease_ran_out_keeps_the_job_if_nobody_took_it(
    queue: Queue, clock: ManualClock, job: Job
) -> None:
    clock.advance(3600)
    queue.extend(job, 10)
    clock.advance(9.999)
    assert queue.claim("q") == []
    queue.ack(job)


@acts
def test_a_worker_whose_lease_was_cleared_away_can_do_nothing(
    queue: Queue, clock: ManualClock, job: Job, act: Act
) -> None:
    clock.advance(10)
    assert queue.maintain().leases == 1
    loses(queue, act, job, "pending")


@acts
def test_a_worker_whose_job_was_cancelled_can_do_nothing(queue: Queue, job: Job, act: Act) -> None:
    queue.cancel("a")
    loses(queue, act, job, "cancelled")


@acts
def test_a_worker_whose_job_was_deleted_can_do_nothing(queue: Queue, job: Job, act: Act) -> None:
    queue.delete("a")
    with nothing_changes(queue), pytest.raises(JobNotFound):
        act(queue, job)


@acts
def test_a_worker_that_gave_its_job_up_can_do_nothing(queue: Queue, job: Job, act: Act) -> None:
    queue.release(job)
    loses(queue, act, job, "pending")


@acts
def test_a_worker_that_failed_can_do_nothing(queue: Queue, job: Job, act: Act) -> None:
    queue.fail(job, "boom")
    loses(queue, act, job, "pending")


@acts
def test_a_worker_that_took_its_job_again_has_a_new_lease(queue: Queue, job: Job, act: Act) -> None:
    queue.release(job)
    again = take(queue, worker="w1")
    loses(queue, act, job, "leased")
    act(queue, again)


@acts
def test_a_lease_from_before_a_replay_can_do_nothing(queue: Queue, job: Job, act: Act) -> None:
    queue.cancel("a")
    queue.replay("a")
    loses(queue, act, job, "pending")
    again = take(queue)
    loses(queue, act, job, "leased")
    act(queue, again)


@acts
def test_a_lease_of_a_job_deleted_and_enqueued_anew_can_do_nothing(
    queue: Queue, job: Job, act: Act
) -> None:
    queue.delete("a")
    queue.enqueue("q", id="a")
    loses(queue, act, job, "pending")
    take(queue, lease=10)
    loses(queue, act, job, "leased")


@acts
def test_a_token_that_was_made_up_can_do_nothing(queue: Queue, job: Job, act: Act) -> None:
    for by in (-1, 1, 1000):
        loses(queue, act, Lease("a", job.token + by), "leased")


@acts
def test_a_job_that_was_never_leased_has_no_token(queue: Queue, act: Act) -> None:
    queue.enqueue("q", id="a")
    for token in (0, 1, -1):
        loses(queue, act, Lease("a", token), "pending")


@acts
def test_the_token_of_one_job_is_of_no_use_for_another(queue: Queue, act: Act) -> None:
    queue.enqueue("q", id="a")
    a = take(queue)
    queue.enqueue("q", id="b")
    b = take(queue)
    loses(queue, act, Lease("a", b.token), "leased")
    queue.ack(a)


def test_of_many_threads_that_finish_one_job_one_does(queue: Queue, apply: Apply, job: Job) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def finish(n: int) -> None:
        start.wait()
        (answer,) = apply(Ack(job.id, job.token, Raw(str(n).encode())))
        assert answer in (Ok(), Moved(State.DONE, job.run_at))
        if answer == Ok():
            won.append(n)

    threads = [threading.Thread(target=finish, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert queue.get("a").result == won[0]


def test_a_stale_worker_among_many_hurts_no_other(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 3)
    jobs = queue.claim("q", limit=3, lease=10)
    queue.extend_many(jobs[::2], 600)
    clock.advance(10)
    other = take(queue, worker="w2")
    assert other.id == jobs[1].id
    assert [type(one) for one in queue.ack_many(jobs)] == [type(None), LeaseLost, type(None)]
    assert state_of(queue, other.id) is State.LEASED
    queue.ack(other)
