"""Durable steps: what is recorded stays recorded, and who is suspended is woken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenure import (
    Conflict,
    InvalidInput,
    Job,
    JobNotFound,
    LeaseLost,
    NewJob,
    PayloadTooLarge,
    Queue,
    State,
)
from tenure.features.steps import data
from tenure.features.steps.data import (
    Checkpoint,
    JobSteps,
    ListSteps,
    Recall,
    ReplayFrom,
    Signal,
    Suspend,
)
from tenure.model import ops
from tenure.model.job import JobSpec
from tenure.model.ops import Grant, Moved, Recorded
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.moves import drain, state_of, take
from tests.conformance.state import nothing_changes

pytestmark = pytest.mark.over_http

DAY = 86_400_000
Apply = Callable[..., list[Any]]


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def spec(job_id: str, queue: str = "q", payload: Any = None, **options: Any) -> JobSpec:
    return JobSpec(job_id, queue, raw(payload), **options)


def lease(job: Job) -> tuple[str, int]:
    return job.id, job.token


def steps_of(queue: Queue, job_id: str) -> JobSteps:
    """All steps of a job, page by page."""
    found: JobSteps = store_of(queue).do(ListSteps(job_id))
    pages = [found]
    while pages[-1].after is not None:
        pages.append(store_of(queue).do(ListSteps(job_id, after=pages[-1].after)))
    return msgspec.structs.replace(
        found, steps=[step for page in pages for step in page.steps], after=None
    )


def results(queue: Queue, job_id: str) -> dict[str, Any]:
    steps = steps_of(queue, job_id).steps
    return {step.name + step.key: msgspec.json.decode(step.result) for step in steps}


def running(queue: Queue, job_id: str = "a", **options: Any) -> Job:
    queue.enqueue("q", id=job_id, **options)
    return take(queue)


# Checkpoints --------------------------------------------------------------------------------------


def test_a_step_is_recorded_once_and_its_first_result_counts(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue)
    first = apply(Checkpoint(*lease(job), "charge", result=raw({"paid": 3}), took_ms=20))
    clock.advance(1)
    again = apply(Checkpoint(*lease(job), "charge", result=raw({"paid": 4})))
    assert first == [Recorded(raw({"paid": 3}), created=True)]
    assert again == [Recorded(raw({"paid": 3}), created=False)]
    (step,) = steps_of(queue, "a").steps
    assert (step.number, step.kind, step.took_ms) == (1, "step", 20)
    assert step.at == step.ended_at == clock.now_ms() - 1_000
    assert queue.get("a").has_steps


def test_steps_of_one_batch_with_the_same_name_are_told_apart_by_their_keys(
    queue: Queue, apply: Apply
) -> None:
    job = running(queue)
    answers = apply(
        *(Checkpoint(*lease(job), "reserve", key, result=raw(n)) for n, key in enumerate("xyx"))
    )
    assert [(one.result, one.created) for one in answers] == [
        (raw(0), True), (raw(1), True), (raw(0), False),
    ]  # fmt: skip
    assert results(queue, "a") == {"reservex": 0, "reservey": 1}


def test_a_checkpoint_renews_the_lease(queue: Queue, apply: Apply, clock: ManualClock) -> None:
    job = running(queue)
    apply(Checkpoint(*lease(job), "one", lease_ms=500_000))
    assert queue.get("a").lease_until == clock.now_ms() + 500_000


def test_steps_are_there_for_the_next_attempt(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(Checkpoint(*lease(job), "one", result=raw([1])))
    queue.fail(job, "boom", retry_in=0)
    again = take(queue)
    assert again.has_steps
    apply(Checkpoint(*lease(again), "two"))
    assert [(one.number, one.name, one.token) for one in steps_of(queue, "a").steps] == [
        (1, "one", job.token), (2, "two", again.token),
    ]  # fmt: skip


def test_the_holder_of_the_lease_reads_the_steps(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(*(Checkpoint(*lease(job), f"s{n}", result=raw("x" * 900_000)) for n in range(6)))
    names: list[str] = []
    page = JobSteps(after=0)
    while page.after is not None:
        (answer,) = apply(Recall(*lease(job), after=page.after))
        page = data.decode_steps(answer.steps)
        names += [step.name for step in page.steps]
    assert names == [f"s{n}" for n in range(6)]


@pytest.mark.parametrize("kind", ["old token", "done", "never was"])
def test_nothing_is_recorded_or_suspended_without_the_lease(
    queue: Queue, apply: Apply, kind: str
) -> None:
    job = running(queue)
    if kind == "old token":
        queue.release(job)
        take(queue)
    elif kind == "done":
        queue.ack(job)
    held = ("nobody", 7) if kind == "never was" else lease(job)
    with nothing_changes(queue):
        answers = apply(Checkpoint(*held, "one"), Recall(*held), Suspend(*held, "two", delay_ms=5))
    assert all(isinstance(one, Exception) for one in answers)
    assert steps_of(queue, "a") == JobSteps()


def test_large_results_are_stored_whole(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    text = "å∫ç" * 60_000
    large = [text, text[:-1] + "x", "y"]
    for n, one in enumerate(large):
        apply(Checkpoint(*lease(job), f"s{n}", result=raw(one)))
    assert list(results(queue, "a").values()) == large
    again = Checkpoint(*lease(job), "s0", result=raw("another"))
    assert apply(again) == [Recorded(raw(text), created=False)]
    new = Checkpoint(*lease(job), "new", result=raw(text))
    again = Checkpoint(*lease(job), "new")
    assert [one.result for one in apply(new, again)] == [raw(text)] * 2


def test_what_is_too_much_is_rejected_and_changes_nothing(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    store = store_of(queue)
    big = Checkpoint(*lease(job), "big", result=raw("x" * 2**20 + "x"))
    with pytest.raises(PayloadTooLarge, match="result: is 1,048,579 bytes"):
        big.check()
    for n in range(0, data.MAX_STEPS, 100):
        store.do([Checkpoint(*lease(job), "s", str(k)) for k in range(n, n + 100)])
    (answer,) = apply(Checkpoint(*lease(job), "one more"))
    assert isinstance(answer, InvalidInput)
    assert "1,000 steps" in answer.message
    (answer,) = apply(Suspend(*lease(job), "sleep", delay_ms=5))
    assert isinstance(answer, InvalidInput)
    assert len(steps_of(queue, "a").steps) == data.MAX_STEPS
    assert state_of(queue, "a") == State.LEASED


def test_the_steps_of_a_job_are_bounded_together(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    result = raw("x" * (2**20 - 2))
    answers = [apply(Checkpoint(*lease(job), f"s{n}", result=result))[0] for n in range(32)]
    assert [type(one) for one in answers[:31]] == [Recorded] * 31
    assert isinstance(answers[31], PayloadTooLarge)
    assert len(steps_of(queue, "a").steps) == 31


def test_a_name_stands_for_one_kind_of_step(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(Checkpoint(*lease(job), "one"))
    (answer,) = apply(Suspend(*lease(job), "one", delay_ms=5))
    assert isinstance(answer, InvalidInput)
    assert "a step of the kind 'step', not 'sleep'" in answer.message


def test_a_job_that_is_removed_leaves_no_steps(queue: Queue, apply: Apply) -> None:
    for job_id, end in (("a", "delete"), ("b", "ack"), ("c", "purge")):
        job = running(queue, job_id)
        apply(Checkpoint(*lease(job), "one", result=raw("x" * 200_000)))
        apply(Signal((job_id,), name="go"))
        if end == "ack":
            apply(ops.Ack(*lease(job), keep=False))
        elif end == "delete":
            queue.delete(job_id)
        else:
            queue.ack(job)
            apply(ops.Maintain(keep_done_ms=0))
        queue.enqueue("q", id=job_id, delay=99)
        assert steps_of(queue, job_id) == JobSteps()


# Sleeps -------------------------------------------------------------------------------------------


def test_a_sleeping_job_is_claimed_when_its_time_has_come(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue, expires_in=60)
    answer = apply(Suspend(*lease(job), "cool off", delay_ms=3 * DAY))
    assert answer == [Moved(State.PENDING, clock.now_ms() + 3 * DAY)]
    asleep = queue.get("a")
    assert (asleep.attempts, asleep.worker, asleep.expires_at) == (0, "", None)
    clock.advance(3 * 86_400 - 1)
    assert queue.claim("q") == []
    clock.advance(1)
    awake = take(queue)
    assert awake.attempts == 1
    (step,) = steps_of(queue, "a").steps
    assert (step.kind, step.until) == ("sleep", awake.run_at)


def test_a_suspended_job_holds_no_slot_of_a_limit(queue: Queue, apply: Apply) -> None:
    queue.limits.set("q", tenant="t", concurrency=1)
    job = running(queue, tenant="t")
    queue.enqueue("q", id="b", tenant="t")
    assert queue.claim("q") == []
    apply(Suspend(*lease(job), "nap", delay_ms=1000))
    assert take(queue).id == "b"


# Signals ------------------------------------------------------------------------------------------


def test_a_signal_wakes_the_job_that_waits_for_it(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue)
    apply(Suspend(*lease(job), "approval", kind="wait", delay_ms=DAY))
    assert queue.claim("q") == []
    clock.advance(5)
    assert apply(Signal(("a",), name="other")) == [ops.Changed(1)]
    assert queue.claim("q") == []
    assert apply(Signal(("a",), name="approval", value=raw({"by": "ann"}))) == [ops.Changed(1)]
    assert take(queue).run_at == clock.now_ms()
    found = steps_of(queue, "a")
    assert {one.name: msgspec.json.decode(one.value) for one in found.signals} == {
        "other": None, "approval": {"by": "ann"},
    }  # fmt: skip


def test_a_signal_that_came_first_is_not_waited_for(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue)
    apply(Signal(("a",), name="go", value=raw(1)))
    answers = apply(Suspend(*lease(job), "go", kind="wait", delay_ms=DAY))
    assert answers == [Moved(State.PENDING, clock.now_ms())]
    assert take(queue).attempts == 1


def test_of_several_signals_the_first_counts(queue: Queue, apply: Apply) -> None:
    running(queue)
    answers = apply(*(Signal(("a",), name="go", value=raw(n)) for n in range(3)))
    assert [one.count for one in answers] == [1, 0, 0]
    (sent,) = steps_of(queue, "a").signals
    assert sent.value == raw(0)


def test_a_wait_is_over_at_its_end_unless_the_signal_is_there(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue)
    apply(Suspend(*lease(job), "go", kind="wait", delay_ms=1000))
    clock.advance(1)
    job = take(queue)
    apply(Signal(("a",), name="late", value=raw("in time")))
    over, late = apply(
        Checkpoint(*lease(job), "go", kind="wait"), Checkpoint(*lease(job), "late", kind="wait")
    )
    assert over == Recorded(raw(None), created=True)
    assert late == Recorded(raw("in time"), created=False, signalled=True)
    apply(Signal(("a",), name="go"))
    assert apply(Checkpoint(*lease(job), "go", kind="wait")) == [Recorded(raw(None), created=False)]


def test_a_job_that_waits_without_end_waits(queue: Queue, apply: Apply, clock: ManualClock) -> None:
    job = running(queue)
    apply(Suspend(*lease(job), "go", kind="wait"))
    clock.advance(86_400 * 365 * 10)
    assert queue.claim("q") == []
    apply(Signal(("a",), name="go"))
    assert take(queue).id == "a"


def test_signals_of_a_job_are_bounded_and_finished_jobs_get_none(
    queue: Queue, apply: Apply
) -> None:
    job = running(queue)
    for n in range(data.MAX_SIGNALS):
        apply(Signal(("a",), name=f"s{n}"))
    assert apply(Signal(("a", "nobody"), name="more")) == [ops.Changed(0, ("nobody",))]
    queue.ack(job)
    assert apply(Signal(("a",), name="late")) == [ops.Changed(0)]
    with pytest.raises(PayloadTooLarge, match="value"):
        Signal(("a",), name="big", value=raw("x" * data.MAX_SIGNAL_BYTES)).check()


def test_a_signal_to_a_job_that_was_never_claimed_waits_in_it(queue: Queue, apply: Apply) -> None:
    queue.enqueue("q", id="a", after=[queue.enqueue("p", id="p")])
    assert apply(Signal(("a",), name="go")) == [ops.Changed(1)]
    drain(queue, "p")
    assert take(queue).has_steps


# Children -----------------------------------------------------------------------------------------


def gather(job: Job, *ids: str, **options: Any) -> Suspend:
    return Suspend(
        *lease(job), "labels", kind="gather", then=tuple(spec(one, **options) for one in ids)
    )


def test_a_job_waits_for_its_children_and_is_claimed_after_the_last(
    queue: Queue, apply: Apply
) -> None:
    job = running(queue)
    (answer,) = apply(gather(job, "x", "y", queue="p"))
    assert answer.state is State.WAITING
    assert queue.get("a").attempts == 0
    queue.ack(take(queue, "p"))
    assert queue.claim("q") == []
    queue.ack(take(queue, "p"))
    again = take(queue)
    (step,) = steps_of(queue, "a").steps
    assert (step.kind, step.children, step.ended_at) == ("gather", ("x", "y"), None)
    apply(Checkpoint(*lease(again), "labels", kind="gather", result=raw([1, 2])))
    assert results(queue, "a") == {"labels": [1, 2]}
    assert steps_of(queue, "a").steps[0].children == ("x", "y")


@pytest.mark.parametrize("end", ["dead", "cancelled", "deleted"])
def test_a_child_that_fails_does_not_cancel_the_job_that_waits_for_it(
    queue: Queue, apply: Apply, end: str
) -> None:
    job = running(queue, if_parent_fails="cancel")
    apply(gather(job, "x", "y", queue="p"))
    child = take(queue, "p")
    if end == "dead":
        queue.fail(child, "boom", fatal=True)
    elif end == "cancelled":
        queue.cancel(child.id)
    else:
        queue.delete(child.id)
    assert state_of(queue, "a") == State.WAITING
    queue.ack(take(queue, "p"))
    assert take(queue).id == "a"


def test_children_that_have_ended_are_not_waited_for(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue)
    apply(gather(job, "x", queue="p"))
    queue.ack(take(queue, "p"))
    again = take(queue)
    (answer,) = apply(gather(again, queue="p"))
    assert answer == Moved(State.PENDING, clock.now_ms())
    assert take(queue).id == "a"


def test_children_that_cannot_be_added_leave_everything_as_it_was(
    queue: Queue, apply: Apply
) -> None:
    job = running(queue)
    queue.enqueue("p", id="x")
    with nothing_changes(queue):
        (answer,) = apply(gather(job, "w", "x", queue="p"))
    assert answer.code == "duplicate"
    assert steps_of(queue, "a").steps == []


def test_a_waiting_job_can_be_cancelled(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(gather(job, "x", queue="p"))
    queue.cancel("a")
    assert drain(queue, "p") == ["x"]
    assert state_of(queue, "a") == State.CANCELLED


# Undo ---------------------------------------------------------------------------------------------


def undo(job: Job, name: str, **options: Any) -> Checkpoint:
    return Checkpoint(
        *lease(job), name, kind="undo", then=(spec(f"{job.id}-{name}", "undo", **options),)
    )


@pytest.mark.parametrize("end", ["dead", "cancelled", "lease"])
def test_what_undoes_steps_runs_last_first_if_the_job_fails(
    queue: Queue, apply: Apply, clock: ManualClock, end: str
) -> None:
    job = running(queue, max_attempts=1)
    apply(undo(job, "refund", payload={"n": 1}), Checkpoint(*lease(job), "x"), undo(job, "free"))
    assert "undo" not in queue.stats().queues
    if end == "dead":
        queue.fail(job, "boom")
    elif end == "cancelled":
        queue.cancel("a")
    else:
        clock.advance(1_000)
        apply(ops.Maintain())
    assert state_of(queue, "a") == (State.CANCELLED if end == "cancelled" else State.DEAD)
    first = take(queue, "undo")
    assert first.id == "a-free"
    assert queue.claim("undo") == []
    queue.fail(first, "boom", fatal=True)
    second = take(queue, "undo")
    assert (second.id, second.payload) == ("a-refund", {"n": 1})
    found = steps_of(queue, "a")
    assert found.undone
    assert [one.kind for one in found.steps] == ["undo", "step", "undo"]


def test_nothing_is_undone_if_the_job_is_done_or_tried_again(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(undo(job, "refund"))
    queue.fail(job, "boom", retry_in=0)
    queue.ack(take(queue))
    assert "undo" not in queue.stats().queues


def test_a_job_that_was_undone_starts_over_when_it_is_replayed(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(undo(job, "refund"), Checkpoint(*lease(job), "x"), Signal(("a",), name="go"))
    queue.cancel("a")
    queue.replay("a")
    assert steps_of(queue, "a") == JobSteps()
    again = take(queue)
    (answer,) = apply(Checkpoint(*lease(again), "x", result=raw(2)))
    assert answer.created
    queue.fail(again, "boom", fatal=True)
    assert drain(queue, "undo") == ["a-refund"]


# Replays ------------------------------------------------------------------------------------------


def test_a_replay_keeps_the_steps(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(Checkpoint(*lease(job), "one", result=raw(1)))
    queue.fail(job, "boom", fatal=True)
    queue.replay("a")
    assert results(queue, "a") == {"one": 1}


def test_a_replay_from_a_step_forgets_it_and_what_came_later(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(
        Checkpoint(*lease(job), "one", result=raw(1)),
        Checkpoint(*lease(job), "two", "k", result=raw("x" * 200_000)),
        undo(job, "three"),
    )
    apply(Signal(("a",), name="go"), Signal(("a",), name="stay"))
    apply(Checkpoint(*lease(job), "stay", kind="wait"), Suspend(*lease(job), "go", kind="wait"))
    queue.fail(take(queue), "boom", fatal=True)
    assert apply(ReplayFrom(("a", "nobody"), name="two", key="k"))[0].missing == ("nobody",)
    assert state_of(queue, "a") == State.DEAD  # what undoes it was enqueued before
    drain(queue, "undo")


def test_a_replay_from_a_step_forgets_the_signals_that_came_after_it_began(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    job = running(queue)
    apply(Checkpoint(*lease(job), "one", result=raw(1)))
    apply(Signal(("a",), name="stay"))
    clock.advance(1)
    apply(Checkpoint(*lease(job), "two", "k", result=raw("x" * 200_000)))
    apply(Signal(("a",), name="go"), Signal(("a",), name="another"))
    apply(Suspend(*lease(job), "go", kind="wait"))
    queue.fail(take(queue), "boom", fatal=True)
    assert apply(ReplayFrom(("a",), name="no such step")) == [ops.Changed(0)]
    assert apply(ReplayFrom(("a",), name="two", key="k")) == [ops.Changed(1)]
    found = steps_of(queue, "a")
    assert [one.name for one in found.steps] == ["one"]
    assert [one.name for one in found.signals] == ["stay"]
    again = take(queue)
    assert again.attempts == 1
    apply(Checkpoint(*lease(again), "two", "k", result=raw(2)))
    assert results(queue, "a") == {"one": 1, "twok": 2}


def test_no_id_of_a_job_reaches_into_the_steps_of_another(queue: Queue, apply: Apply) -> None:
    job = running(queue, max_attempts=1)
    apply(undo(job, "refund"), Checkpoint(*lease(job), "one"))
    for tail in ("\x01", "\x01h", "\x01s", "\x01x", "\x01u000001.", "\x01u000001.000"):
        queue.enqueue("other", id=f"a{tail}")
        assert apply(Signal((f"a{tail}",), name="go")) == [ops.Changed(1)]
    assert len(steps_of(queue, "a").steps) == 2
    queue.fail(job, "boom", fatal=True)
    assert drain(queue, "undo") == ["a-refund"]
    queue.delete("a")
    assert len(steps_of(queue, "a\x01s").signals) == 1


def test_undos_are_bounded_so_that_a_job_can_always_end(queue: Queue, apply: Apply) -> None:
    job = running(queue, max_attempts=1)
    large = Checkpoint(
        *lease(job), "large", kind="undo", then=(spec("x", payload="x" * data.MAX_UNDO_BYTES),)
    )
    with pytest.raises(PayloadTooLarge, match="then"):
        large.check()
    answers = apply(*(undo(job, f"u{n}", payload="x" * 16_000) for n in range(data.MAX_UNDOS + 1)))
    assert [type(one) for one in answers] == [Recorded] * data.MAX_UNDOS + [InvalidInput]
    queue.fail(job, "boom", fatal=True)
    assert queue.stats().queues["undo"].unfinished == data.MAX_UNDOS


# Who may see it -----------------------------------------------------------------------------------


def test_a_grant_hides_the_steps_of_others(queue: Queue, apply: Apply) -> None:
    job = running(queue, tenant="acme")
    apply(Checkpoint(*lease(job), "one"))
    others, own = Grant(tenants=("other",)), Grant(tenants=("acme",))
    store = store_of(queue)
    assert store.do(ListSteps("a", grant=others)) == JobSteps()
    assert len(store.do(ListSteps("a", grant=own)).steps) == 1
    answers = apply(
        Checkpoint(*lease(job), "two", grant=others),
        Suspend(*lease(job), "three", delay_ms=5, grant=others),
        Signal(("a",), name="go", grant=others),
        ReplayFrom(("a",), name="one", grant=others),
    )
    assert [getattr(one, "code", one) for one in answers] == [
        "job_not_found", "job_not_found", ops.Changed(0, ("a",)), ops.Changed(0, ("a",)),
    ]  # fmt: skip


def test_jobs_without_steps_say_so(queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", id="a"), NewJob(queue="q", id="b")])
    assert not any(job.has_steps for job in queue.claim("q", limit=2))
    assert steps_of(queue, "a") == JobSteps()


def test_the_lease_that_was_lost_names_the_state_of_the_suspended_job(
    queue: Queue, apply: Apply
) -> None:
    job = running(queue)
    apply(Suspend(*lease(job), "nap", delay_ms=1000))
    (answer,) = apply(Checkpoint(*lease(job), "one"))
    assert isinstance(answer, LeaseLost)
    assert "pending" in answer.message


# What people see ----------------------------------------------------------------------------------


def reasons(queue: Queue, job_id: str) -> list[Any]:
    return list(queue.explain(job_id).reasons)


def test_why_says_what_a_suspended_job_waits_for(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    now = clock.now_ms()
    for name in "abc":
        queue.enqueue("q", id=name)
    a, b, c = queue.claim("q", limit=3)
    apply(
        Suspend(*lease(a), "cool off", delay_ms=DAY),
        Suspend(*lease(b), "approval", kind="wait"),
        Suspend(*lease(c), "labels", kind="gather", then=(spec("x", "p"),)),
    )
    sleeps, waits = (reasons(queue, one) for one in "ab")
    assert [(one.kind, one.name, one.since, one.until) for one in sleeps] == [
        ("sleep", "cool off", now, now + DAY)
    ]
    assert [(one.kind, one.name, one.since, one.until) for one in waits] == [
        ("wait", "approval", now, None)
    ]
    assert "waits for the signal 'approval' since" in waits[0].text
    assert waits[0].fix == "tenure signal b approval '{}'"
    suspended, children = reasons(queue, "c")
    assert (suspended.kind, suspended.name) == ("gather", "labels")
    assert [one.id for one in children.parents] == ["x"]


def test_why_says_nothing_of_a_suspension_that_is_over(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(Suspend(*lease(job), "nap", delay_ms=0))
    queue.fail(take(queue), "boom", retry_in=60)
    (delayed,) = reasons(queue, "a")
    assert delayed.due_at == queue.get("a").run_at


def test_the_calls_of_a_queue_send_signals_and_list_steps(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(*(Checkpoint(*lease(job), f"s{n}", result=raw("x" * 900_000)) for n in range(6)))
    assert queue.signal("a", "go", {"by": "ann"}) == 1
    assert queue.signal(job, "go") == 0
    found = queue.steps("a")
    assert [one.name for one in found.steps] == [f"s{n}" for n in range(6)]
    assert [(one.name, one.value) for one in found.signals] == [("go", raw({"by": "ann"}))]
    for call in (lambda: queue.steps("nobody"), lambda: queue.signal("nobody", "go")):
        with pytest.raises(JobNotFound):
            call()


def test_a_replay_from_a_step_that_cannot_be_says_why(queue: Queue, apply: Apply) -> None:
    job = running(queue)
    apply(Checkpoint(*lease(job), "one"), Checkpoint(*lease(job), "two"))
    with pytest.raises(Conflict, match="is leased: only dead and cancelled jobs"):
        queue.replay_from("a", "two")
    queue.fail(job, "boom", fatal=True)
    with pytest.raises(Conflict, match=r"has no step 'three' with the key 'k': `tenure steps a`"):
        queue.replay_from("a", "three", "k")
    queue.replay_from("a", "two")
    assert [one.name for one in queue.steps("a").steps] == ["one"]
    apply(undo(take(queue), "refund"))
    queue.cancel("a")
    with pytest.raises(Conflict, match="were undone: a plain replay starts it over"):
        queue.replay_from("a", "one")
    with pytest.raises(JobNotFound):
        queue.replay_from("nobody", "one")
