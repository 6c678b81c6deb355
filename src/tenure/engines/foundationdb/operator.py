"""What an operator does: cancel, replay, delete, and set limits and pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from tenure import ops, states
from tenure.engines.foundationdb import bucket
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.aside import put_back
from tenure.engines.foundationdb.limits import Scope
from tenure.engines.foundationdb.tx import Held, Tx
from tenure.errors import QueueNotFound
from tenure.ops import Answer, Limit


def cancel(tx: Tx, op: ops.Cancel) -> Answer:
    return _change(tx, op.ids, lambda held: tx.move(held, states.Cancelled()))


def replay(tx: Tx, op: ops.Replay) -> Answer:
    refused: dict[str, str] = {}

    def replay_one(held: Held) -> bool:
        record = held.record
        if record.unique_key is not None and states.allowed(record.state, states.Replayed):
            key = tx.keys.pack(k.UNIQUE, record.queue, record.tenant, record.unique_key)
            holder = tx.tr.get(key).value
            if holder is not None:
                refused[held.id] = bytes(holder).decode()
                return False
        return tx.move(held, states.Replayed())

    return replace(_change(tx, op.ids, replay_one), refused=refused)


def delete(tx: Tx, op: ops.Delete) -> Answer:
    def delete_one(held: Held) -> bool:
        if op.states and held.record.state not in op.states:
            return False
        remove(tx, held)
        return True

    return _change(tx, op.ids, delete_one)


def remove(tx: Tx, held: Held) -> None:
    """Take a job out, and tell those who wait for it."""
    tx.remove(held)
    tx.tell_children(held.id, states.ParentDeleted(held.id))


def _change(tx: Tx, ids: Iterable[str], change: Callable[[Held], bool]) -> ops.Changed:
    count, missing = 0, []
    tx.tells = True
    for job_id in dict.fromkeys(ids):
        held = tx.job(job_id)
        if held is None:
            missing.append(job_id)
        else:
            count += change(held)
    return ops.Changed(count, tuple(missing))


# Limits -----------------------------------------------------------------------------------------


def knows(tx: Tx, queue: str) -> bool:
    """Whether a queue was ever used. None is ever forgotten, so nothing depends on the answer."""
    return tx.tr.snapshot.get(tx.keys.pack(k.QUEUE, queue)).value is not None


def _put_limit(tx: Tx, limit: Limit, *, recount: bool) -> Answer:
    scope = (limit.tenant, limit.group)
    key = tx.keys.pack(k.LIMIT, limit.queue, *scope)
    tx.mark(tx.keys.pack(k.QUEUE, limit.queue))
    if limit == Limit(limit.queue, *scope):
        tx.clear(key)
    else:
        tx.set(key, msgspec.json.encode(limit))
    put_back(tx, limit.queue, limit.tenant)
    tx.tells = True
    if recount:
        recount_leases(tx, limit.queue)
    return ops.Ok()


def recount_leases(tx: Tx, queue: str) -> None:
    """Count the leases that limits bound, by looking at all of them. Whoever takes or gives one
    back meanwhile makes this conflict."""
    tx.clear_span(k.TAKEN, queue)
    tx.clear_span(k.FREED, queue)
    rules = tx.rules(queue)
    taken: Counter[Scope] = Counter()
    for row in tx.tr.get_range(*tx.keys.span(k.LEASE, queue)):
        _, tenant, group, _ = tx.keys.unpack(bytes(row.key))
        taken.update(rules.bounded(tenant, group))
    for scope, count in taken.items():
        tx.set(tx.keys.pack(k.TAKEN, queue, *scope), count.to_bytes(8, "little"))


def set_limit(tx: Tx, op: ops.SetLimit) -> Answer:
    bounds = {"concurrency": op.concurrency, "weight": op.weight}
    old = tx.rules(op.queue).of(op.tenant, op.group)
    if op.rate is not None and op.per_ms is not None:
        bounds |= {"rate": op.rate, "per_ms": op.per_ms}
        whole = tx.rules(op.queue).whole
        if whole.rate_of != (op.rate, op.per_ms):
            bucket.fill(tx, op.queue, op.rate * op.per_ms)
    given = {name: value for name, value in bounds.items() if value is not None}
    return _put_limit(tx, replace(old, **given), recount=op.concurrency is not None)


def clear_limit(tx: Tx, op: ops.ClearLimit) -> Answer:
    if not knows(tx, op.queue):
        return QueueNotFound(op.queue)
    old = tx.rules(op.queue).of(op.tenant, op.group)
    cleared = Limit(op.queue, op.tenant, op.group, paused=old.paused)
    return _put_limit(tx, cleared, recount=old.concurrency is not None)


def pause(tx: Tx, op: ops.Pause) -> Answer:
    old = tx.rules(op.queue).of(op.tenant, op.group)
    return _put_limit(tx, replace(old, paused=True), recount=False)


def resume(tx: Tx, op: ops.Resume) -> Answer:
    if not knows(tx, op.queue):
        return QueueNotFound(op.queue)
    old = tx.rules(op.queue).of(op.tenant, op.group)
    return _put_limit(tx, replace(old, paused=False), recount=False)
