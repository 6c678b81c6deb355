"""Maintenance."""

from __future__ import annotations

from tenure.engines.memory.memory_store import Record, handles
from tenure.engines.memory.scheduling import Schedules
from tenure.errors import (
    QueueNotFound,
)
from tenure.model import ops
from tenure.model.job import State
from tenure.model.ops import Answer


class Upkeep(Schedules):
    """Runs due maintenance, and deletes what is old."""

    @handles(ops.Maintain)
    def _maintain(self, op: ops.Maintain, now: int) -> Answer:
        later = sorted(name for name in self._queues if name > op.after)
        page = later[: ops.QUEUES_PER_STEP]
        after = page[-1] if len(later) > len(page) else None
        promoted = leases = expired = purged = 0
        for queue in [name for name in page if self._has_work(name, op, now)]:
            found = self._sweep(queue, op.limit, now)
            promoted, leases, expired = promoted + found[0], leases + found[1], expired + found[2]
            purged += self._purge(queue, op, now)
            if promoted + leases + expired + purged >= op.limit:
                after = queue
                break
        self._forget_queues(page, now)
        used = {(r.job.queue, r.job.tenant) for r in self._records.values()}
        self._turns = {
            key: turn for key, turn in self._turns.items() if key in used or key[0] not in page
        }
        over = sorted(
            (expires_at, scope, key, holder)
            for (scope, key), slots in self._slots.items()
            for holder, expires_at in slots.items()
            if expires_at <= now
        )[: op.limit]
        for _, scope, key, holder in over:
            del self._slots[scope, key][holder]
        for key, (at, _, _) in list(self._answered.items()):
            if at <= now - ops.ONCE_MS:
                del self._answered[key]
        for part in self._parts:
            part.maintained(now)
        ended = [
            (record.expires_at, place)
            for place, record in self.side.items()
            if record.expires_at is not None and record.expires_at <= now
        ]
        for _, place in sorted(ended)[: op.limit]:
            del self.side[place]
        return ops.Maintained(promoted, leases, expired, len(over), purged, after)

    def _has_work(self, queue: str, op: ops.Maintain, now: int) -> bool:
        """Whether a sweep or a purge of the queue would find anything."""
        for record in self._live.values():
            job = record.job
            due = job.run_at if job.state is State.PENDING and not record.ready else None
            expires_at = None if job.state is State.LEASED else job.expires_at
            times = (job.lease_until, due, expires_at)
            if job.queue == queue and any(at is not None and at <= now for at in times):
                return True
        return any(self._old(queue, state, keep_ms, now) for state, keep_ms in op.keeps)

    def _purge(self, queue: str, op: ops.Maintain, now: int) -> int:
        purged = 0
        for state, keep_ms in op.keeps:
            for record in self._old(queue, state, keep_ms, now)[: op.limit]:
                self._remove(record, now)
                purged += 1
        return purged

    def _old(self, queue: str, state: State, keep_ms: int | None, now: int) -> list[Record]:
        """The jobs of a queue whose retention is over, oldest first."""
        old = [
            record
            for record in self._records.values()
            if record.job.queue == queue
            and record.job.state is state
            and keep_ms is not None
            and (record.job.finished_at or 0) <= now - keep_ms
        ]
        return sorted(old, key=lambda r: (r.job.finished_at or 0, r.seq))

    def _forget_queues(self, names: list[str], now: int) -> None:
        """Delete queues that have been empty for long, and note which are empty now."""
        used = {record.job.queue for record in self._records.values()}
        used |= {queue for queue, _, _ in self._limits}
        for queue in names:
            if queue in used:
                self._emptied.pop(queue, None)
            elif self._emptied.setdefault(queue, now) <= now - ops.FORGET_MS:
                del self._queues[queue], self._emptied[queue]

    @handles(ops.Reconcile)
    def _reconcile(self, op: ops.Reconcile, now: int) -> Answer:
        return ops.Corrected({}) if op.queue in self._queues else QueueNotFound(op.queue)

    @handles(ops.ReconcileSlots)
    def _reconcile_slots(self, op: ops.ReconcileSlots, now: int) -> Answer:
        self._current_slots(op.scope, op.key, now)
        return ops.Corrected({})
