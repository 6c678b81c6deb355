"""Operations under a key happen once, however often they are asked for."""

from __future__ import annotations

import pytest
from msgspec import Raw

from tenure import Conflict, Duplicate, Job, LeaseLost, Queue, State
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Op
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.conformance.moves import take
from tests.conformance.state import nothing_changes

pytestmark = pytest.mark.over_http


def enqueue(*ids: str) -> ops.Enqueue:
    return ops.Enqueue(tuple(JobSpec(id, "q", NULL) for id in ids))


def answers(apply: Apply, key: str, *batch: object) -> list[ops.Answer]:
    (answer,) = apply(ops.Once(key, batch))  # type: ignore[arg-type]
    assert isinstance(answer, ops.Answers)
    return answer.answers


def test_the_first_time_the_operations_are_run_in_order(queue: Queue, apply: Apply) -> None:
    first, second = answers(apply, "k", enqueue("a", "b"), ops.Claim(("q",), "w", 1000, 1))
    assert isinstance(first, ops.Enqueued)
    assert first.ids == ["a", "b"]
    assert isinstance(second, ops.Leased)
    assert [job.id for job in second.jobs] == ["a"]


def test_the_second_time_the_answer_is_the_same_and_nothing_happens(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    batch = (
        enqueue("a", "b"),
        enqueue("b"),
        ops.Claim(("q",), "w", 60_000, 1),
        ops.Extend("b", 99, 1000),
        ops.SetLimit("q", concurrency=5),
        ops.TakeSlot("s", "k", "h", 1000),
    )
    first = answers(apply, "k", *batch)
    clock.advance(5)
    with nothing_changes(queue):
        assert answers(apply, "k", *batch) == first
    assert isinstance(first[1], Duplicate)
    assert isinstance(first[3], LeaseLost)
    assert first[1].job_id == "b"


def test_an_ack_whose_answer_was_lost_can_be_repeated(queue: Queue, apply: Apply) -> None:
    queue.enqueue("q", id="a")
    job = take(queue)
    ack = ops.Ack(job.id, job.token)
    assert answers(apply, "k", ack) == [ops.Ok()]
    assert answers(apply, "k", ack) == [ops.Ok()]
    assert answers(apply, "another", ack) == [ops.Moved(State.DONE, job.run_at)]
    assert queue.get("a").state is State.DONE


def test_keys_of_one_batch_are_told_apart(queue: Queue, apply: Apply) -> None:
    found = apply(
        ops.Once("k", (enqueue("a"),)),
        ops.Once("k", (enqueue("b"),)),
        ops.Once("l", (enqueue("c"),)),
    )
    first, again, other = found
    assert isinstance(first, ops.Answers)
    assert isinstance(other, ops.Answers)
    assert type(again) is Conflict  # the same key, and another job
    assert sorted(job.id for job in queue.jobs().jobs) == ["a", "c"]


OTHERS = {
    "more": (enqueue("a"), enqueue("b")),
    "fewer": (),
    "another job": (enqueue("b"),),
    "another payload": (ops.Enqueue((JobSpec("a", "q", Raw(b"1")),)),),
    "another kind of operation": (ops.Cancel(("a",)),),
    "another argument": (ops.Enqueue((JobSpec("a", "q", NULL),), "skip"),),
}


@pytest.mark.one_store
@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_a_key_that_was_used_for_other_operations_is_a_conflict(
    queue: Queue, apply: Apply, others: tuple[Op, ...]
) -> None:
    first = answers(apply, "k", enqueue("a"))
    with nothing_changes(queue):
        (answer,) = apply(ops.Once("k", others))
    assert type(answer) is Conflict
    assert "other operations" in answer.message
    assert answers(apply, "k", enqueue("a")) == first


@pytest.mark.one_store
def test_a_key_that_was_used_for_no_operations_is_not_free(queue: Queue, apply: Apply) -> None:
    answers(apply, "k")
    (answer,) = apply(ops.Once("k", (enqueue("a"),)))
    assert type(answer) is Conflict
    assert answers(apply, "k") == []


def test_a_conflict_about_a_key_leaves_its_neighbours_alone(queue: Queue, apply: Apply) -> None:
    answers(apply, "k", enqueue("a"))
    before, _, after = apply(enqueue("b"), ops.Once("k", (enqueue("c"),)), enqueue("d"))
    assert isinstance(before, ops.Enqueued)
    assert isinstance(after, ops.Enqueued)
    assert sorted(job.id for job in queue.jobs().jobs) == ["a", "b", "d"]


def test_nothing_at_all_can_be_done_once(apply: Apply) -> None:
    assert answers(apply, "k") == []


@pytest.mark.usefixtures("needs_durability")
def test_a_key_outlives_the_handle(open_queue: OpenQueue) -> None:
    first = open_queue()
    store_of(first).committer.run([ops.Once("k", (enqueue("a"),))])
    first.close()
    second = open_queue()
    (answer,) = store_of(second).committer.run([ops.Once("k", (enqueue("a"),))])
    assert isinstance(answer, ops.Answers)
    (answer,) = store_of(second).committer.run([ops.Once("k", (enqueue("b"),))])
    assert type(answer) is Conflict
    assert second.stats("q").ready == 1


def test_a_key_is_forgotten_in_time(queue: Queue, apply: Apply, clock: ManualClock) -> None:
    answers(apply, "k", enqueue("a"))
    clock.advance(ops.ONCE_MS / 1000 - 1)
    queue.maintain()
    with nothing_changes(queue):
        answers(apply, "k", enqueue("a"))
    clock.advance(1)
    queue.maintain()
    answers(apply, "k", enqueue("b"))
    assert queue.stats("q").ready == 2


def test_a_key_that_was_forgotten_just_before_is_used_anew(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    answers(apply, "k", enqueue("a"))
    clock.advance(ops.ONCE_MS / 1000)
    apply(ops.Maintain(), ops.Once("k", (enqueue("b"),)))
    assert queue.stats("q").ready == 2
    with nothing_changes(queue):
        answers(apply, "k", enqueue("b"))


def test_a_key_that_was_forgotten_under_another_key_just_before_is_used_anew(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    answers(apply, "k", enqueue("a"))
    clock.advance(ops.ONCE_MS / 1000)
    apply(ops.Once("upkeep", (ops.Maintain(),)), ops.Once("k", (enqueue("b"),)))
    assert queue.stats("q").ready == 2


def test_a_key_is_kept_for_a_quarter_of_an_hour(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    """A caller may retry for as long, whatever happened to the answer."""
    answers(apply, "k", enqueue("a"))
    clock.advance(15 * 60 - 0.001)
    queue.maintain()
    with nothing_changes(queue):
        answers(apply, "k", enqueue("a"))
    clock.advance(0.001)
    queue.maintain()
    answers(apply, "k", enqueue("b"))
    assert queue.stats("q").ready == 2


@pytest.mark.parametrize("before", [0, 1])
def test_the_key_of_a_claim_is_kept_as_long(
    queue: Queue, apply: Apply, clock: ManualClock, before: int
) -> None:
    queue.enqueue("q", id="a")
    call = (*[enqueue("b")] * before, ops.Claim(("q",), "w", 3_600_000, 1))
    *_, first = answers(apply, "k", *call)
    assert isinstance(first, ops.Leased)
    clock.advance(15 * 60)
    queue.maintain()
    queue.enqueue("q", id="c")
    *_, second = answers(apply, "k", ops.Claim(("q",), "w", 3_600_000, 9))
    assert isinstance(second, ops.Leased)
    assert [job.id for job in second.jobs] == ["b", "c"][1 - before :]


# Claims -----------------------------------------------------------------------------------------


def claimed(apply: Apply) -> list[Job]:
    (answer,) = answers(apply, "k", ops.Claim(("q",), "w", 60_000, 3))
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def test_a_repeated_claim_returns_the_jobs_that_it_still_holds(queue: Queue, apply: Apply) -> None:
    for n in range(4):
        queue.enqueue("q", {"n": n}, id=str(n))
    first = claimed(apply)
    assert [job.payload for job in first] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with nothing_changes(queue):
        assert claimed(apply) == first
    queue.ack(first[0])
    queue.release(first[1])
    again = claimed(apply)
    assert again == first[2:]
    queue.ack(again[0])
    assert claimed(apply) == []


def test_a_repeated_claim_does_not_return_a_job_that_another_holds(
    queue: Queue, apply: Apply
) -> None:
    queue.enqueue("q", "payload", id="a")
    (first,) = claimed(apply)
    queue.release(first)
    assert take(queue, lease=60).token != first.token
    assert claimed(apply) == []


def test_what_a_claim_stores_under_its_key_is_not_the_payload(queue: Queue, apply: Apply) -> None:
    """The job is gone, so only the key could still have it."""
    queue.enqueue("q", "payload", id="a")
    assert claimed(apply)[0].payload == "payload"
    queue.delete("a")
    assert claimed(apply) == []
