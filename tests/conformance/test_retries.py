"""Retries: how long a failed job waits, how often it is tried, and what is remembered."""

from __future__ import annotations

import pytest

from tenure import Backoff, NewJob, Queue, State, exponential, fixed, linear, quadratic
from tenure.model.job import KEPT_FAILURES
from tenure.model.retry import DEFAULT_BACKOFF
from tenure.testing import ManualClock
from tests.conformance.moves import drain, fill, make_dead, take


def waits(queue: Queue, clock: ManualClock, failures: int) -> list[float]:
    """The seconds that the one job of the queue waits after each failure."""
    found = []
    for _ in range(failures):
        job = take(queue)
        assert queue.fail(job, "boom") is State.PENDING
        found.append((queue.get(job.id).run_at - clock.now_ms()) / 1000)
        if found[-1]:
            assert queue.claim("q") == []
            clock.advance(found[-1] - 0.001)
            assert queue.claim("q") == []
            clock.advance(0.001)
    return found


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [
        (exponential(60, factor=5), [60, 300, 1500]),
        (exponential(1), [1, 2, 4]),
        (exponential(1, max=3), [1, 2, 3]),
        (quadratic(), [1, 4, 9]),
        (linear(10), [10, 20, 30]),
        (fixed(2.5), [2.5, 2.5, 2.5]),
        (fixed(0), [0, 0, 0]),
    ],
    ids=str,
)
def test_a_failed_job_waits_as_its_policy_says(
    queue: Queue, clock: ManualClock, backoff: Backoff, seconds: list[float]
) -> None:
    queue.enqueue("q", backoff=backoff, max_attempts=4)
    assert waits(queue, clock, 3) == seconds


def test_a_job_without_a_policy_waits_by_the_default(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=4)
    expected = [DEFAULT_BACKOFF.delay_ms(attempt, "a") / 1000 for attempt in (1, 2, 3)]
    assert waits(queue, clock, 3) == expected


def test_jitter_spreads_jobs_that_fail_together(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 20, backoff=fixed(100, jitter=0.5))
    queue.fail_many(queue.claim("q", limit=20))
    due = {job.run_at - clock.now_ms() for job in queue.jobs().jobs}
    assert len(due) > 10
    assert all(50_000 <= one <= 150_000 for one in due)


def test_the_worker_may_say_when_to_try_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", backoff=fixed(60))
    queue.fail(take(queue), retry_in=5)
    assert queue.get("a").run_at == clock.now_ms() + 5_000
    clock.advance(5)
    queue.fail(take(queue), retry_in=0)
    assert take(queue).attempts == 3


def test_a_job_is_tried_as_often_as_it_may_be(queue: Queue) -> None:
    queue.enqueue("q", id="a", max_attempts=3, backoff=fixed(0))
    assert [queue.fail(take(queue), "boom") for _ in range(3)] == ["pending", "pending", "dead"]
    dead = queue.get("a")
    assert (dead.attempts, dead.state) == (3, State.DEAD)
    assert queue.claim("q") == []


def test_a_job_that_may_be_tried_once_dies_of_its_first_failure(queue: Queue) -> None:
    queue.enqueue("q", max_attempts=1)
    assert queue.fail(take(queue), "boom", retry_in=5) is State.DEAD


def test_a_lease_that_runs_out_uses_an_attempt_up(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=2)
    for attempt in (1, 2):
        assert take(queue, lease=5, worker=f"w{attempt}").attempts == attempt
        clock.advance(5)
    assert queue.claim("q") == []
    dead = queue.get("a")
    assert (dead.state, dead.attempts, dead.finished_at) == (State.DEAD, 2, clock.now_ms())
    assert [(one.message, one.worker) for one in dead.errors] == [
        ("the lease ran out", "w1"),
        ("the lease ran out", "w2"),
    ]


def test_a_job_whose_lease_ran_out_waits_for_nothing(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", backoff=fixed(600))
    take(queue, lease=5)
    clock.advance(5)
    assert take(queue).run_at == clock.now_ms()


def test_a_release_gives_back_one_attempt_and_no_more(queue: Queue) -> None:
    queue.enqueue("q", id="a", max_attempts=2, backoff=fixed(0))
    queue.fail(take(queue), "boom")
    for _ in range(3):
        queue.release(take(queue))
    assert queue.get("a").attempts == 1
    assert queue.fail(take(queue), "boom") is State.DEAD


def test_the_last_ten_failures_are_kept(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=100, backoff=fixed(1))
    for n in range(1, 14):
        queue.fail(take(queue, worker=f"w{n}"), f"failure {n}")
        clock.advance(1)
    errors = queue.get("a").errors
    assert len(errors) == KEPT_FAILURES == 10
    assert [one.message for one in errors] == [f"failure {n}" for n in range(4, 14)]
    assert [one.attempt for one in errors] == list(range(4, 14))
    assert [one.worker for one in errors] == [f"w{n}" for n in range(4, 14)]
    assert queue.get("a").error == "failure 13"


def test_failures_are_remembered_when_the_job_is_done(queue: Queue) -> None:
    queue.enqueue("q", id="a", backoff=fixed(0))
    queue.fail(take(queue), "boom")
    job = take(queue)
    assert job.error == "boom"
    queue.ack(job, "fine")
    done = queue.get("a")
    assert (done.result, done.error, done.attempts) == ("fine", "boom", 2)


def test_a_retried_job_returns_to_its_place(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue_many(
        NewJob(queue="q", id=f"{priority}.{n}", priority=priority)
        for priority in (1, 2)
        for n in range(2)
    )
    queue.fail(take(queue), retry_in=5)
    assert take(queue).id == "1.1"
    clock.advance(5)
    assert drain(queue) == ["1.0", "2.0", "2.1"]


def test_a_dead_job_stays_dead(queue: Queue, clock: ManualClock) -> None:
    make_dead(queue, "a")
    clock.advance(10 * 86_400)
    queue.maintain()
    assert queue.claim("q") == []
    assert queue.get("a").state is State.DEAD
