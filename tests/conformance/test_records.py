"""Records: side data beside the jobs, which expires by itself."""

from __future__ import annotations

from tenure import Queue
from tenure.errors import InvalidInput
from tenure.model import ops
from tenure.model.record_queries import ListRecords, every
from tenure.model.records import MAX_RECORD_BYTES, NewRecord, PutRecords, Record, Space
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply


def put(key: str, value: bytes | None = b"1", keep_ms: int | None = None) -> PutRecords:
    return PutRecords((NewRecord("audit", key, value, keep_ms),))


def listed(queue: Queue, space: Space = "audit", **bounds: object) -> list[Record]:
    found = store_of(queue).engine.read(ListRecords(space, **bounds))  # type: ignore[arg-type]
    assert isinstance(found, list)
    return found  # type: ignore[return-value]


def keys(queue: Queue, **bounds: object) -> list[str]:
    return [record.key for record in listed(queue, **bounds)]  # type: ignore[arg-type]


def test_a_record_is_stored_replaced_and_deleted(queue: Queue, apply: Apply) -> None:
    assert apply(put("a", b'{"n":1}')) == [ops.Ok()]
    assert listed(queue) == [Record("a", b'{"n":1}')]
    apply(put("a", '{"n":"é"}'.encode()))
    assert listed(queue) == [Record("a", '{"n":"é"}'.encode())]
    apply(put("a", None), put("unknown", None))
    assert listed(queue) == []


def test_records_of_other_spaces_are_left_alone(queue: Queue, apply: Apply) -> None:
    apply(put("a", b"1"), PutRecords((NewRecord("rate", "a", b"2"),)))
    apply(put("a", None))
    assert listed(queue) == []
    assert listed(queue, "rate") == [Record("a", b"2")]


def test_records_are_listed_in_the_order_of_their_keys(queue: Queue, apply: Apply) -> None:
    names = ["b", "B", "é", "a1", "\U0010fffe", "a", "z"]
    apply(*(put(name) for name in names))
    assert keys(queue) == sorted(names)
    assert keys(queue, newest_first=True) == sorted(names, reverse=True)
    assert keys(queue, first="a1", last="z") == ["a1", "b", "z"]
    assert keys(queue, first="a1", last="z", newest_first=True, limit=2) == ["z", "b"]
    assert keys(queue, first="z", last="a") == []


def test_many_records_are_read_in_parts(queue: Queue, apply: Apply) -> None:
    apply(PutRecords(tuple(NewRecord("rate", f"{n:04}", b"1") for n in range(1_100))))
    found = [record.key for record in every(store_of(queue).engine.read, "rate", "0050")]  # type: ignore[arg-type]
    assert found == [f"{n:04}" for n in range(50, 1_100)]


def test_an_expired_record_is_not_seen_and_is_deleted_in_steps(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    apply(
        *(put(f"{n}", keep_ms=1_000) for n in range(3)), put("kept"), put("longer", keep_ms=5_000)
    )
    clock.advance(0.999)
    assert len(keys(queue)) == 5
    clock.advance(0.001)
    assert keys(queue) == ["kept", "longer"]
    apply(ops.Maintain(limit=2), ops.Maintain(limit=2))
    assert keys(queue) == ["kept", "longer"]
    clock.advance(-10)  # what was deleted does not come back
    assert keys(queue) == ["kept", "longer"]


def test_a_record_that_is_written_again_lives_longer(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    apply(put("a", b"1", 1_000))
    clock.advance(0.5)
    apply(put("a", b"2", 1_000))
    clock.advance(0.5)
    apply(ops.Maintain())
    assert [(record.key, record.value) for record in listed(queue)] == [("a", b"2")]
    clock.advance(0.5)
    apply(ops.Maintain())
    assert listed(queue) == []


def test_a_record_that_is_too_large_is_rejected(queue: Queue, apply: Apply) -> None:
    good = NewRecord("audit", "a", b"1")
    large = NewRecord("audit", "b", b"1" * (MAX_RECORD_BYTES + 1))
    (answer,) = apply(PutRecords((good, large)))
    assert isinstance(answer, InvalidInput)
    assert listed(queue) == []
    apply(put("b", b"1" * MAX_RECORD_BYTES))
    assert len(listed(queue)[0].value) == MAX_RECORD_BYTES


def test_records_are_stored_with_the_rest_of_a_batch(queue: Queue, apply: Apply) -> None:
    queue.enqueue("mail", id="a")
    answers = apply(put("first"), ops.Cancel(("a",)), put("second"))
    assert answers == [ops.Ok(), ops.Changed(1), ops.Ok()]
    assert keys(queue) == ["first", "second"]
