"""Operations of an operator: cancel, replay, run now, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from tenure.core.moves import move, remove, settle
from tenure.core.transaction import J, Transaction
from tenure.model import ops, states
from tenure.model.ops import Answer


def cancel(tx: Transaction[J], batch: Sequence[ops.Cancel]) -> list[Answer]:
    tx.load(job_id for op in batch for job_id in op.ids)
    return [_change(tx, op.ids, lambda job: move(tx, job, states.Cancelled())) for op in batch]


def replay(tx: Transaction[J], batch: Sequence[ops.Replay]) -> list[Answer]:
    tx.load(job_id for op in batch for job_id in op.ids)
    return [_replay(tx, op) for op in batch]


def _replay(tx: Transaction[J], op: ops.Replay) -> Answer:
    refused: dict[str, str] = {}

    def one(job: J) -> bool:
        if not states.allowed(job.state, states.Replayed):
            return False
        holder = None if job.unique_key is None else tx.key_holder(job)
        if holder is not None:
            refused[job.id] = holder
            return False
        return move(tx, job, states.Replayed())

    return replace(_change(tx, op.ids, one), refused=refused)


def run_now(tx: Transaction[J], batch: Sequence[ops.RunNow]) -> list[Answer]:
    tx.load(job_id for op in batch for job_id in op.ids)
    return [_change(tx, op.ids, lambda job: _hurry(tx, job)) for op in batch]


def _hurry(tx: Transaction[J], job: J) -> bool:
    return job.run_at > tx.now and move(tx, job, states.Hurried())


def delete(tx: Transaction[J], batch: Sequence[ops.Delete]) -> list[Answer]:
    tx.load(job_id for op in batch for job_id in op.ids)
    return [_delete(tx, op) for op in batch]


def _delete(tx: Transaction[J], op: ops.Delete) -> Answer:
    def one(job: J) -> bool:
        if op.states and job.state not in op.states:
            return False
        remove(tx, job)
        return True

    return _change(tx, op.ids, one)


def _change(tx: Transaction[J], ids: Iterable[str], change: Callable[[J], bool]) -> ops.Changed:
    """Change the jobs one by one: finishing one may finish the next."""
    count, missing = 0, []
    for job_id in dict.fromkeys(ids):
        job = tx.job(job_id)
        if job is None:
            missing.append(job_id)
        elif change(job):
            count += 1
            settle(tx)
    return ops.Changed(count, tuple(missing))
