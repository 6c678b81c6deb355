"""Slots, schedules, maintenance and recounting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenure import ops, timetable
from tenure.engines.postgres.claim import sweep
from tenure.engines.postgres.enqueue import enqueue
from tenure.engines.postgres.rows import CANCELLED, DEAD, DONE
from tenure.engines.postgres.transaction import Transaction
from tenure.errors import InvalidInput, QueueNotFound, ScheduleNotFound, TenureError
from tenure.job import first_id
from tenure.ops import Answer

_decode_schedule = msgspec.json.Decoder(ops.Schedule).decode
MARKED_MS = 3600_000  # for which it is known that a batch was committed; also in forget_marks
_COUNTS = msgspec.structs.fields(ops.Counts)


def take_slot(tx: Transaction, batch: Sequence[ops.TakeSlot]) -> list[Answer]:
    sent = [
        tx.db.send(
            "take_slot", tx.given, op.scope, op.key, op.holder, op.ttl_ms, op.limit
        )
        for op in batch
    ]  # fmt: skip
    return [ops.Slots(count, held) for one in sent for count, held in one.fetchall()]


def drop_slot(tx: Transaction, batch: Sequence[ops.DropSlot]) -> list[Answer]:
    sent = [tx.db.send("drop_slot", tx.given, op.scope, op.key, op.holder) for op in batch]
    return [ops.Slots(count, False) for one in sent for (count,) in one.fetchall()]


def reconcile_slots(tx: Transaction, batch: Sequence[ops.ReconcileSlots]) -> list[Answer]:
    sent = [tx.db.send("recount_slots", tx.given, op.scope, op.key) for op in batch]
    return [ops.Corrected({"slots": by} if by else {}) for one in sent for (by,) in one.fetchall()]


def put_schedule(tx: Transaction, batch: Sequence[ops.PutSchedule]) -> list[Answer]:
    return [_put_schedule(tx, op) for op in batch]


def _put_schedule(tx: Transaction, op: ops.PutSchedule) -> Answer:
    old = _schedule(tx, op.schedule.name)
    tx.read_clock()
    try:
        new = timetable.put(op, old, tx.now)
    except InvalidInput as error:
        return error
    _save_schedule(tx, new)
    return ops.Ok()


def drop_schedule(tx: Transaction, batch: Sequence[ops.DropSchedule]) -> list[Answer]:
    return [
        ops.Ok() if tx.db.one("drop_schedule", op.name) else ScheduleNotFound(op.name)
        for op in batch
    ]


def fire(tx: Transaction, batch: Sequence[ops.Fire]) -> list[Answer]:
    return [_fire(tx, op) for op in batch]


def _fire(tx: Transaction, op: ops.Fire) -> Answer:
    schedule = _schedule(tx, op.name)
    if schedule is None:
        return ScheduleNotFound(op.name)
    tx.read_clock()
    try:
        firing = timetable.fire(op, schedule, tx.now)
    except InvalidInput as error:
        return error
    if firing is None:
        return ops.Fired(False)
    (answer,) = enqueue(tx, [ops.Enqueue(firing.jobs, "skip")])
    if isinstance(answer, TenureError):
        return answer
    _save_schedule(tx, firing.schedule)
    return ops.Fired(bool(firing.jobs))


def _schedule(tx: Transaction, name: str) -> ops.Schedule | None:
    row = tx.db.one("schedule", name)
    return None if row is None else _decode_schedule(row[0])


def _save_schedule(tx: Transaction, schedule: ops.Schedule) -> None:
    tx.db.send("put_schedule", schedule.name, msgspec.json.encode(schedule).decode())


def maintain(tx: Transaction, batch: Sequence[ops.Maintain]) -> list[Answer]:
    return [_maintain(tx, op) for op in batch]


def _maintain(tx: Transaction, op: ops.Maintain) -> Answer:
    tx.forget()
    tx.read_clock()
    queues = tx.db.all("all_queues")
    swept = [sweep(tx, number, op.limit) for number, _ in queues]
    promoted, leases, expired = (sum(kind) for kind in zip((0, 0, 0), *swept, strict=True))
    purged = sum(_purge(tx, number, op) for number, _ in queues)
    tx.forget()
    # What waits for others is done; the books come last, in the order in which all take them.
    tx.db.send("open_books", [name for _, name in queues], tx.given, True)
    for number, _ in queues:
        tx.db.send("drop_empty", number, op.limit)
    ended = int(tx.db.value("end_slots", tx.now, op.limit))
    tx.db.send("forget_marks", first_id(tx.now - MARKED_MS), op.limit)
    _forget_once(tx, op.limit)
    return ops.Maintained(promoted, leases, expired, ended, purged)


def _forget_once(tx: Transaction, limit: int) -> None:
    """Forget the keys that are old. Those that come later in the batch are used anew."""
    gone = [key for (key,) in tx.db.all("forget_once", tx.now - ops.ONCE_MS, limit)]
    again = sorted(tx.once.keys() & gone)
    if again:
        tx.once |= dict(tx.db.all("take_keys", tx.given, again))


def _purge(tx: Transaction, queue: int, op: ops.Maintain) -> int:
    purged = 0
    for code, keep_ms in (
        (DONE, op.keep_done_ms),
        (CANCELLED, op.keep_cancelled_ms),
        (DEAD, op.keep_dead_ms),
    ):
        if keep_ms is not None:
            old = tx.db.value("overdue", queue, code, tx.now - keep_ms, op.limit)
            for row in tx.load_places(old):
                tx.remove(row)
            tx.settle()
            tx.forget()
            purged += len(old)
    return purged


def reconcile(tx: Transaction, batch: Sequence[ops.Reconcile]) -> list[Answer]:
    return [_reconcile(tx, op) for op in batch]


def _reconcile(tx: Transaction, op: ops.Reconcile) -> Answer:
    """Recount lanes from their jobs; tenants and the queue follow by the same amounts."""
    row = tx.db.one("queue_id", op.queue)
    if row is None:
        return QueueNotFound(op.queue)
    tx.forget()
    off = tx.db.one("recount", row[0], op.tenant, op.group)
    assert off is not None
    counts = {field.name: by for field, by in zip(_COUNTS, off, strict=True)}
    return ops.Corrected({name: by for name, by in counts.items() if by})
