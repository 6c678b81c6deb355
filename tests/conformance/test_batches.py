"""Batches: operations in one transaction, each atomic, none of them its neighbour's keeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import msgspec
import pytest

from tenure import (
    Duplicate,
    JobNotFound,
    LeaseLost,
    Queue,
    QueueNotFound,
    State,
    TenureError,
    exponential,
)
from tenure.features.errors.data import MuteError
from tenure.features.live_workers.data import Beat, LiveWorker
from tenure.model.job import NULL, Job, JobSpec
from tenure.model.ops import (
    Ack,
    Answers,
    Cancel,
    Changed,
    Claim,
    ClearLimit,
    Delete,
    DropSchedule,
    DropSlot,
    Enqueue,
    Enqueued,
    Entry,
    Extend,
    Fail,
    Fire,
    Import,
    Leased,
    Maintain,
    Maintained,
    Moved,
    Ok,
    Once,
    Op,
    Pause,
    Progress,
    PutSchedule,
    Reconcile,
    ReconcileSlots,
    Release,
    Replay,
    ReplayEdited,
    Resume,
    Schedule,
    SetLimit,
    Slots,
    TakeSlot,
    Update,
)
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.conformance.moves import fill, ids, state_of, take
from tests.conformance.state import all_jobs
from tests.support.feature_ops import of_feature
from tests.support.kinds import kinds_of

pytestmark = pytest.mark.over_http

EMPTY = msgspec.Raw(b"null")


def spec(job_id: str, **fields: object) -> JobSpec:
    return msgspec.structs.replace(JobSpec(job_id, "q", EMPTY), **fields)


@pytest.mark.queue_limit
def test_operations_are_answered_in_order(queue: Queue, apply: Apply, clock: ManualClock) -> None:
    now = clock.now_ms()
    answers = apply(
        Enqueue((spec("a"), spec("b"))),
        SetLimit("q", concurrency=5),
        Enqueue((spec("c"),)),
        TakeSlot("scope", "key", "h", 1000),
        Pause("q"),
        Claim(("q",), "w", 1000, limit=5),
        Resume("q"),
        Claim(("q",), "w", 1000, limit=2),
        DropSlot("scope", "key", "h"),
        Cancel(("c",)),
        Maintain(),
    )
    assert isinstance(answers[7], Leased)
    assert ids(answers[7].jobs) == ["a", "b"]
    assert answers[:7] == [
        Enqueued(["a", "b"], [True, True], now),
        Ok(),
        Enqueued(["c"], [True], now),
        Slots(1, held=True),
        Ok(),
        Leased([]),
        Ok(),
    ]
    assert answers[8:] == [Slots(0, held=False), Changed(1), Maintained()]


@pytest.mark.parametrize("parents", [("gone",), ("gone", "left")])
def test_a_job_that_ends_at_once_holds_no_key_of_the_next_call(
    queue: Queue, apply: Apply, parents: tuple[str, ...]
) -> None:
    queue.enqueue("q", id="gone")
    queue.cancel("gone")
    queue.enqueue("q", id="left")
    child = spec("child", after=parents, if_parent_fails="cancel", unique_key="k")
    first, second = apply(Enqueue((child,)), Enqueue((spec("next", unique_key="k"),)))
    assert isinstance(first, Enqueued)
    assert isinstance(second, Enqueued)
    assert (state_of(queue, "child"), state_of(queue, "next")) == (State.CANCELLED, State.PENDING)


def test_a_call_without_jobs_adds_none(apply: Apply, clock: ManualClock) -> None:
    none = Enqueued([], [], clock.now_ms())
    assert apply(Enqueue(())) == [none]
    assert apply(Once("k", (Enqueue(()), Enqueue(())))) == [Answers([none, none])]


def test_a_job_that_the_call_before_deleted_is_missing(queue: Queue, apply: Apply) -> None:
    queue.enqueue("q", id="a")
    assert apply(Delete(("a",)), Delete(("a",))) == [Changed(1), Changed(0, ("a",))]


def test_claims_of_two_queues_get_the_jobs_of_their_own(queue: Queue, apply: Apply) -> None:
    for name in ("q", "r"):
        fill(queue, 2, name=name, prefix=name)
    answers = apply(*(Claim((name,), "w", 1000, limit=2) for name in ("q", "r")))
    found = [ids(one.jobs) for one in answers if isinstance(one, Leased)]
    assert found == [["q0", "q1"], ["r0", "r1"]]


def test_an_operation_sees_what_those_before_it_did(queue: Queue, apply: Apply) -> None:
    answers = apply(
        Enqueue((spec("a", unique_key="k"),)),
        Cancel(("a",)),
        Enqueue((spec("b", unique_key="k"),)),
        Replay(("a",)),
        Delete(("b",)),
        Replay(("a",)),
        Claim(("q",), "w", 1000),
    )
    assert [type(one) for one in answers] == [
        Enqueued, Changed, Enqueued, Changed, Changed, Changed, Leased,
    ]  # fmt: skip
    assert answers[3:6] == [Changed(0, refused={"a": "b"}), Changed(1), Changed(1)]
    assert ids(all_jobs(queue)) == ["a"]
    assert state_of(queue, "a") is State.LEASED


def test_an_operation_that_fails_leaves_its_neighbours_alone(queue: Queue, apply: Apply) -> None:
    queue.enqueue("q", id="held")
    answers = apply(
        Enqueue((spec("a"),)),
        Enqueue((spec("b"), spec("held"))),
        Enqueue((spec("c"),)),
        Resume("nowhere"),
        Ack("nobody", 1),
        Ack("a", 1),
        Enqueue((spec("d"),)),
    )
    assert [type(one) for one in answers] == [
        Enqueued, Duplicate, Enqueued, QueueNotFound, JobNotFound, LeaseLost, Enqueued,
    ]  # fmt: skip
    assert ids(all_jobs(queue)) == ["d", "c", "a", "held"]


def test_enqueues_that_come_together_do_not_see_each_others_failures(
    queue: Queue, apply: Apply
) -> None:
    answers = apply(
        Enqueue((spec("a", unique_key="k"), spec("x"), spec("x"))),
        Enqueue((spec("b", unique_key="k"),)),
        Enqueue((spec("x"),)),
        Enqueue((spec("c", unique_key="k"),), "skip"),
        Enqueue((spec("d", unique_key="k"),)),
    )
    assert isinstance(answers[0], Duplicate)
    assert isinstance(answers[3], Enqueued)
    assert (answers[3].ids, answers[3].created) == (["b"], [False])
    assert isinstance(answers[4], Duplicate)
    assert answers[4].job_id == "b"
    assert ids(all_jobs(queue)) == ["x", "b"]


ENDS: dict[str, tuple[Callable[[str, int], Op], TenureError]] = {
    "ack": (lambda i, t: Ack(i, t, msgspec.Raw(b"1")), LeaseLost("a", "done")),
    "ack and remove": (lambda i, t: Ack(i, t, keep=False), JobNotFound("a")),
    "ack and enqueue": (lambda i, t: Ack(i, t, then=(spec("b"),)), LeaseLost("a", "done")),
    "fail": (lambda i, t: Fail(i, t, "boom"), LeaseLost("a", "pending")),
    "fail fatally": (lambda i, t: Fail(i, t, fatal=True), LeaseLost("a", "dead")),
    "release": (lambda i, t: Release(i, t), LeaseLost("a", "pending")),
}


@pytest.mark.parametrize(("end", "lost"), ENDS.values(), ids=ENDS.keys())
def test_who_comes_second_in_a_batch_is_told_what_became_of_the_job(
    queue: Queue, apply: Apply, end: Callable[[str, int], Op], lost: TenureError
) -> None:
    queue.enqueue("q", id="a")
    job = take(queue)
    token = job.token
    first, *others = apply(
        end("a", token),
        end("a", token),
        Ack("a", token),
        Fail("a", token),
        Release("a", token),
        Extend("a", token, 1000),
        Progress("a", token, 5),
    )
    assert isinstance(first, Ok | Moved)
    again = Moved(State.DONE, job.run_at) if lost == LeaseLost("a", "done") else lost
    second = again if isinstance(end("a", 1), Ack) else lost
    assert others == [second, again, lost, lost, lost, lost]


def test_the_holder_may_do_many_things_in_one_batch(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    queue.enqueue("q", id="a")
    job = take(queue)
    answers = apply(
        Progress("a", job.token, 10, "ten"),
        Progress("a", job.token, 20, "twenty"),
        Extend("a", job.token, 5_000),
        Extend("a", job.token, 7_000),
    )
    assert answers == [Ok()] * 4
    found = queue.get("a")
    assert (found.progress, found.note) == (20, "twenty")
    assert found.lease_until == clock.now_ms() + 7_000


@pytest.mark.queue_limit
def test_what_one_ack_frees_the_next_claim_of_the_batch_may_take(
    queue: Queue, apply: Apply
) -> None:
    queue.limits.set("q", concurrency=1)
    fill(queue, 2)
    queue.enqueue("q", id="child", after=["0"], priority=-1)
    job = take(queue)
    _, leased = apply(Ack(job.id, job.token), Claim(("q",), "w", 1000, limit=5))
    assert isinstance(leased, Leased)
    assert ids(leased.jobs) == ["child"]


def test_a_chain_may_be_enqueued_op_by_op_in_one_batch(queue: Queue, apply: Apply) -> None:
    apply(*[Enqueue((spec(str(n), after=(str(n - 1),) if n else ()),)) for n in range(20)])
    assert (queue.stats().ready, queue.stats().waiting) == (1, 19)


# Operations are data ----------------------------------------------------------------------------

RAW = msgspec.Raw(b'{"n":[1,null]}')
JOB = JobSpec(
    "a",
    "q",
    RAW,
    delay_ms=5,
    expires_in_ms=6,
    unique_key="k",
    after=("b",),
    if_parent_fails="run",
    backoff=exponential(60, factor=5),
)
SCHEDULE = Schedule("s", "* * * * *", JOB, 5, "Europe/Copenhagen", "all", 4)
WAITING = Job("a", "q", State.WAITING, RAW, 0, 1, 2, 3, 0, 3, after=("b", "c"))
ENTRY = Entry(WAITING, False, ("b",))
OPERATIONS: list[Op] = [
    Enqueue((JOB, JOB), "skip"),
    Claim(("q", "r"), "w", 1000, 5, "acme", ("g",)),
    Ack("a", 1),
    Ack("a", 1, RAW, (JOB,), keep=False),
    Fail("a", 1, "boom", "ValueError", "Traceback", 5, fatal=True),
    Extend("a", 1, 1000),
    Release("a", 1, 5),
    Progress("a", 1, 50, "halfway"),
    Cancel(("a", "b")),
    Replay(("a",)),
    *of_feature("RunNow", ("a",)),
    *of_feature("Checkpoint", "a", 1, "charge", "k", "undo", RAW, (JOB,), 5, 6),
    *of_feature("Suspend", "a", 1, "labels", "k", "gather", 5, (JOB,)),
    *of_feature("Recall", "a", 1, 5),
    *of_feature("Signal", ("a",), "approval", RAW),
    *of_feature("ReplayFrom", ("a",), "charge", "k"),
    Delete(("a",), (State.DONE, State.DEAD)),
    Update(("a",), priority=5, delay_ms=1_000, payload=RAW),
    ReplayEdited("a", "b", priority=5, delay_ms=1_000, payload=RAW),
    MuteError("0123456789ab", muted=False),
    Beat(LiveWorker("w", ("q",), "host", 1, "1.0", 2, ("a",), 1, 3, 4), 20_000),
    SetLimit("q", "*", "g", 1, 2, 3, 4),
    ClearLimit("q", "acme"),
    Pause("q"),
    Resume("q", "acme", "g"),
    TakeSlot("scope", "key", "holder", 1000, 5),
    DropSlot("scope", "key", "holder"),
    PutSchedule(SCHEDULE),
    DropSchedule("s"),
    Fire("s", 1, "fired"),
    Maintain(5, 1, 2, 3),
    Reconcile("q", "acme", "g"),
    ReconcileSlots("scope", "key"),
    Once("key", (Ack("a", 1), Pause("q"))),
    Import(
        (Entry(Job("a", "q", State.WAITING, RAW, 0, 1, 2, 3, 0, 3, after=("b",)), False, ("b",)),)
    ),
]


def test_this_test_knows_every_operation() -> None:
    assert {type(op) for op in OPERATIONS} == set(kinds_of(Op))


SENT = [op for op in OPERATIONS if not isinstance(op, Once)]  # whose parts are sent


@pytest.mark.parametrize("op", SENT, ids=lambda op: type(op).__name__)
def test_an_operation_is_data_that_can_be_sent(op: Op) -> None:
    anything: Any = Union[tuple(kinds_of(Op))]  # noqa: UP007
    assert msgspec.json.decode(msgspec.json.encode(op), type=anything) == op


def test_claims_of_one_batch_give_small_and_large_payloads_alike(
    queue: Queue, apply: Apply
) -> None:
    payloads = ["é" * 9_000, "x" * 20_000, {"n": 1}, ['\\"\n', None], "y" * 200_000, 6]
    for payload in payloads:
        queue.enqueue("q", payload)
    answers = apply(*[Claim(("q",), "w", 60_000, 2) for _ in range(3)])
    leased = [job for answer in answers if isinstance(answer, Leased) for job in answer.jobs]
    assert [job.payload for job in leased] == payloads


def test_each_claim_of_a_batch_looks_after_as_many_jobs_as_it_would_alone(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(sweep=1)
    for name in ("a", "b", "c"):
        queue.enqueue("q", id=name, delay=1)
    clock.advance(1)
    answers = store_of(queue).committer.run([Claim(("q",), "w", 60_000, 1) for _ in range(3)])
    leased = [job.id for answer in answers if isinstance(answer, Leased) for job in answer.jobs]
    assert sorted(leased) == ["a", "b", "c"]


def test_a_job_that_follows_an_ack_and_waits_for_one_later_in_the_batch_is_told(
    queue: Queue, apply: Apply
) -> None:
    for name in ("a", "b"):
        queue.enqueue("mail", None, id=name)
    first, second = queue.claim("mail", limit=2)
    child = JobSpec("child", "mail", NULL, after=("b",))
    apply(Ack(first.id, first.token, then=(child,)), Ack(second.id, second.token))
    assert queue.get("child").state == "pending"


def test_an_ack_that_is_refused_says_what_the_acks_before_it_made_of_the_job(
    queue: Queue, apply: Apply
) -> None:
    queue.enqueue("mail", None, id="parent")
    queue.enqueue("mail", None, id="child", after=["parent"])
    (job,) = queue.claim("mail")
    _, refused = apply(Ack(job.id, job.token), Ack("child", job.token))
    assert refused == LeaseLost("child", "pending")


def test_an_ack_goes_through_after_one_whose_follower_waits_for_a_job_that_failed(
    queue: Queue, apply: Apply
) -> None:
    for name in ("failed", "a", "b"):
        queue.enqueue("mail", None, id=name)
    queue.cancel(["failed"])
    first, second = queue.claim("mail", limit=2)
    follower = JobSpec("follower", "mail", NULL, after=("failed",), if_parent_fails="cancel")
    answers = apply(Ack(first.id, first.token, then=(follower,)), Ack(second.id, second.token))
    assert answers == [Ok(), Ok()]
    assert [queue.get(name).state for name in ("a", "b")] == ["done", "done"]
    assert queue.get("follower").state == "cancelled"


def test_operations_that_were_done_before_under_their_key_leave_nothing_behind(
    queue: Queue, apply: Apply
) -> None:
    once = Once("k", (DropSlot("team", "acme", "a"), DropSlot("team", "bolt", "a")))
    for _ in range(2):
        assert apply(once) == [Answers([Slots(0, False), Slots(0, False)])]
