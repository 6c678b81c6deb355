"""Changing jobs that were not claimed, and replaying finished ones with changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from tenure.core import enqueue
from tenure.core.grants import load
from tenure.core.operator import change_each, remember
from tenure.core.transaction import Edit, J, Transaction
from tenure.errors import Conflict, JobNotFound
from tenure.model import ops
from tenure.model.job import FINAL, State
from tenure.model.ops import Answer

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
