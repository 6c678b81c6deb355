"""The steps of maintenance and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tenure.core.moves import move, remove, settle
from tenure.core.transaction import J, Transaction
from tenure.model import ops, states
from tenure.model.job import State


class Swept(NamedTuple):
    """How many jobs a sweep moved, or may move, of each kind."""

    promoted: int
    leases: int
    expired: int


def sweep(tx: Transaction[J], queue: str, most: Swept) -> Swept:
    """End expired leases, make due jobs ready, and bury expired jobs. In each step, all jobs end
    before any child is notified."""
    overdue = tx.overdue(queue, most.leases)
    leases = sum(move(tx, job, states.LeaseRanOut()) for job in overdue)
    settle(tx)
    promoted = tx.promote(queue, most.promoted)
    late = tx.expired(queue, most.expired)
    expired = sum(move(tx, job, states.Expired()) for job in late)
    settle(tx)
    return Swept(promoted, leases, expired)


def purge(tx: Transaction[J], jobs: Sequence[J]) -> int:
    """Delete finished jobs whose retention is over."""
    for job in jobs:
        remove(tx, job)
    settle(tx)
    return len(jobs)


class Upkeep(Protocol):
    """The steps of maintenance, as run by an engine: all in one transaction, or each in its own."""

    def queues(self) -> Sequence[str]:
        """The names of all queues, sorted."""

    def sweep(self, queue: str, limit: int) -> Swept:
        """Run `sweep` for at most `limit` jobs of each kind."""

    def purge(self, queue: str, state: State, keep_ms: int, limit: int) -> int:
        """Run `purge` for jobs that ended in this state more than keep_ms ago. Returns how many."""

    def end_slots(self, limit: int) -> int:
        """Delete expired slots. Returns how many."""

    def tidy(self, limit: int) -> None:
        """Delete lanes without jobs and idempotency keys older than ONCE_MS."""


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
