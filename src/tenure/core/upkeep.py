"""The steps of maintenance and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from tenure.core.moves import move, remove, settle
from tenure.core.transaction import J, Transaction
from tenure.model import ops, states
from tenure.model.job import State


class Swept(NamedTuple):
    """How many jobs a sweep moved, or may move, of each kind."""

    promoted: int
    leases: int
    expired: int


# path: a sweep
def sweep(tx: Transaction[J], queue: str, most: Swept) -> Swept:
    """End expired leases, make due jobs ready, and make expired jobs dead. In each step, all
    jobs end before any child is notified."""
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


class Look(NamedTuple):
    """The queues that a step of maintenance looked at: those with names after `after`, up to `last`
    (to the end, if it is None)."""

    due: Sequence[str]  # the names of those that have something due, sorted
    after: str
    last: str | None


class Upkeep(Protocol):
    """The steps of maintenance, as run by an engine: all in one transaction, or each in its own."""

    def look(self, op: ops.Maintain) -> Look:
        """Look at the next QUEUES_PER_STEP queues after `op.after`, in the order of their names."""

    def sweep(self, queue: str, limit: int) -> Swept:
        """Run `sweep` for at most `limit` jobs of each kind."""

    def purge(self, queue: str, state: State, keep_ms: int, limit: int) -> int:
        """Run `purge` for jobs that ended in this state more than keep_ms ago. Returns how many."""

    def end_slots(self, limit: int) -> int:
        """Delete expired slots. Returns how many."""

    def tidy(self, look: Look, limit: int) -> None:
        """Delete idempotency keys older than ONCE_MS and expired records. Of the queues looked at,
        delete the lanes and tenants without jobs, and those that have been empty for FORGET_MS."""


def maintain(upkeep: Upkeep, op: ops.Maintain) -> ops.Maintained:
    """Sweep and purge the queues that have something due, one after the other."""
    look = upkeep.look(op)
    done = ops.Maintained(after=look.last)
    for queue in look.due:
        swept = upkeep.sweep(queue, op.limit)
        purged = sum(
            upkeep.purge(queue, state, keep_ms, op.limit)
            for state, keep_ms in op.keeps
            if keep_ms is not None
        )
        done += ops.Maintained(*swept, purged=purged, after=look.last)
        if done.total >= op.limit:
            done = replace(done, after=queue)
            break
    slots = upkeep.end_slots(op.limit)
    upkeep.tidy(look, op.limit)
    return replace(done, slots=slots)
