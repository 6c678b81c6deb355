"""What an operator does: cancel, replay and delete jobs; set limits; pause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from tenure import ops, states
from tenure.engines.sqlite.books import mark
from tenure.engines.sqlite.rows import Row
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import QueueNotFound
from tenure.ops import Answer, Limit


def cancel(tx: Transaction, batch: Sequence[ops.Cancel]) -> list[Answer]:
    def one(row: Row) -> bool:
        return tx.move(row, states.Cancelled()) is not None

    return [_change(tx, op.ids, one) for op in batch]


def replay(tx: Transaction, batch: Sequence[ops.Replay]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:
        refused: dict[str, str] = {}

        def one(row: Row, refused: dict[str, str] = refused) -> bool:
            if not states.allowed(row.state, states.Replayed):
                return False
            if row.unique_key is not None:
                tenant = tx.books.lane_by_id(row.lane).tenant
                key = (tenant.queue.name, tenant.name, row.unique_key)
                holder = tx.db.one("key_holder", *key)
                if holder is not None:
                    refused[row.id] = holder[0]
                    return False
                tx.db.run("insert_key", tenant.id, row.unique_key, row.seq)
            return tx.move(row, states.Replayed()) is not None

        changed = _change(tx, op.ids, one)
        answers.append(replace(changed, refused=refused))
    return answers


def delete(tx: Transaction, batch: Sequence[ops.Delete]) -> list[Answer]:
    answers: list[Answer] = []
    for op in batch:

        def one(row: Row, op: ops.Delete = op) -> bool:
            if op.states and row.state not in op.states:
                return False
            tx.remove([row])
            return True

        answers.append(_change(tx, op.ids, one))
    return answers


def _change(tx: Transaction, ids: Iterable[str], change: Callable[[Row], bool]) -> ops.Changed:
    """Change the jobs one after the other: the end of one may be the end of the next."""
    count, missing = 0, []
    for job_id in dict.fromkeys(ids):
        row = tx.rows([job_id]).get(job_id)
        if row is None:
            missing.append(job_id)
        elif change(row):
            count += 1
            tx.settle()
    return ops.Changed(count, tuple(missing))


def set_limit(tx: Transaction, batch: Sequence[ops.SetLimit]) -> list[Answer]:
    for op in batch:
        bounds = {"concurrency": op.concurrency, "weight": op.weight}
        if op.rate is not None and op.per_ms is not None:
            bounds |= {"rate": op.rate, "per_ms": op.per_ms}
        given = {name: value for name, value in bounds.items() if value is not None}
        old = _limit(tx, op)
        new = replace(old, **given)
        _put(tx, new)
        if op.rate is not None and op.per_ms is not None and old.rate_of != new.rate_of:
            queue = tx.books.queue_or_new(op.queue)
            queue.tokens, queue.tokens_at = op.rate * op.per_ms, tx.now
            queue.dirty = True
    return [ops.Ok() for _ in batch]


def clear_limit(tx: Transaction, batch: Sequence[ops.ClearLimit]) -> list[Answer]:
    return [
        _put_if_known(tx, Limit(op.queue, op.tenant, op.group, paused=_limit(tx, op).paused))
        for op in batch
    ]


def pause(tx: Transaction, batch: Sequence[ops.Pause]) -> list[Answer]:
    for op in batch:
        _put(tx, replace(_limit(tx, op), paused=True))
    return [ops.Ok() for _ in batch]


def resume(tx: Transaction, batch: Sequence[ops.Resume]) -> list[Answer]:
    return [_put_if_known(tx, replace(_limit(tx, op), paused=False)) for op in batch]


def _put_if_known(tx: Transaction, limit: Limit) -> Answer:
    if tx.books.queue(limit.queue) is None:
        return QueueNotFound(limit.queue)
    _put(tx, limit)
    return ops.Ok()


def _limit(tx: Transaction, op: ops.SetLimit | ops.ClearLimit | ops.Pause | ops.Resume) -> Limit:
    row = tx.db.one("limit_of", op.queue, mark(op.tenant), mark(op.group))
    concurrency, rate, per_ms, weight, paused = row or (None, None, None, None, 0)
    return Limit(
        op.queue, op.tenant, op.group, concurrency, rate, per_ms, weight, paused=bool(paused)
    )


def _put(tx: Transaction, limit: Limit) -> None:
    """Store the limit, and bring the rows that it bounds up to date."""
    queue = tx.books.queue_or_new(limit.queue)
    tx.books.forget()
    key = (limit.queue, mark(limit.tenant), mark(limit.group))
    tx.db.run("delete_limit", *key)
    if limit != Limit(limit.queue, limit.tenant, limit.group):
        bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight, limit.paused)
        tx.db.run("insert_limit", *key, *bounds)
    if limit.tenant is None:
        own = (limit.paused, limit.concurrency, limit.rate, limit.per_ms)
        tx.db.run("limit_queue", *own, queue.id)
    elif limit.group is None:
        for tenant_id, tenant in tx.db.all("tenants_of_queue", queue.id, limit.tenant):
            bound, stride = tx.books.tenant_bound(limit.queue, tenant)
            tx.db.run("limit_tenant", stride, bound, tenant_id)
    else:
        for lane_id, tenant, group in tx.db.all(
            "lanes_of_queue", queue.id, limit.tenant, limit.group
        ):
            bound = tx.books.group_bound(limit.queue, tenant, group)
            tx.db.run("limit_lane", bound, lane_id)
        tx.db.run("open_lanes", queue.id, limit.tenant)
        tx.db.run("recount_open_lanes", queue.id, limit.tenant)
    if limit.tenant is not None:
        tx.db.run("open_tenants", queue.id, limit.tenant)
    tx.books.forget()
