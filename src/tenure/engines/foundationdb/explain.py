"""The facts for Explain. They describe what the next claim would find, after its sweep.

Tenants have no order here, since a claim draws them by chance. So a job is claimable if a claim may
draw it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from tenure.core.explain import Other, Place, explain
from tenure.core.limits import EVERYTHING, TenantGroup
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.bucket import Bucket
from tenure.engines.foundationdb.due import due, is_over
from tenure.engines.foundationdb.keys import Seq
from tenure.engines.foundationdb.limits import Rules
from tenure.engines.foundationdb.record import Held, Record
from tenure.engines.foundationdb.side_records import list_records
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import JobNotFound
from tenure.model import queries, why
from tenure.model.job import IfParentFails, State
from tenure.model.queries import Found
from tenure.model.record_queries import ListRecords
from tenure.model.records import Record as SideRecord

Head = tuple[int, Seq]  # priority, seq

_MOST_SWEPT = 250  # of each kind
_MOST_LANES = 250
_HOLDERS_LOOKED_AT = 1_000


class StoredJob(NamedTuple):
    """The job in question."""

    id: str
    record: Record
    state: State
    queue: str
    tenant: str
    group: str
    if_parent_fails: IfParentFails
    attempts: int
    max_attempts: int
    run_at: int
    expires_at: int | None
    worker: str
    started_at: int | None
    lease_until: int | None
    finished_at: int | None

    @property
    def head(self) -> Head:
        return self.record.priority, self.record.seq


def explain_job(tx: Tx, query: queries.Explain) -> Found:
    (held,) = tx.peek([query.id])
    if held is None:
        return JobNotFound(query.id)
    record = held.record
    if query.grant is not None and not query.grant.allows(record.queue, record.tenant):
        return JobNotFound(query.id)
    fields = (getattr(record, name) for name in StoredJob._fields[2:])
    return explain(FdbFacts(tx, StoredJob(query.id, record, *fields)), query.grant)


class Swept:
    """What a claim would sweep first, by group of a tenant."""

    def __init__(self, tx: Tx, queue: str) -> None:
        self.over: set[str] = set()  # ids of jobs whose lease expired
        self.freed: Counter[TenantGroup] = Counter()
        self.added: dict[TenantGroup, list[Head]] = defaultdict(list)
        self.removed: dict[TenantGroup, list[Head]] = defaultdict(list)
        until = tx.store.sweep_until(tx.now)
        indexes = ((k.ENDING, until), (k.DELAYED, tx.now), (k.EXPIRING, tx.now))
        ids = [
            job_id for kind, to in indexes for _, job_id in due(tx, kind, queue, to, _MOST_SWEPT)
        ]
        for held in tx.peek(dict.fromkeys(ids)):
            if held is not None:
                self._sweep(tx, held)

    def _sweep(self, tx: Tx, held: Held) -> None:
        record = held.record
        lane, head = (record.tenant, record.group), (record.priority, record.seq)
        dies = record.expires_at is not None and record.expires_at <= tx.now
        if record.state is State.LEASED:
            if not is_over(tx, record):
                return
            self.over.add(held.id)
            self.freed.update([EVERYTHING, (record.tenant, None), lane])
            dies = dies or record.attempts >= record.max_attempts
        elif record.state is not State.PENDING:
            return
        elif record.ready:
            if dies:
                self.removed[lane].append(head)
            return
        if not dies and (record.state is State.LEASED or record.run_at <= tx.now):
            self.added[lane].append(head)


class FdbFacts:
    """Implements core.explain.Facts."""

    def __init__(self, tx: Tx, job: StoredJob) -> None:
        self._tx = tx
        self.job = job
        self.now: int = tx.now
        self.rules: Rules = tx.rules(job.queue)

    @property
    def in_line(self) -> bool:
        return self.job.record.ready

    @property
    def lease_is_over(self) -> bool:
        return is_over(self._tx, self.job.record)

    @cached_property
    def _swept(self) -> Swept:
        return Swept(self._tx, self.job.queue)

    def parents(self) -> tuple[Sequence[Other], int]:
        tx = self._tx
        ids = [parent for _, parent in tx.scan(*tx.keys.span(k.WAITS, self.job.id))]
        found = [one for one in tx.peek(ids[: why.PARENTS_LOOKED_AT]) if one is not None]
        return [_other(one) for one in found], len(ids)

    def used(self, scope: TenantGroup) -> int:
        return self._tx.in_use(self.job.queue, scope) - self._swept.freed[scope]

    def holders(self, scope: TenantGroup) -> Sequence[Other]:
        tx, queue = self._tx, self.job.queue
        within = [name for name in scope if name is not None]
        span = tx.keys.span(k.LEASE, queue, *within)
        return [
            Other(job_id, queue, tenant, State.LEASED)
            for _, tenant, _, job_id in tx.scan(*span, limit=_HOLDERS_LOOKED_AT)
            if job_id not in self._swept.over
        ]

    def bucket(self) -> tuple[int, int]:
        bucket = Bucket(self._tx, self.job.queue, self.rules.whole)
        return bucket.tokens, bucket.counted_at

    def is_worked_on(self) -> bool:
        return bool(self.holders(EVERYTHING))

    def records(self, part: ListRecords) -> list[SideRecord]:
        return list_records(self._tx, part)

    def place(self) -> Place:
        own = (self.job.tenant, self.job.group)
        ahead = self._ahead()
        in_lane = ahead.pop(own, 0)
        of_tenant = in_lane + sum(min(count, self._room(lane)) for lane, count in ahead.items())
        return Place(min(in_lane, why.MOST_AHEAD), min(of_tenant, why.MOST_AHEAD), None)

    def _ahead(self) -> dict[TenantGroup, int]:
        """By group: the jobs of the tenant that come first."""
        tx, job = self._tx, self.job
        span = tx.keys.span(k.LANE, job.queue, job.tenant)
        groups = [key[-1] for key in tx.scan(*span, limit=_MOST_LANES)]
        lanes: set[TenantGroup] = {(job.tenant, group) for group in (*groups, job.group)}
        lanes |= {lane for lane in self._swept.added if lane[0] == job.tenant}
        priority, seq = job.head
        asked = {
            lane: tx.tr.snapshot.get_range(
                tx.keys.span(k.READY, job.queue, *lane)[0],
                tx.keys.pack(k.READY, job.queue, *lane, priority, *seq),
                limit=why.MOST_AHEAD + _MOST_SWEPT,
            )
            for lane in lanes
        }
        counts: dict[TenantGroup, int] = {}
        for lane, rows in asked.items():
            counts[lane] = sum(1 for _ in rows)
            counts[lane] += sum(head < job.head for head in self._swept.added[lane])
            counts[lane] -= sum(head < job.head for head in self._swept.removed[lane])
        return counts

    def _room(self, lane: TenantGroup) -> int:
        """How many more jobs of a group may start."""
        tenant, group = lane
        assert tenant is not None
        assert group is not None
        bound = self.rules.group_concurrency(tenant, group)
        if self.rules.group_paused(tenant, group):
            return 0
        return why.MOST_AHEAD if bound is None else max(0, bound - self.used(lane))

    def is_among_first(self, count: int, place: Place) -> bool:
        return place.of_tenant < count


def _other(held: Held) -> Other:
    record = held.record
    return Other(held.id, record.queue, record.tenant, record.state)
