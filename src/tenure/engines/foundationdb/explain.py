"""The facts for Explain. They describe what the next claim would find, after its sweep.

Tenants have no order here, since their turns come by chance. So a job is claimable if a claim may
come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from tenure.core.claim import UNLIMITED
from tenure.core.limits import EVERYTHING, TenantGroup
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.bucket import Bucket
from tenure.engines.foundationdb.due import due, is_over
from tenure.engines.foundationdb.lease_limits import Rules
from tenure.engines.foundationdb.record import Held, Record
from tenure.engines.foundationdb.side_records import list_records
from tenure.engines.foundationdb.tx import Tx
from tenure.features.why import data as why
from tenure.features.why.dry_run import DryRun, Other, Swept
from tenure.model.job import Job, State
from tenure.model.record_queries import Read

_MOST_SWEPT = 250  # of each kind
_MOST_LANES = 250
_HOLDERS_LOOKED_AT = 1_000


class FdbFacts:
    """Implements core.explain.Facts."""

    def __init__(self, tx: Tx, job: Job, record: Record) -> None:
        self._tx = tx
        self._record = record
        self.job = job
        self.now: int = tx.now
        self.rules: Rules = tx.rules(job.queue)
        self.records: Read = partial(list_records, tx)
        self.is_ready: bool = record.ready

    @property
    def lease_is_over(self) -> bool:
        return is_over(self._tx, self._record)

    @cached_property
    def _due(self) -> list[Held]:
        """What a claim would sweep."""
        tx = self._tx
        indexes = [
            (k.ENDING, tx.store.sweep_until(tx.now)),
            (k.DELAYED, tx.now),
            (k.EXPIRING, tx.now),
        ]
        found = [due(tx, kind, self.job.queue, until, _MOST_SWEPT) for kind, until in indexes]
        seen = tx.peek(dict.fromkeys(job_id for entries in found for _, job_id in entries))
        return [held for held in seen if held is not None and self._is_due(held.record)]

    def _is_due(self, record: Record) -> bool:
        """The keys of a lost claim say that a job is due which is not."""
        if record.state is State.PENDING:
            return record.ready or record.run_at <= self.now
        return is_over(self._tx, record)

    @cached_property
    def _swept(self) -> Swept[TenantGroup]:
        swept = Swept[TenantGroup](self.now)
        for record in (held.record for held in self._due):
            lane, place = (record.tenant, record.group), (record.priority, record.seq)
            is_last = record.attempts >= record.max_attempts
            swept.add(lane, place, record.state, record.ready, is_last, record.expires_at)
        return swept

    def parents(self) -> tuple[Sequence[Other], int]:
        tx = self._tx
        ids = [parent for _, parent in tx.scan(*tx.keys.span(k.WAITS, self.job.id))]
        found = [one for one in tx.peek(ids[: why.PARENTS_LOOKED_AT]) if one is not None]
        others = [
            Other(one.id, one.record.queue, one.record.tenant, one.record.state) for one in found
        ]
        return others, len(ids)

    def used(self, scope: TenantGroup) -> int:
        ended = sum(
            count
            for (tenant, group), count in self._swept.ended.items()
            if scope[0] in (None, tenant) and scope[1] in (None, group)
        )
        return self._tx.in_use(self.job.queue, scope) - ended

    def holders(self, scope: TenantGroup) -> Sequence[Other]:
        tx, queue = self._tx, self.job.queue
        over = {held.id for held in self._due}
        span = tx.keys.span(k.LEASE, queue, *(name for name in scope if name is not None))
        return [
            Other(job_id, queue, tenant, State.LEASED)
            for _, tenant, _, job_id in tx.scan(*span, limit=_HOLDERS_LOOKED_AT)
            if job_id not in over
        ]

    def is_worked_on(self) -> bool:
        return bool(self.holders(EVERYTHING))

    def bucket(self) -> tuple[int, int]:
        bucket = Bucket(self._tx, self.job.queue, self.rules.whole)
        return bucket.tokens, bucket.counted_at

    def ahead(self) -> tuple[int, int]:
        tx, job, swept = self._tx, self.job, self._swept
        span = tx.keys.span(k.LANE, job.queue, job.tenant)
        groups = {job.group, *(key[-1] for key in tx.scan(*span, limit=_MOST_LANES))}
        groups |= {group or "" for tenant, group in swept.joined if tenant == job.tenant}
        priority, seq = self._record.priority, self._record.seq
        asked = {
            group: tx.tr.snapshot.get_range(
                tx.keys.span(k.READY, job.queue, job.tenant, group)[0],
                tx.keys.pack(k.READY, job.queue, job.tenant, group, priority, *seq),
                limit=why.MOST_AHEAD + _MOST_SWEPT,
            )
            for group in groups
        }
        counts = {
            group: len(list(rows)) + swept.before((job.tenant, group), (priority, seq))
            for group, rows in asked.items()
        }
        in_lane = counts.pop(job.group)
        return in_lane, in_lane + sum(min(n, self._room(group)) for group, n in counts.items())

    def _room(self, group: str) -> int:
        """How many more jobs of a group of the tenant may start."""
        tenant = self.job.tenant
        bound = self.rules.group_concurrency(tenant, group)
        if self.rules.group_paused(tenant, group):
            return 0
        return UNLIMITED if bound is None else max(0, bound - self.used((tenant, group)))

    def turns(self, room: int) -> DryRun | None:
        return None
