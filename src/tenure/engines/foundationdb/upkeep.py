"""Slots, schedules, maintenance and recounting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from tenure import ops, timetable
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.aside import put_back
from tenure.engines.foundationdb.clocks import by_the_store, now_of
from tenure.engines.foundationdb.enqueue import enqueue
from tenure.engines.foundationdb.operator import knows, recount_leases, remove
from tenure.engines.foundationdb.record import Record, decode_record
from tenure.engines.foundationdb.sweep import sweep
from tenure.engines.foundationdb.transact import TooLarge
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import InvalidInput, QueueNotFound, ScheduleNotFound, TenureError
from tenure.job import State
from tenure.ops import Answer

_decode_schedule = msgspec.json.Decoder(ops.Schedule).decode
R = TypeVar("R")

_STEP = 250  # jobs that one transaction of maintenance looks after
_UNDER_WAY = 1_000  # reads of a recount

_DID_VERSIONS = 3600 * 1_000_000  # an hour
_NAMES = {"active": "ready"}


class Run(Protocol):
    """Runs something in a transaction."""

    def __call__(self, work: Callable[[Tx], R], /) -> R: ...


# Slots ------------------------------------------------------------------------------------------


def take_slot(tx: Tx, op: ops.TakeSlot) -> Answer:
    slots = _current_slots(tx, op.scope, op.key)
    others = len(slots) - (op.holder in slots)
    held = op.limit is None or others < op.limit
    _drop(tx, op.scope, op.key, op.holder, slots)
    if held:
        expires_at = tx.now + op.ttl_ms
        tx.set(tx.keys.pack(k.SLOT, op.scope, op.key, op.holder), str(expires_at).encode())
        tx.set(tx.keys.pack(k.SLOT_END, expires_at, op.scope, op.key, op.holder))
    return ops.Slots(others + held, held)


def drop_slot(tx: Tx, op: ops.DropSlot) -> Answer:
    slots = _current_slots(tx, op.scope, op.key)
    _drop(tx, op.scope, op.key, op.holder, slots)
    return ops.Slots(len(slots), False)


def _current_slots(tx: Tx, scope: str, key: str) -> dict[str, int]:
    """Who holds a slot, and until when; those that ended are taken away."""
    slots = read_slots(tx, scope, key, tx.tr)
    for holder in [h for h, expires_at in slots.items() if expires_at <= tx.now]:
        _drop(tx, scope, key, holder, slots)
    return slots


def read_slots(tx: Tx, scope: str, key: str, reader: Any) -> dict[str, int]:
    rows = reader.get_range(*tx.keys.span(k.SLOT, scope, key))
    return {tx.keys.unpack(bytes(row.key))[-1]: int(bytes(row.value)) for row in rows}


def _drop(tx: Tx, scope: str, key: str, holder: str, slots: dict[str, int]) -> None:
    expires_at = slots.pop(holder, None)
    if expires_at is not None:
        tx.clear(tx.keys.pack(k.SLOT, scope, key, holder))
        tx.clear(tx.keys.pack(k.SLOT_END, expires_at, scope, key, holder))


# Schedules --------------------------------------------------------------------------------------


def read_schedules(tx: Tx) -> list[ops.Schedule]:
    found: dict[str, list[bytes]] = {}
    for row in tx.tr.snapshot.get_range(*tx.keys.span(k.SCHEDULE)):
        name, _ = tx.keys.unpack(bytes(row.key))
        found.setdefault(name, []).append(bytes(row.value))
    return [_decode_schedule(b"".join(parts)) for parts in found.values()]


def _schedule(tx: Tx, name: str) -> ops.Schedule | None:
    rows = list(tx.tr.get_range(*tx.keys.span(k.SCHEDULE, name)))
    return _decode_schedule(b"".join(bytes(row.value) for row in rows)) if rows else None


def _save(tx: Tx, schedule: ops.Schedule) -> None:
    tx.tells = True
    tx.clear_span(k.SCHEDULE, schedule.name)
    tx.put_parts(msgspec.json.encode(schedule), k.SCHEDULE, schedule.name)


def put_schedule(tx: Tx, op: ops.PutSchedule) -> Answer:
    try:
        new = timetable.put(op, _schedule(tx, op.schedule.name), now_of(tx))
    except InvalidInput as error:
        return error
    _save(tx, new)
    return ops.Ok()


def drop_schedule(tx: Tx, op: ops.DropSchedule) -> Answer:
    if _schedule(tx, op.name) is None:
        return ScheduleNotFound(op.name)
    tx.clear_span(k.SCHEDULE, op.name)
    return ops.Ok()


def fire(tx: Tx, op: ops.Fire) -> Answer:
    with by_the_store(tx):
        return _fire(tx, op)


def _fire(tx: Tx, op: ops.Fire) -> Answer:
    schedule = _schedule(tx, op.name)
    if schedule is None:
        return ScheduleNotFound(op.name)
    try:
        firing = timetable.fire(op, schedule, tx.now)
    except InvalidInput as error:
        return error
    if firing is None:
        return ops.Fired(False)
    answer = enqueue(tx, ops.Enqueue(firing.jobs, "skip"))
    if isinstance(answer, TenureError):
        return answer
    _save(tx, firing.schedule)
    return ops.Fired(bool(firing.jobs))


# Maintenance ------------------------------------------------------------------------------------


def queues(tx: Tx) -> list[str]:
    """The names of all queues."""
    return [name for (name,) in tx.scan(*tx.keys.span(k.QUEUE))]


def maintain(run: Run, op: ops.Maintain) -> ops.Maintained:
    """Do what time asks for, in as many transactions as `run` makes of it."""
    names = run(queues)
    promoted = leases = expired = 0
    for queue in names:
        found = _sweep(run, queue, op.limit)
        promoted, leases, expired = promoted + found[0], leases + found[1], expired + found[2]
    purged = 0
    for queue in names:
        for state, keep_ms in (
            (State.DONE, op.keep_done_ms),
            (State.CANCELLED, op.keep_cancelled_ms),
            (State.DEAD, op.keep_dead_ms),
        ):
            if keep_ms is not None:
                purged += _purge(run, queue, state, keep_ms, op.limit)
    slots = run(lambda tx: _drop_ended_slots(tx, op.limit))
    run(_forget)
    return ops.Maintained(promoted, leases, expired, slots, purged)


def _sweep(run: Run, queue: str, limit: int) -> tuple[int, int, int]:
    """At most so many of each kind, a step at a time."""
    total = [0, 0, 0]
    step = _STEP
    while True:
        most = [min(step, limit - so_far) for so_far in total]
        try:
            found = run(partial(_sweep_some, queue=queue, most=most))
        except TooLarge:
            if step == 1:
                raise
            step //= 2
            continue
        total = [so_far + more for so_far, more in zip(total, found, strict=True)]
        if not any(0 < most[n] <= found[n] for n in range(3)):
            return total[0], total[1], total[2]


def _sweep_some(tx: Tx, *, queue: str, most: list[int]) -> tuple[int, int, int]:
    return sweep(tx, queue, *most)


def _purge(run: Run, queue: str, state: State, keep_ms: int, limit: int) -> int:
    """Remove the oldest jobs of a final state."""

    def step(tx: Tx, *, most: int) -> int:
        begin, _ = tx.keys.span(k.ENDED, queue, state.value)
        end = tx.keys.pack(k.ENDED, queue, state.value, tx.now - keep_ms + 1)
        ids = [key[-1] for key in tx.scan(begin, end, limit=most)]
        tx.prefetch(ids)
        tx.prefetch_children(ids)
        for job_id in ids:
            held = tx.job(job_id)
            if held is not None and held.record.state is state:
                remove(tx, held)
        return len(ids)

    total = 0
    while total < limit:
        most = min(_STEP, limit - total)
        found = run(partial(step, most=most))
        total += found
        if found < most:
            break
    return total


def _drop_ended_slots(tx: Tx, limit: int) -> int:
    begin, _ = tx.keys.span(k.SLOT_END)
    ended = list(tx.scan(begin, tx.keys.pack(k.SLOT_END, tx.now + 1), limit=limit))
    count = 0
    for expires_at, scope, key, holder in ended:
        slot = tx.keys.pack(k.SLOT, scope, key, holder)
        if tx.tr.get(slot).value == str(expires_at).encode():
            tx.clear(slot)
            count += 1
        tx.clear(tx.keys.pack(k.SLOT_END, expires_at, scope, key, holder))
    return count


def _forget(tx: Tx) -> None:
    """Forget the answers of operations that were done once long ago, and the commits of programs
    that never came back to ask for them."""
    begin, _ = tx.keys.span(k.ONCE_AT)
    end = tx.keys.pack(k.ONCE_AT, tx.now - ops.ONCE_MS + 1)
    for at, key in tx.scan(begin, end, limit=_STEP):
        tx.clear_span(k.ONCE, key)
        tx.clear(tx.keys.pack(k.ONCE_AT, at, key))
    for row in tx.tr.snapshot.get_range(*tx.keys.span(k.DID), limit=_STEP):
        version = int.from_bytes(bytes(row.value)[:8], "big")
        if version < tx.version - _DID_VERSIONS:
            tx.clear(bytes(row.key))


# Recounting -------------------------------------------------------------------------------------


def reconcile(tx: Tx, op: ops.Reconcile) -> Answer:
    """Recount jobs, and add what the counters of the same moment are off by. Whatever others add
    meanwhile comes on top, so nothing need be depended on."""
    if not knows(tx, op.queue):
        return QueueNotFound(op.queue)
    tx.flush()
    found = _recount(tx, op)
    counted = _counted(tx, op)
    corrected: Counter[str] = Counter()
    for key in found.keys() | counted.keys():
        by = found[key] - counted[key]
        tx.add(tx.keys.pack(*key), by)
        if len(key) == 3 + (op.tenant is not None) + (op.group is not None):
            corrected[key[-1]] += by
    if op.tenant is None and tx.rules(op.queue).limits:
        recount_leases(tx, op.queue)
        put_back(tx, op.queue, None)
    return ops.Corrected({_NAMES.get(name, name): by for name, by in corrected.items() if by})


def _recount(tx: Tx, op: ops.Reconcile) -> Counter[tuple[Any, ...]]:
    lanes: Counter[tuple[str, str, str]] = Counter()
    for one in _records(tx, op.queue):
        lanes[one.tenant, one.group, one.counted_as] += 1
    found: Counter[tuple[Any, ...]] = Counter()
    for (tenant, group, what), count in lanes.items():
        keys: list[tuple[Any, ...]] = [
            (k.QUEUE_COUNT, op.queue, what),
            (k.TENANT_COUNT, op.queue, tenant, what),
            (k.GROUP_COUNT, op.queue, tenant, group, what),
        ]
        for key in keys:
            if _concerns(op, key):
                found[key] += count
    return found


def _records(tx: Tx, queue: str) -> Iterator[Record]:
    """All jobs of a queue, with many reads under way at once: there are 5 s for all of them.
    Claims on them are not looked at; a job that is leased is counted as when it was ready."""
    asked: deque[Any] = deque()
    for key in tx.scan(*tx.keys.span(k.LISTED, queue)):
        asked.append(tx.tr.snapshot.get(tx.keys.pack(k.JOB, key[-1])))
        if len(asked) > _UNDER_WAY:
            yield decode_record(bytes(asked.popleft().value))
    for one in asked:
        yield decode_record(bytes(one.value))


def _counted(tx: Tx, op: ops.Reconcile) -> Counter[tuple[Any, ...]]:
    counted: Counter[tuple[Any, ...]] = Counter()
    for kind in (k.QUEUE_COUNT, k.TENANT_COUNT, k.GROUP_COUNT):
        for row in tx.tr.snapshot.get_range(*tx.keys.span(kind, op.queue)):
            key = (kind, *tx.keys.unpack(bytes(row.key)))
            if _concerns(op, key):
                counted[key] = int.from_bytes(bytes(row.value), "little", signed=True)
    return counted


def _concerns(op: ops.Reconcile, key: tuple[Any, ...]) -> bool:
    """Whether a counter is of what is to be recounted."""
    if op.tenant is None:
        return True
    if op.group is None:
        return len(key) > 3 and key[2] == op.tenant
    return len(key) > 4 and key[2:4] == (op.tenant, op.group)


def reconcile_slots(tx: Tx, op: ops.ReconcileSlots) -> Answer:
    """Slots are counted by looking."""
    _current_slots(tx, op.scope, op.key)
    return ops.Corrected({})
