"""Slots, schedules, maintenance and recounting."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenure import ops, timetable
from tenure.engines.sqlite.claim import sweep
from tenure.engines.sqlite.enqueue import enqueue
from tenure.engines.sqlite.rows import CANCELLED, DEAD, DONE, Row
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import InvalidInput, QueueNotFound, ScheduleNotFound, TenureError
from tenure.ops import Answer

_decode_schedule = msgspec.json.Decoder(ops.Schedule).decode
_COUNTS = msgspec.structs.fields(ops.Counts)


def take_slot(tx: Transaction, batch: Sequence[ops.TakeSlot]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:
        count = _current(tx, op.scope, op.key)
        had = tx.db.one("has_slot", op.scope, op.key, op.holder) is not None
        held = op.limit is None or count - had < op.limit
        if held:
            tx.db.run("put_slot", op.scope, op.key, op.holder, tx.now + op.ttl_ms)
        elif had:
            tx.db.run("drop_slot", op.scope, op.key, op.holder)
        count += held - had
        _set_count(tx, op.scope, op.key, count)
        answers.append(ops.Slots(count, held))
    return answers


def drop_slot(tx: Transaction, batch: Sequence[ops.DropSlot]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:
        count = _current(tx, op.scope, op.key)
        count -= tx.db.run("drop_slot", op.scope, op.key, op.holder)
        _set_count(tx, op.scope, op.key, count)
        answers.append(ops.Slots(count, False))
    return answers


def _current(tx: Transaction, scope: str, key: str) -> int:
    """How many slots are held, once those that ended are gone."""
    row = tx.db.one("slot_count", scope, key)
    ended = tx.db.run("drop_ended_slots", scope, key, tx.now)
    return (0 if row is None else int(row[0])) - ended


def _set_count(tx: Transaction, scope: str, key: str, count: int) -> None:
    if count:
        tx.db.run("set_slot_count", scope, key, count)
    else:
        tx.db.run("drop_slot_count", scope, key)


def reconcile_slots(tx: Transaction, batch: Sequence[ops.ReconcileSlots]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:
        counted = _current(tx, op.scope, op.key)
        row = tx.db.one("recount_slots", op.scope, op.key)
        assert row is not None
        _set_count(tx, op.scope, op.key, row[0])
        by = row[0] - counted
        answers.append(ops.Corrected({"slots": by} if by else {}))
    return answers


def put_schedule(tx: Transaction, batch: Sequence[ops.PutSchedule]) -> list[Answer]:
    return [_put_schedule(tx, op) for op in batch]


def _put_schedule(tx: Transaction, op: ops.PutSchedule) -> Answer:
    try:
        new = timetable.put(op, _schedule(tx, op.schedule.name), tx.now)
    except InvalidInput as error:
        return error
    _save_schedule(tx, new)
    return ops.Ok()


def drop_schedule(tx: Transaction, batch: Sequence[ops.DropSchedule]) -> list[Answer]:
    return [
        ops.Ok() if tx.db.run("drop_schedule", op.name) else ScheduleNotFound(op.name)
        for op in batch
    ]


def fire(tx: Transaction, batch: Sequence[ops.Fire]) -> list[Answer]:
    return [_fire(tx, op) for op in batch]


def _fire(tx: Transaction, op: ops.Fire) -> Answer:
    schedule = _schedule(tx, op.name)
    if schedule is None:
        return ScheduleNotFound(op.name)
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
    tx.db.run("put_schedule", schedule.name, msgspec.json.encode(schedule).decode())


def maintain(tx: Transaction, batch: Sequence[ops.Maintain]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:
        queues = [queue for (queue,) in tx.db.all("all_queues")]
        swept = [sweep(tx, queue, op.limit) for queue in queues]
        promoted, leases, expired = (sum(kind) for kind in zip((0, 0, 0), *swept, strict=True))
        purged = sum(_purge(tx, queue, op) for queue in queues)
        tx.books.forget()
        tx.db.run("drop_empty_lanes", op.limit)
        tx.db.run("drop_empty_tenants", op.limit)
        ended = tx.db.all("ended_slots", tx.now, op.limit)
        for scope, key, holder in ended:
            tx.db.run("drop_slot", scope, key, holder)
            row = tx.db.one("slot_count", scope, key)
            _set_count(tx, scope, key, (row[0] if row else 1) - 1)
        tx.db.run("drop_once", tx.now - ops.ONCE_MS, op.limit)
        answers.append(ops.Maintained(promoted, leases, expired, len(ended), purged))
    return answers


def _purge(tx: Transaction, queue: int, op: ops.Maintain) -> int:
    purged = 0
    for code, keep_ms in (
        (DONE, op.keep_done_ms),
        (CANCELLED, op.keep_cancelled_ms),
        (DEAD, op.keep_dead_ms),
    ):
        if keep_ms is not None:
            rows = tx.db.all("rows_of_state", queue, code, tx.now - keep_ms, op.limit)
            tx.remove([Row(*row) for row in rows])
            tx.settle()
            purged += len(rows)
    return purged


def reconcile(tx: Transaction, batch: Sequence[ops.Reconcile]) -> list[Answer]:
    return [_reconcile(tx, op) for op in batch]


def _reconcile(tx: Transaction, op: ops.Reconcile) -> Answer:
    """Recount lanes from their jobs, tenants from their lanes, the queue from its tenants."""
    queue = tx.books.queue(op.queue)
    if queue is None:
        return QueueNotFound(op.queue)
    tx.books.flush()
    scope = (queue.id, op.tenant, op.group)
    before = _counted(tx, queue.id, op)
    found = {(lane, code): n for lane, code, n in tx.db.all("recount_lanes", *scope)}
    for (lane_id,) in tx.db.all("lanes_to_recount", *scope):
        lane = tx.books.lane_by_id(lane_id)
        lane.counts = [found.get((lane_id, code), 0) for code in range(len(_COUNTS))]
        lane.head_known, lane.dirty = False, True
    tx.books.forget()
    tx.db.run("recount_tenants", queue.id, op.tenant)
    who = "*" if op.tenant is None else op.tenant
    for statement in ("open_lanes", "recount_open_lanes", "open_tenants"):
        tx.db.run(statement, queue.id, who)
    tx.db.run("recount_queue", queue.id)
    after = _counted(tx, queue.id, op)
    off = {field.name: b - a for field, a, b in zip(_COUNTS, before, after, strict=True)}
    return ops.Corrected({name: by for name, by in off.items() if by})


def _counted(tx: Transaction, queue: int, op: ops.Reconcile) -> tuple[int, ...]:
    """The counters as they stand, of what the operation names."""
    if op.group is not None:
        row = tx.db.one("counted_in_group", queue, op.tenant, op.group)
    elif op.tenant is not None:
        row = tx.db.one("counted_in_tenant", queue, op.tenant)
    else:
        row = tx.db.one("counted_in_queue", queue)
    return row or (0,) * len(_COUNTS)
