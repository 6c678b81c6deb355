"""Locks that a batch takes first, in an order common to all batches. Two batches that took them
operation by operation could deadlock."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.core.grants import Named, Owners
from tenure.engines.postgres.transaction import Transaction
from tenure.model import ops
from tenure.model.ops import Op

_OF_A_SLOT = (ops.TakeSlot, ops.DropSlot, ops.ReconcileSlots)


def lock(tx: Transaction, batch: Sequence[Op]) -> None:
    """Lock what the batch names: jobs, slots, and the queues of separate claims."""
    flat = list(ops.flat(batch))
    _lock_jobs_and_slots(tx, flat)
    if len(flat) > 1 and any(isinstance(op, ops.Once) for op in batch):
        claims = [op for op in flat if isinstance(op, ops.Claim)]
        queues = list(dict.fromkeys(name for op in claims for name in op.queues))
        if len(queues) > 1:
            tx.db.send("lock_queues", queues)


def _lock_jobs_and_slots(tx: Transaction, batch: Sequence[Op]) -> None:
    """Lock jobs and slots. Jobs named only by the first operations, all of one kind, need no lock
    here, because those operations lock them together."""
    kinds = list(dict.fromkeys(map(type, batch)))
    if any(map(_locks_jobs, kinds[1:])):
        named = [one for op in batch for one in jobs_of(op)]
        owners = Owners(tx, named)
        shown = [job_id for grant, job_id in named if owners.shows(grant, job_id)]
        tx.db.send("lock_jobs", list(dict.fromkeys(shown)))
    if any(kind in _OF_A_SLOT for kind in kinds):
        slots = [op for op in batch if isinstance(op, _OF_A_SLOT)]
        if len(slots) > 1:
            tx.db.send("lock_slots", [op.scope for op in slots], [op.key for op in slots])


def _locks_jobs(kind: type[Op]) -> bool:
    """Whether operations of a kind lock jobs. Those that keep the lease do so themselves, and do
    not wait (see leases)."""
    return issubclass(kind, ops.JobsOp) or (issubclass(kind, ops.LeaseOp) and not kind.keeps)


def jobs_of(op: Op) -> list[Named]:
    """The jobs that an operation must lock, if it may see them."""
    flat = list(ops.flat([op]))
    named = [(one.grant, one.id) for one in flat if isinstance(one, ops.LeaseOp) and not one.keeps]
    return named + [(one.grant, i) for one in flat if isinstance(one, ops.JobsOp) for i in one.ids]
