"""Maintenance and recounting."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any, Protocol, TypeVar

from tenure.core import upkeep
from tenure.core.upkeep import Look, Swept
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb import side_records
from tenure.engines.foundationdb.parking import put_back
from tenure.engines.foundationdb.record import Record, decode_record, total_of
from tenure.engines.foundationdb.transact import TooLarge
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import QueueNotFound
from tenure.model import ops
from tenure.model.job import State
from tenure.model.ops import Answer

R = TypeVar("R")

_STEP = 250  # jobs per transaction of maintenance
_UNDER_WAY = 1_000  # concurrent reads of a recount

_DID_VERSIONS = 3600 * 1_000_000  # an hour
_NAMES = {"active": "ready"}


class Run(Protocol):
    """Runs something in a transaction."""

    def __call__(self, work: Callable[[Transaction], R], /) -> R: ...


# Maintenance ------------------------------------------------------------------------------------


class Upkeep:
    """The steps of maintenance, each in as many transactions as `run` splits it into."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def look(self, op: ops.Maintain) -> Look:
        return self._run(partial(_look, op=op))

    def sweep(self, queue: str, limit: int) -> Swept:
        """Sweep in steps; in smaller steps, if one does not fit into a transaction."""
        total = Swept(0, 0, 0)
        step = _STEP
        while True:
            most = Swept(*(min(step, limit - so_far) for so_far in total))
            try:
                found = self._run(partial(upkeep.sweep, queue=queue, most=most))
            except TooLarge:
                if step == 1:
                    raise
                step //= 2
                continue
            total = Swept(*map(add, total, found))
            if not any(0 < asked <= given for asked, given in zip(most, found, strict=True)):
                return total

    def purge(self, queue: str, state: State, keep_ms: int, limit: int) -> int:
        total = 0
        while total < limit:
            most = min(_STEP, limit - total)
            step = partial(_purge, queue=queue, state=state, keep_ms=keep_ms, limit=most)
            found = self._run(step)
            total += found
            if found < most:
                break
        return total

    def end_slots(self, limit: int) -> int:
        return self._run(partial(_end_slots, limit=limit))

    def tidy(self, look: Look, limit: int) -> None:
        self._run(_forget)
        self._run(partial(side_records.drop_expired, limit=min(limit, _STEP)))
        self._run(partial(_forget_queues, look=look))


def maintain(run: Run, op: ops.Maintain) -> ops.Maintained:
    return upkeep.maintain(Upkeep(run), op)


def _look(tx: Transaction, *, op: ops.Maintain) -> Look:
    """The first key of each index says whether there is anything. All are requested at once."""
    begin, end = tx.keys.pack(k.QUEUE, op.after) + b"\x00", tx.keys.span(k.QUEUE)[1]
    most = ops.QUEUES_PER_STEP
    names = [name for (name,) in tx.scan(begin, end, limit=most + 1)]
    asked = [(name, _ask_due(tx, name, op)) for name in names[:most]]
    due = [name for name, found in asked if any(list(rows) for rows in found)]
    return Look(due, op.after, names[most - 1] if len(names) > most else None)


def _ask_due(tx: Transaction, queue: str, op: ops.Maintain) -> list[Any]:
    indexes: list[tuple[tuple[Any, ...], int]] = [
        ((k.ENDING, queue), tx.store.sweep_until(tx.now)),
        ((k.DELAYED, queue), tx.now),
        ((k.EXPIRING, queue), tx.now),
    ]
    indexes += [
        ((k.ENDED, queue, state.value), tx.now - keep_ms)
        for state, keep_ms in op.keeps
        if keep_ms is not None
    ]
    return [
        tx.tr.snapshot.get_range(tx.keys.span(*index)[0], tx.keys.pack(*index, until + 1), limit=1)
        for index, until in indexes
    ]


def _purge(tx: Transaction, *, queue: str, state: State, keep_ms: int, limit: int) -> int:
    begin, _ = tx.keys.span(k.ENDED, queue, state.value)
    end = tx.keys.pack(k.ENDED, queue, state.value, tx.now - keep_ms + 1)
    ids = [key[-1] for key in tx.scan(begin, end, limit=limit)]
    tx.load(ids)
    if state is not State.DONE:  # no job waits for one that is done
        tx.ask_children(ids)
    return upkeep.purge(tx, tx.jobs(ids))


def _end_slots(tx: Transaction, *, limit: int) -> int:
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


def _forget(tx: Transaction) -> None:
    """Delete old results of keyed operations, and DID keys of programs that never came back for
    them."""
    begin, _ = tx.keys.span(k.ONCE_AT)
    end = tx.keys.pack(k.ONCE_AT, tx.now - ops.ONCE_MS + 1)
    for at, key in tx.scan(begin, end, limit=_STEP):
        tx.clear_span(k.ONCE, key)
        tx.clear(tx.keys.pack(k.ONCE_AT, at, key))
    for row in tx.tr.snapshot.get_range(*tx.keys.span(k.DID), limit=_STEP):
        version = int.from_bytes(bytes(row.value)[:8], "big")
        if version < tx.version - _DID_VERSIONS:
            tx.clear(bytes(row.key))


