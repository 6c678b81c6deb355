"""Operations of an operator: cancel, replay, run now, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tenure.core.grants import Owners, load
from tenure.core.moves import move, remove, settle
from tenure.core.transaction import J, Transaction
from tenure.model import ops, states
from tenure.model.ops import Answer


def cancel(tx: Transaction[J], batch: Sequence[ops.Cancel]) -> list[Answer]:
    owners = load(tx, batch)
    return [_change(tx, op, owners, lambda job: move(tx, job, states.Cancelled())) for op in batch]


def replay(tx: Transaction[J], batch: Sequence[ops.Replay]) -> list[Answer]:
    owners = load(tx, batch)
    return [_replay(tx, op, owners) for op in batch]


def _replay(tx: Transaction[J], op: ops.Replay, owners: Owners) -> Answer:
    refused: dict[str, str] = {}

    def one(job: J) -> bool:
        if not states.allowed(job.state, states.Replayed):
            return False
        holder = None if job.unique_key is None else tx.key_holder(job)
        if holder is not None:
            refused[job.id] = holder
            return False
        return move(tx, job, states.Replayed())

    return replace(_change(tx, op, owners, one), refused=refused)


def run_now(tx: Transaction[J], batch: Sequence[ops.RunNow]) -> list[Answer]:
    owners = load(tx, batch)
    return [_change(tx, op, owners, lambda job: _hurry(tx, job)) for op in batch]


def _hurry(tx: Transaction[J], job: J) -> bool:
    return job.run_at > tx.now and move(tx, job, states.Hurried())


def delete(tx: Transaction[J], batch: Sequence[ops.Delete]) -> list[Answer]:
    owners = load(tx, batch)
    return [_delete(tx, op, owners) for op in batch]


def _delete(tx: Transaction[J], op: ops.Delete, owners: Owners) -> Answer:
    def one(job: J) -> bool:
        if op.states and job.state not in op.states:
            return False
        remove(tx, job)
        return True

    return _change(tx, op, owners, one)


def _change(
    tx: Transaction[J], op: ops.JobsOp, owners: Owners, change: Callable[[J], bool]
) -> ops.Changed:
    """Change the jobs one by one: finishing one may finish the next."""
    count, missing = 0, []
    for job_id in dict.fromkeys(op.ids):
        job = tx.job(job_id) if owners.shows(op.grant, job_id) else None
        if job is None:
            missing.append(job_id)
        elif change(job):
            count += 1
            settle(tx)
    return ops.Changed(count, tuple(missing))
