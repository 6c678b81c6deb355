"""Operations of an operator: cancel, replay, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from tenure.core import enqueue, features
from tenure.core.grants import Owners, load
from tenure.core.moves import move, remove, settle
from tenure.core.transaction import Edit, J, Transaction
from tenure.errors import Conflict, JobNotFound
from tenure.model import ops, states
from tenure.model.history import PAST_MS, Past, PastMove, past_key
from tenure.model.job import FINAL, State
from tenure.model.ops import Answer


def cancel(tx: Transaction[J], batch: Sequence[ops.Cancel]) -> list[Answer]:
    owners = load(tx, batch)
    return [change_each(tx, op, owners, partial(_cancel, tx, op)) for op in batch]


def _cancel(tx: Transaction[J], op: ops.Cancel, job: J) -> bool:
    return moved(tx, op, job, states.Cancelled(), "cancelled")


def moved(tx: Transaction[J], op: ops.JobsOp, job: J, event: states.Event, what: PastMove) -> bool:
    """Move a job, and add that to its history. Returns whether it moved."""
    if not move(tx, job, event):
        return False
    remember(tx, op, job, what)
    return True


def remember(tx: Transaction[J], op: ops.JobsOp, job: J, what: PastMove) -> None:
    """Add what an operator does to the history of a job."""
    past = Past(tx.now, what, "" if op.note is None else op.note.by)
    tx.put_record("past", past_key(job.id, past), msgspec.json.encode(past), tx.now + PAST_MS)


def replay(tx: Transaction[J], batch: Sequence[ops.Replay]) -> list[Answer]:
    owners = load(tx, batch)
    return [_replay(tx, op, owners) for op in batch]


def _replay(tx: Transaction[J], op: ops.Replay, owners: Owners) -> Answer:
    refused: dict[str, str] = {}

    def one(job: J) -> bool:
        return replay_one(tx, op, job, refused)

    return replace(change_each(tx, op, owners, one), refused=refused)


def replay_one(tx: Transaction[J], op: ops.JobsOp, job: J, refused: dict[str, str]) -> bool:
    """Replay a dead or cancelled job, unless another one holds its unique key."""
    if not states.allowed(job.state, states.Replayed):
        return False
    holder = None if job.unique_key is None else tx.key_holder(job)
    if holder is not None:
        refused[job.id] = holder
        return False
    if job.has_steps:
        features.replayed(tx, job)
    return moved(tx, op, job, states.Replayed(), "replayed")


def delete(tx: Transaction[J], batch: Sequence[ops.Delete]) -> list[Answer]:
    owners = load(tx, batch)
    return [_delete(tx, op, owners) for op in batch]


def _delete(tx: Transaction[J], op: ops.Delete, owners: Owners) -> Answer:
    def one(job: J) -> bool:
        if op.states and job.state not in op.states:
            return False
        remove(tx, job)
        return True

    return change_each(tx, op, owners, one)


def change_each(
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


# Editing ------------------------------------------------------------------------------------------

UNCLAIMED = (State.WAITING, State.PENDING)


def update(tx: Transaction[J], batch: Sequence[ops.Update]) -> list[Answer]:
    owners = load(tx, batch)
    return [change_each(tx, op, owners, partial(_update, tx, op)) for op in batch]


def _update(tx: Transaction[J], op: ops.Update, job: J) -> bool:
    if job.state not in UNCLAIMED:
        return False
    run_at = op.run_at if op.delay_ms is None else tx.now + op.delay_ms
    payload = None if isinstance(op.payload, msgspec.UnsetType) else op.payload
    tx.edit(job, Edit(op.priority, run_at, payload))
    remember(tx, op, job, "updated")
    return True


def replay_edited(tx: Transaction[J], batch: Sequence[ops.ReplayEdited]) -> list[Answer]:
    return [_replay_edited(tx, op) for op in batch]


def _replay_edited(tx: Transaction[J], op: ops.ReplayEdited) -> Answer:
    owners = load(tx, [op])
    job = tx.read_jobs([op.id]).get(op.id) if owners.shows(op.grant, op.id) else None
    if job is None:
        return JobNotFound(op.id)
    if job.state not in FINAL:
        return Conflict(f"the job {op.id!r} is {job.state.value}; only finished jobs are replayed")
    (answer,) = enqueue.enqueue(tx, [ops.Enqueue((op.spec_of(job),), grant=op.grant)])
    return answer