_OF_A_QUEUE = (
    k.LANE, k.TURN, k.ENDING, k.QUEUE_COUNT, k.TENANT_COUNT, k.GROUP_COUNT, k.TAKEN, k.FREED,
    k.PARKED, k.GROUP_TOTAL,
)  # fmt: skip


def _forget_queues(tx: Transaction, *, look: Look) -> None:
    """Note which queues are empty now, and delete those that have been empty for long. Adding a
    job or a limit to a queue writes its QUEUE key, which conflicts with this."""
    tx.flush()
    begin, (_, end) = tx.keys.pack(k.QUEUE, look.after) + b"\x00", tx.keys.span(k.QUEUE)
    if look.last is not None:
        end = tx.keys.pack(k.QUEUE, look.last) + b"\x00"
    asked = []
    for row in tx.tr.snapshot.get_range(begin, end):
        (queue,) = tx.keys.unpack(bytes(row.key))
        spans = (tx.keys.span(kind, queue) for kind in (k.LISTED, k.LIMIT))
        used = [tx.tr.snapshot.get_range(*span, limit=1) for span in spans]
        asked.append((queue, bytes(row.key), bytes(row.value), used))
    for queue, key, emptied_at, used in asked:
        if any(list(rows) for rows in used):
            continue
        if not emptied_at:
            tx.tr.add_read_conflict_key(key)
            tx.clear(key)  # so that the next job of this transaction marks it again
            tx.set(key, str(tx.now).encode())
        elif int(emptied_at) <= tx.now - ops.FORGET_MS:
            tx.tr.add_read_conflict_key(key)
            for kind in _OF_A_QUEUE:
                tx.clear_span(kind, queue)
            for one in (key, tx.keys.pack(k.RULES, queue), tx.keys.pack(k.BUCKET, queue)):
                tx.clear(one)


# Recounting -------------------------------------------------------------------------------------


def reconcile(tx: Transaction, batch: Sequence[ops.Reconcile]) -> list[Answer]:
    return [_reconcile(tx, op) for op in batch]


def _reconcile(tx: Transaction, op: ops.Reconcile) -> Answer:
    """Recount jobs, and add the differences to the counters of the same snapshot. Changes by others
    are added on top, so no conflict ranges are needed."""
    if not tx.knows(op.queue):
        return QueueNotFound(op.queue)
    tx.flush()
    found = _recount(tx, op)
    counted = _counted(tx, op)
    corrected: Counter[str] = Counter()
    for key in found.keys() | counted.keys():
        by = found[key] - counted[key]
        tx.add(tx.keys.pack(*key), by)
        scope = 3 + (op.tenant is not None) + (op.group is not None)
        if key[0] != k.GROUP_TOTAL and len(key) == scope:
            corrected[key[-1]] += by
    if op.tenant is None and tx.rules(op.queue).limits:
        tx.recount_leases(op.queue)
        put_back(tx, op.queue, None)
    return ops.Corrected({_NAMES.get(name, name): by for name, by in corrected.items() if by})


def _recount(tx: Transaction, op: ops.Reconcile) -> Counter[tuple[Any, ...]]:
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
        if group:
            keys.append((k.GROUP_TOTAL, op.queue, group, total_of(what)))
        for key in keys:
            if _concerns(op, key):
                found[key] += count
    return found


def _records(tx: Transaction, queue: str) -> Iterator[Record]:
    """All jobs of a queue, with many concurrent reads: all must finish within 5 s. Claims are not
    read; leased and ready jobs count alike."""
    asked: deque[Any] = deque()
    for key in tx.scan(*tx.keys.span(k.LISTED, queue)):
        asked.append(tx.tr.snapshot.get(tx.keys.pack(k.JOB, key[-1])))
        if len(asked) > _UNDER_WAY:
            yield decode_record(bytes(asked.popleft().value))
    for one in asked:
        yield decode_record(bytes(one.value))


def _counted(tx: Transaction, op: ops.Reconcile) -> Counter[tuple[Any, ...]]:
    counted: Counter[tuple[Any, ...]] = Counter()
    for kind in (k.QUEUE_COUNT, k.TENANT_COUNT, k.GROUP_COUNT, k.GROUP_TOTAL):
        for row in tx.tr.snapshot.get_range(*tx.keys.span(kind, op.queue)):
            key = (kind, *tx.keys.unpack(bytes(row.key)))
            if _concerns(op, key):
                counted[key] = int.from_bytes(bytes(row.value), "little", signed=True)
    return counted


def _concerns(op: ops.Reconcile, key: tuple[Any, ...]) -> bool:
    """Whether a counter belongs to what is recounted."""
    if op.tenant is None:
        return True
    if key[0] == k.GROUP_TOTAL:
        return False  # it also counts jobs of other tenants
    if op.group is None:
        return len(key) > 3 and key[2] == op.tenant
    return len(key) > 4 and key[2:4] == (op.tenant, op.group)


def reconcile_slots(tx: Transaction, batch: Sequence[ops.ReconcileSlots]) -> list[Answer]:
    """Slots have no counter to correct: they are counted on each read."""
    for op in batch:
        tx.count_slots(op.scope, op.key)
    return [ops.Corrected({}) for _ in batch]
