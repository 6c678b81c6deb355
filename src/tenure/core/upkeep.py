"""Maintenance: what it does, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tenure.core.moves import move, remove, settle
from tenure.core.transaction import J, Transaction
from tenure.model import ops, states
from tenure.model.job import State


class Swept(NamedTuple):
    """How many jobs a sweep moved, or may move."""

    promoted: int
    leases: int
    expired: int


def sweep(tx: Transaction[J], queue: str, most: Swept) -> Swept:
    """Take back leases that ended, make delayed jobs ready, bury jobs that expired. All that end
    in a step end before any job is told of another."""
    overdue = tx.overdue(queue, most.leases)
    leases = sum(move(tx, job, states.LeaseRanOut()) for job in overdue)
    settle(tx)
    promoted = tx.promote(queue, most.promoted)
    late = tx.expired(queue, most.expired)
    expired = sum(move(tx, job, states.Expired()) for job in late)
    settle(tx)
    return Swept(promoted, leases, expired)


def purge(tx: Transaction[J], jobs: Sequence[J]) -> int:
    """Delete finished jobs that nobody wants to keep."""
    for job in jobs:
        remove(tx, job)
    settle(tx)
    return len(jobs)


class Upkeep(Protocol):
    """The steps of maintenance, as an engine runs them: all in one transaction, or each in
    transactions of its own."""

    def queues(self) -> Sequence[str]:
        """The names of all queues, sorted."""

    def sweep(self, queue: str, limit: int) -> Swept:
        """`sweep`, for at most so many jobs of each kind."""

    def purge(self, queue: str, state: State, keep_ms: int, limit: int) -> int:
        """`purge` the jobs that ended in this state before so long: how many."""

    def end_slots(self, limit: int) -> int:
        """Drop slots that ended: how many."""

    def tidy(self, limit: int) -> None:
        """Drop what nobody needs: lanes without jobs, idempotency keys older than ONCE_MS."""


def maintain(upkeep: Upkeep, op: ops.Maintain) -> ops.Maintained:
    """Sweep every queue, then purge every queue, in the order of their names."""
    queues = upkeep.queues()
    swept = [upkeep.sweep(queue, op.limit) for queue in queues]
    keep = (
        (State.DONE, op.keep_done_ms),
        (State.CANCELLED, op.keep_cancelled_ms),
        (State.DEAD, op.keep_dead_ms),
    )
    purged = sum(
        upkeep.purge(queue, state, keep_ms, op.limit)
        for queue in queues
        for state, keep_ms in keep
        if keep_ms is not None
    )
    slots = upkeep.end_slots(op.limit)
    upkeep.tidy(op.limit)
    promoted, leases, expired = (sum(kind) for kind in zip((0, 0, 0), *swept, strict=True))
    return ops.Maintained(promoted, leases, expired, slots, purged)
