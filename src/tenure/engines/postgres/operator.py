"""What an operator does: cancel, replay and delete jobs; set limits; pause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tenure import ops, states
from tenure.engines.postgres.rows import Row
from tenure.engines.postgres.transaction import Transaction
from tenure.errors import QueueNotFound
from tenure.ops import Answer, Limit

LOCK_WAIT = "900ms"  # as in the functions of postgres.sql
T = TypeVar("T", ops.Cancel, ops.Replay, ops.Delete)


def cancel(tx: Transaction, batch: Sequence[ops.Cancel]) -> list[Answer]:
    def one(row: Row) -> bool:
        return tx.move(row, states.Cancelled()) is not None

    return [_change(tx, op.ids, one) for op in _loaded(tx, batch)]


def replay(tx: Transaction, batch: Sequence[ops.Replay]) -> list[Answer]:
    answers: list[Answer] = []
    for op in _loaded(tx, batch):
        refused: dict[str, str] = {}

        def one(row: Row, refused: dict[str, str] = refused) -> bool:
            if not states.allowed(row.state, states.Replayed):
                return False
            if row.unique_key is not None:
                holder = tx.db.one("key_holder", row.tenant, row.unique_key)
                if holder is not None:
                    refused[row.id] = holder[0]
                    return False
                tx.db.send("hold_key", row.tenant, row.unique_key, row.seq)
            return tx.move(row, states.Replayed()) is not None

        changed = _change(tx, op.ids, one)
        answers.append(replace(changed, refused=refused))
    return answers


def delete(tx: Transaction, batch: Sequence[ops.Delete]) -> list[Answer]:
    answers: list[Answer] = []
    for op in _loaded(tx, batch):

        def one(row: Row, op: ops.Delete = op) -> bool:
            if op.states and row.state not in op.states:
                return False
            tx.remove(row)
            return True

        answers.append(_change(tx, op.ids, one))
    return answers


def _loaded(tx: Transaction, batch: Sequence[T]) -> Sequence[T]:
    """The batch, once all that it names is locked and read."""
    tx.forget()
    tx.load(job_id for op in batch for job_id in op.ids)
    return batch


def _change(tx: Transaction, ids: Iterable[str], change: Callable[[Row], bool]) -> ops.Changed:
    """Change the jobs one after the other: the end of one may be the end of the next."""
    count, missing = 0, []
    for job_id in dict.fromkeys(ids):
        row = tx.loaded(job_id)
        if row is None:
            missing.append(job_id)
        elif change(row):
            count += 1
            tx.settle()
    return ops.Changed(count, tuple(missing))


def set_limit(tx: Transaction, batch: Sequence[ops.SetLimit]) -> list[Answer]:
    for op in batch:
        queue = _queue_or_new(tx, op.queue)
        bounds = {"concurrency": op.concurrency, "weight": op.weight}
        if op.rate is not None and op.per_ms is not None:
            bounds |= {"rate": op.rate, "per_ms": op.per_ms}
        given = {name: value for name, value in bounds.items() if value is not None}
        old = _limit(tx, op)
        new = replace(old, **given)
        _put(tx, queue, new)
        if op.rate is not None and op.per_ms is not None and old.rate_of != new.rate_of:
            tx.read_clock()
            tx.db.send("fill_bucket", op.rate * op.per_ms, tx.now, queue)
    return [ops.Ok() for _ in batch]


def clear_limit(tx: Transaction, batch: Sequence[ops.ClearLimit]) -> list[Answer]:
    return [_change_limit(tx, op, keep=("paused",)) for op in batch]


def pause(tx: Transaction, batch: Sequence[ops.Pause]) -> list[Answer]:
    for op in batch:
        queue = _queue_or_new(tx, op.queue)
        _put(tx, queue, replace(_limit(tx, op), paused=True))
    return [ops.Ok() for _ in batch]


def resume(tx: Transaction, batch: Sequence[ops.Resume]) -> list[Answer]:
    keep = ("concurrency", "rate", "per_ms", "weight")
    return [_change_limit(tx, op, keep=keep) for op in batch]


def _change_limit(
    tx: Transaction, op: ops.ClearLimit | ops.Resume, keep: tuple[str, ...]
) -> Answer:
    """Leave of a limit only what is to be kept, if the queue is known."""
    queue = _lock(tx, op.queue)
    if queue is None:
        return QueueNotFound(op.queue)
    old = _limit(tx, op)
    kept = {name: getattr(old, name) for name in keep}
    _put(tx, queue, replace(Limit(op.queue, op.tenant, op.group), **kept))
    return ops.Ok()


def _lock(tx: Transaction, queue: str) -> int | None:
    """Keep claims and new lanes away from the queue, and bring its books up to date. A producer
    that has made a lane, and not committed yet, is not waited for long: claims wait behind us."""
    tx.forget()
    tx.db.send("wait_at_most", LOCK_WAIT)
    row = tx.db.one("lock_queue", queue)
    if row is not None:
        tx.db.send("fold", row[0])
    return None if row is None else int(row[0])


def _queue_or_new(tx: Transaction, queue: str) -> int:
    tx.db.send("wait_at_most", LOCK_WAIT)
    tx.db.send("add_queue", queue)
    number = _lock(tx, queue)
    assert number is not None
    return number


def _limit(tx: Transaction, op: ops.SetLimit | ops.ClearLimit | ops.Pause | ops.Resume) -> Limit:
    row = tx.db.one("limit_of", op.queue, mark(op.tenant), mark(op.group))
    return Limit(op.queue, op.tenant, op.group, *(row or (None, None, None, None, False)))


def _put(tx: Transaction, queue: int, limit: Limit) -> None:
    """Store the limit, and bring the books that it bounds in line."""
    key = (limit.queue, mark(limit.tenant), mark(limit.group))
    tx.db.send("delete_limit", *key)
    if limit != Limit(limit.queue, limit.tenant, limit.group):
        bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight, limit.paused)
        tx.db.send("insert_limit", *key, *bounds)
    if limit.tenant is None:
        own = (limit.paused, limit.concurrency, limit.rate, limit.per_ms)
        tx.db.send("limit_queue", *own, queue)
    else:
        tx.db.send("rebound", queue, limit.tenant)


def mark(name: str | None) -> str:
    """How the limits table writes a name that may be left out."""
    return "" if name is None else "=" + name


def unmark(text: str) -> str | None:
    return text[1:] if text else None
