"""What the holder of a lease does: ack, fail, release, extend, progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tenure import (
    DependencyNotFound,
    Duplicate,
    InvalidInput,
    InvalidPayload,
    JobNotFound,
    Lease,
    LeaseLost,
    NewJob,
    PayloadTooLarge,
    Queue,
    State,
    TenureError,
)
from tenure.model.fields import MAX_FAILURE_TEXT
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Ack, Moved, Ok
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.conformance.moves import BIG, drain, fill, ids, state_of, take
from tests.conformance.state import all_jobs, nothing_changes

pytestmark = pytest.mark.over_http


def kinds(answers: list[TenureError | None]) -> list[type | None]:
    return [None if answer is None else type(answer) for answer in answers]


def raised(error: Exception) -> Exception:
    """The error with the traceback that it has once it was raised."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


# Ack --------------------------------------------------------------------------------------------


def test_an_acknowledged_job_is_done(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    job = take(queue, worker="w1")
    clock.advance(1)
    queue.ack(job)
    done = queue.get("a")
    assert (done.state, done.result, done.lease_until) == (State.DONE, None, None)
    assert done.finished_at == done.updated_at == clock.now_ms()
    assert (done.worker, done.attempts, done.started_at) == ("w1", 1, job.started_at)


@pytest.mark.parametrize("result", [0, "", [], {"n": 1.5}, "blåbær", BIG], ids=str)
def test_a_result_is_any_json_value(queue: Queue, result: Any) -> None:
    queue.enqueue("q", id="a")
    queue.ack(take(queue), result)
    assert queue.get("a").result == result


def test_a_job_may_be_acknowledged_by_its_lease(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    queue.ack(Lease("a", take(queue).token))
    assert state_of(queue, "a") is State.DONE


@pytest.mark.parametrize(
    ("result", "error"),
    [(float("nan"), InvalidPayload), (b"bytes", InvalidPayload), ("x" * 2**20, PayloadTooLarge)],
    ids=["nan", "bytes", "large"],
)
def test_a_bad_result_leaves_the_job_leased(
    queue: Queue, result: Any, error: type[InvalidInput]
) -> None:
    queue.enqueue("q")
    job = take(queue)
    with nothing_changes(queue), pytest.raises(error) as caught:
        queue.ack(job, result)
    assert caught.value.field == "result"
    queue.ack(job)


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("then", [(), (NewJob(queue="q", id="next"),)], ids=["alone", "with next"])
def test_a_repeated_ack_succeeds_and_changes_nothing(
    queue: Queue, then: tuple[NewJob, ...], keep: bool
) -> None:
    queue.enqueue("q")
    job = take(queue)
    queue.ack(job, "first", then=[NewJob(queue="q", id="after")])
    with nothing_changes(queue):
        queue.ack(job, "second", then=then, keep=keep)
    assert queue.get(job.id).result == "first"


def test_a_repeated_ack_says_that_it_came_second(queue: Queue, apply: Apply) -> None:
    queue.enqueue("q")
    job = take(queue)
    ack = Ack(job.id, job.token)
    again = Moved(State.DONE, job.run_at)
    assert apply(ack, ack, replace(ack, keep=False)) == [Ok(), again, again]
    assert apply(ack) == [again]


def test_after_an_ack_its_token_can_do_nothing_else(queue: Queue) -> None:
    queue.enqueue("q")
    job = take(queue)
    queue.ack(job)
    ways: list[Callable[[], object]] = [
        lambda: queue.fail(job),
        lambda: queue.fail(job, fatal=True),
        lambda: queue.release(job),
        lambda: queue.extend(job, 10),
        lambda: queue.progress(job, 50),
    ]
    for way in ways:
        with nothing_changes(queue), pytest.raises(LeaseLost) as caught:
            way()
        assert caught.value.state == "done"


def test_an_ack_with_the_token_of_another_claim_is_rejected(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q")
    stale = take(queue, lease=10)
    clock.advance(10)
    queue.ack(take(queue))
    with nothing_changes(queue), pytest.raises(LeaseLost) as caught:
        queue.ack(stale)
    assert caught.value.state == "done"


def test_a_job_that_is_not_kept_is_gone(queue: Queue) -> None:
    queue.enqueue("q", BIG, id="a", unique_key="k")
    queue.ack(take(queue), keep=False)
    with pytest.raises(JobNotFound):
        queue.get("a")
    assert queue.stats("q").done == 0
    queue.enqueue("q", id="a", unique_key="k")


def test_many_are_acknowledged_each_for_itself(queue: Queue) -> None:
    fill(queue, 4)
    first, second, third, fourth = queue.claim("q", limit=4)
    queue.cancel(second)
    queue.delete(third)
    answers = queue.ack_many([first, second, third, fourth, first], results=[1, 2, 3, 4, 5])
    assert kinds(answers) == [None, LeaseLost, JobNotFound, None, None]
    assert [queue.get(one.id).result for one in (first, fourth)] == [1, 4]
    assert state_of(queue, second.id) is State.CANCELLED


def test_many_may_be_acknowledged_and_not_kept(queue: Queue) -> None:
    fill(queue, 3)
    assert queue.ack_many(queue.claim("q", limit=2), keep=False) == [None, None]
    assert ids(all_jobs(queue)) == ["2"]


def test_no_jobs_are_acknowledged_with_no_answers(queue: Queue) -> None:
    assert queue.ack_many([]) == queue.fail_many([]) == queue.extend_many([]) == []


def test_results_must_be_as_many_as_jobs(queue: Queue) -> None:
    fill(queue, 2)
    jobs = queue.claim("q", limit=2)
    with nothing_changes(queue), pytest.raises(InvalidInput, match="results"):
        queue.ack_many(jobs, results=[1])


# Ack, then enqueue ------------------------------------------------------------------------------


def test_what_comes_next_is_enqueued_with_the_ack(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    follow_ups = [NewJob(queue="q", id="b", payload=BIG), NewJob(queue="r", id="c", after=["b"])]
    queue.ack(take(queue), "result", then=follow_ups)
    assert queue.get("a").result == "result"
    assert state_of(queue, "c") is State.WAITING
    assert drain(queue) == ["b"]
    assert drain(queue, "r") == ["c"]


@pytest.mark.parametrize("keep", [True, False])
def test_what_comes_next_may_wait_for_the_job_itself(queue: Queue, keep: bool) -> None:
    queue.enqueue("q", id="a")
    queue.ack(take(queue), then=[NewJob(queue="q", id="b", after=["a"])], keep=keep)
    assert take(queue).id == "b"


def test_what_an_ack_has_enqueued_is_known_to_the_next_of_the_batch(
    queue: Queue, apply: Apply
) -> None:
    queue.enqueue("q", id="a")
    job = take(queue)
    then = (JobSpec("b", "q", NULL, made_up_id=False),)
    answers = apply(Ack("a", job.token, then=then), Ack("b", 1, keep=False), Ack("c", 1))
    assert [type(answer) for answer in answers] == [Ok, LeaseLost, JobNotFound]


@pytest.mark.parametrize("keep", [True, False])
def test_a_job_may_enqueue_itself_again_under_its_own_unique_key(queue: Queue, keep: bool) -> None:
    queue.enqueue("q", unique_key="every minute")
    for _ in range(3):
        job = take(queue)
        again = NewJob(queue="q", unique_key="every minute")
        queue.ack(job, then=[again], keep=keep)
        with pytest.raises(Duplicate):
            queue.enqueue("q", unique_key="every minute")
    assert queue.stats().ready == 1
    assert queue.stats().done == (3 if keep else 0)


@pytest.mark.parametrize(
    ("then", "error"),
    [
        ([NewJob(queue="q", id="x"), NewJob(queue="q", id="held")], Duplicate),
        ([NewJob(queue="q", id="x"), NewJob(queue="q", id="x")], Duplicate),
        ([NewJob(queue="q", id="x"), NewJob(queue="q", id="a")], Duplicate),
        ([NewJob(queue="q", unique_key="held")], Duplicate),
        ([NewJob(queue="q", unique_key="own"), NewJob(queue="q", unique_key="own")], Duplicate),
        ([NewJob(queue="q", id="x"), NewJob(queue="q", after=["nobody"])], DependencyNotFound),
        ([NewJob(queue="q", id="x", after=["x"])], InvalidInput),
        ([NewJob(queue="q", id="x"), NewJob(queue="q", delay=-1)], InvalidInput),
        ([NewJob(queue="q", id="x"), NewJob(queue="q", payload={1, 2})], InvalidPayload),
    ],
    ids=["id", "twice", "own id", "key", "key twice", "parent", "cycle", "delay", "payload"],
)
@pytest.mark.parametrize("keep", [True, False])
def test_an_ack_whose_next_job_is_refused_does_not_happen(
    queue: Queue, then: list[NewJob], error: type[Exception], keep: bool
) -> None:
    queue.enqueue("other", id="held", unique_key="elsewhere")
    queue.enqueue("q", unique_key="held", delay=60)
    queue.enqueue("q", id="a", unique_key="own")
    job = take(queue)
    with nothing_changes(queue), pytest.raises(error):
        queue.ack(job, "result", then=then, keep=keep)
    queue.ack(job)


# Fail -------------------------------------------------------------------------------------------


def test_a_failed_job_is_pending_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    job = take(queue, worker="w1")
    clock.advance(1)
    assert queue.fail(job, "boom") is State.PENDING
    failed = queue.get("a")
    assert (failed.state, failed.worker, failed.lease_until) == (State.PENDING, "", None)
    assert (failed.attempts, failed.error, failed.finished_at) == (1, "boom", None)
    assert failed.run_at > failed.updated_at == clock.now_ms()


def test_a_fatal_failure_is_the_end(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=9)
    assert queue.fail(take(queue), "boom", fatal=True) is State.DEAD
    dead = queue.get("a")
    assert (dead.state, dead.attempts, dead.error) == (State.DEAD, 1, "boom")
    assert dead.finished_at == clock.now_ms()
    clock.advance(86_400)
    assert queue.claim("q") == []


def test_a_worker_can_call_its_job_off(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=9, unique_key="k")
    queue.enqueue("q", id="child", after=["a"], if_parent_fails="cancel")
    job = take(queue)
    clock.advance(1)
    assert queue.fail(job, "no longer wanted", cancel=True) is State.CANCELLED
    off = queue.get("a")
    assert (off.state, off.attempts, off.error) == (State.CANCELLED, 1, "no longer wanted")
    assert off.finished_at == clock.now_ms()
    assert state_of(queue, "child") is State.CANCELLED
    queue.enqueue("q", unique_key="k")


def test_only_the_holder_can_call_a_job_off(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    stale = take(queue, lease=1)
    clock.advance(2)
    take(queue)
    with nothing_changes(queue), pytest.raises(LeaseLost):
        queue.fail(stale, cancel=True)


def test_a_failure_says_when_who_and_what(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    job = take(queue, worker="w1")
    clock.advance(2)
    queue.fail(job, raised(ZeroDivisionError("by zero")))
    (failure,) = queue.get("a").errors
    assert (failure.at, failure.attempt, failure.worker) == (clock.now_ms(), 1, "w1")
    assert (failure.message, failure.type) == ("by zero", "ZeroDivisionError")
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "raise error" in failure.traceback


def test_the_type_of_a_failure_is_its_full_name(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    queue.fail(take(queue), JobNotFound("x"))
    assert queue.get("a").errors[0].type == "tenure.errors.JobNotFound"


@pytest.mark.parametrize("text", ["", "\0", "lone \ud800 surrogate", "blåbær 🫐", "x" * 100_000])
def test_a_failure_may_say_anything(queue: Queue, text: str) -> None:
    queue.enqueue("q", id="a")
    queue.fail(take(queue), text)
    message = queue.get("a").error
    assert message is not None
    assert len(message) == min(len(text), MAX_FAILURE_TEXT)
    if text.isprintable() and len(text) < MAX_FAILURE_TEXT:
        assert message == text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_told_is_a_failure_all_the_same(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    assert queue.fail(take(queue), Unspeakable()) is State.PENDING
    assert queue.get("a").errors[0].type.endswith("Unspeakable")


def test_the_end_of_a_long_traceback_is_kept(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    error = raised(ValueError("bad"))
    error.add_note("n" * 2 * MAX_FAILURE_TEXT)
    error.add_note("the last line")
    queue.fail(take(queue), error)
    (failure,) = queue.get("a").errors
    assert len(failure.traceback) == MAX_FAILURE_TEXT
    assert failure.traceback.endswith("the last line\n")


def test_many_fail_each_for_itself(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    queue.enqueue("q", id="b")
    queue.enqueue("q", id="c", max_attempts=1)
    first, second, third = queue.claim("q", limit=3)
    queue.ack(second)
    assert kinds(queue.fail_many([first, second, third], "boom")) == [None, LeaseLost, None]
    assert [state_of(queue, one) for one in "abc"] == [State.PENDING, State.DONE, State.DEAD]


# Release ----------------------------------------------------------------------------------------


def test_a_released_job_has_its_attempt_back(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=1)
    for _ in range(5):
        job = take(queue, worker="w1")
        assert job.attempts == 1
        clock.advance(1)
        queue.release(job)
        released = queue.get("a")
        assert (released.state, released.attempts) == (State.PENDING, 0)
        assert (released.worker, released.lease_until, released.errors) == ("", None, ())
        assert released.run_at == released.updated_at == clock.now_ms()


def test_a_job_may_be_released_for_later(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    queue.release(take(queue), delay=30)
    assert queue.get("a").run_at == clock.now_ms() + 30_000
    assert queue.claim("q") == []
    clock.advance(30)
    assert take(queue).attempts == 1


def test_the_reason_of_a_release_is_kept_once_with_its_first_time(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a", max_attempts=3)
    first = clock.now_ms()
    for _ in range(3):
        queue.release(take(queue, worker="w1"), reason="not for me")
        clock.advance(1)
    (told,) = queue.get("a").errors
    assert (told.message, told.at, told.worker) == ("not for me", first, "w1")
    queue.fail(take(queue), "boom", retry_in=0)
    queue.release(take(queue), reason="not for me")
    assert [one.message for one in queue.get("a").errors] == ["not for me", "boom", "not for me"]
    assert queue.get("a").attempts == 1


@pytest.mark.parametrize("delay", [0, 5])
def test_a_released_job_returns_to_its_place(
    queue: Queue, clock: ManualClock, delay: float
) -> None:
    expected = fill(queue, 3)
    queue.release(take(queue), delay=delay)
    clock.advance(delay)
    assert drain(queue) == expected


# Extend -----------------------------------------------------------------------------------------


def test_an_extended_lease_is_counted_from_now(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    job = take(queue, lease=10)
    clock.advance(9)
    queue.extend(job, 20)
    extended = queue.get("a")
    assert extended.lease_until == clock.now_ms() + 20_000
    assert (extended.state, extended.token, extended.attempts) == (State.LEASED, job.token, 1)
    clock.advance(19.999)
    assert queue.claim("q") == []
    clock.advance(0.001)
    assert take(queue).id == "a"


def test_a_lease_may_be_made_shorter(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    queue.extend(take(queue, lease=600), 1)
    clock.advance(1)
    assert take(queue).id == "a"


def test_a_lease_is_extended_by_what_the_settings_say(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(lease=7)
    queue.enqueue("q", id="a")
    job = take(queue, lease=1)
    queue.extend(job)
    assert queue.get("a").lease_until == clock.now_ms() + 7_000


def test_many_are_extended_each_for_itself(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 3)
    first, second, third = queue.claim("q", limit=3, lease=1)
    queue.release(second, delay=600)
    assert kinds(queue.extend_many([first, second, third], 50)) == [None, LeaseLost, None]
    for job in (first, third):
        assert queue.get(job.id).lease_until == clock.now_ms() + 50_000


# Progress ---------------------------------------------------------------------------------------


def test_progress_is_kept_with_the_job(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    job = take(queue, lease=10)
    assert (job.progress, job.note) == (None, None)
    clock.advance(1)
    queue.progress(job, 50, "halfway")
    half = queue.get("a")
    assert (half.progress, half.note, half.updated_at) == (50, "halfway", clock.now_ms())
    assert half.lease_until == job.lease_until  # a report is not a heartbeat
    queue.progress(job, 75)
    assert (queue.get("a").progress, queue.get("a").note) == (75, None)
    queue.ack(job)
    assert queue.get("a").progress == 75


@pytest.mark.parametrize("percent", [0, 100])
def test_progress_is_from_none_to_all(queue: Queue, percent: int) -> None:
    queue.enqueue("q", id="a")
    queue.progress(take(queue), percent, "")
    assert (queue.get("a").progress, queue.get("a").note) == (percent, "")


def test_a_new_attempt_begins_without_progress(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    job = take(queue)
    queue.progress(job, 50, "halfway")
    queue.release(job)
    again = take(queue)
    assert (again.progress, again.note) == (None, None)
    assert (queue.get("a").progress, queue.get("a").note) == (None, None)


@pytest.mark.parametrize("act", ["ack", "fail", "extend", "release"])
def test_an_unknown_job_cannot_be_finished(queue: Queue, act: str) -> None:
    with nothing_changes(queue), pytest.raises(JobNotFound) as caught:
        getattr(queue, act)(Lease("nobody", 1))
    assert caught.value.job_id == "nobody"


def test_an_unknown_job_makes_no_progress(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(JobNotFound):
        queue.progress(Lease("nobody", 1), 5)
