"""The facts for Explain, for both SQL engines.

The books say what was true at the last write. A claim would first sweep, and on PostgreSQL fold the
news in; these changes are added here to the books as read. All counts stop early.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

from tenure.core.explain import Other, Place
from tenure.core.limits import EVERYTHING, Rules, TenantGroup, refilled
from tenure.engines.sql.limits import mark, unmark
from tenure.engines.sql.rows import DELAYED, LEASED, READY, STATES, decode_options
from tenure.engines.sql.snapshot import Row, StoreSnapshot
from tenure.engines.sql.turns import MOST_TURNS, Line, is_among_first
from tenure.model import ops, why
from tenure.model.job import FINAL, IfParentFails, State
from tenure.model.record_queries import Read

Head = tuple[int, int]  # priority, seq

_MOST_SWEPT = 1_000  # of each kind: what a claim sweeps
_HOLDERS_LOOKED_AT = 1_000
_BEFORE_ALL: Head = (-(2**63), 0)
_PAGES = (2, 8, 32, 128, 512)  # lanes that are read together


class StoredJob(NamedTuple):
    """The row of `why_job`."""

    seq: int
    id: str
    code: int
    lane: int
    tenant_id: int
    queue_id: int
    queue: str
    tenant: str
    group: str
    priority: int
    run_at: int
    at: int | None
    attempts: int
    max_attempts: int
    worker: str
    started_at: int | None
    expires_at: int | None
    options: str | None
    tokens: int
    tokens_at: int
    served: int
    queue_ready: int
    queue_leased: int
    tenant_leased: int
    lane_leased: int

    @property
    def state(self) -> State:
        return STATES[self.code]

    @property
    def lease_until(self) -> int | None:
        return self.at if self.code == LEASED else None

    @property
    def finished_at(self) -> int | None:
        return self.at if self.state in FINAL else None

    @property
    def if_parent_fails(self) -> IfParentFails:
        return decode_options(self.options).if_parent_fails

    @property
    def head(self) -> Head:
        return self.priority, self.seq


class Lane(NamedTuple):
    """A lane, as in the books."""

    id: int
    tenant: int
    open: bool
    max_leased: int | None
    leased: int
    ready: int


class Tenant(NamedTuple):
    """A tenant, as in the books."""

    id: int
    name: str
    turn: int
    stride: int
    max_leased: int | None
    leased: int
    open: bool
    open_lanes: int


class Changed:
    """What the next claim changes in the books before it looks at them."""

    def __init__(self, snapshot: StoreSnapshot, job: StoredJob, now: int) -> None:
        self.lanes: dict[int, list[int]] = defaultdict(list)  # by tenant
        self.ready: Counter[int] = Counter()  # by lane: how many more, or fewer
        self.leased: Counter[int] = Counter()
        self.leased_of: Counter[int] = Counter()  # by tenant
        self.added: dict[int, list[Head]] = defaultdict(list)  # by lane: jobs that become ready
        self.removed: dict[int, list[Head]] = defaultdict(list)  # and ready jobs that die
        self.turns: dict[int, list[Row]] = defaultdict(list)  # by tenant: served, turn, last_turn
        for lane, tenant, ready, leased, *turn in snapshot.news(job.queue_id):
            self._change(lane, tenant, ready, leased)
            self.turns[tenant].append(tuple(turn))
        seen: set[int] = set()
        params = {"queue": job.queue_id, "now": now, "most": _MOST_SWEPT}
        for row in snapshot.db.named("why_swept", params):
            if row[4] not in seen:
                seen.add(row[4])
                self._sweep(row, now)

    def _sweep(self, row: Row, now: int) -> None:
        lane, tenant, code, priority, seq, attempts, max_attempts, expires_at = row
        dies = expires_at is not None and expires_at <= now
        if code == LEASED:
            self._change(lane, tenant, 0, -1)
            dies = dies or attempts >= max_attempts
        if code == READY and dies:
            self._change(lane, tenant, -1, 0)
            self.removed[lane].append((priority, seq))
        elif code in (LEASED, DELAYED) and not dies:
            self._change(lane, tenant, 1, 0)
            self.added[lane].append((priority, seq))

    def _change(self, lane: int, tenant: int, ready: int, leased: int) -> None:
        if lane not in self.ready:
            self.lanes[tenant].append(lane)
        self.ready[lane] += ready
        self.leased[lane] += leased
        self.leased_of[tenant] += leased

    def room(self, lane: Lane) -> int:
        """How many jobs of a lane its limit allows to start."""
        ready = lane.ready + self.ready[lane.id]
        if lane.max_leased is None:
            return ready
        return max(0, min(ready, lane.max_leased - lane.leased - self.leased[lane.id]))


class SqlFacts:
    """Implements core.explain.Facts."""

    def __init__(self, snapshot: StoreSnapshot, job: StoredJob, records: Read) -> None:
        self.job = job
        self.records = records
        self.now: int = snapshot.now()
        self._snapshot = snapshot
        self._db = snapshot.db

    @property
    def in_line(self) -> bool:
        return self.job.code == READY

    @property
    def lease_is_over(self) -> bool:
        return self.job.lease_until is not None and self.job.lease_until <= self.now

    @cached_property
    def _changed(self) -> Changed:
        return Changed(self._snapshot, self.job, self.now)

    @cached_property
    def rules(self) -> Rules:
        job = self.job
        names = {"queue": job.queue, "tenant": mark(job.tenant), "grp": mark(job.group)}
        limits: dict[TenantGroup, ops.Limit] = {}
        for tenant, grp, concurrency, rate, per_ms, weight, paused in self._db.named(
            "why_limits", names
        ):
            scope = unmark(tenant), unmark(grp)
            limits[scope] = ops.Limit(
                job.queue, *scope, concurrency, rate, per_ms, weight, bool(paused)
            )
        return Rules(job.queue, limits)

    def parents(self) -> tuple[Sequence[Other], int]:
        rows = self._db.named("why_parents", {"seq": self.job.seq, "most": why.PARENTS_LOOKED_AT})
        count = int(rows[0][4]) if rows else 0
        return [Other(id, queue, of, STATES[code]) for id, queue, of, code, _ in rows], count

    def used(self, scope: TenantGroup) -> int:
        job, changed = self.job, self._changed
        if scope == EVERYTHING:
            return job.queue_leased + sum(changed.leased.values())
        if scope[1] is None:
            return job.tenant_leased + changed.leased_of[job.tenant_id]
        return job.lane_leased + changed.leased[job.lane]

    def holders(self, scope: TenantGroup) -> Sequence[Other]:
        tenant, group = scope
        params = {
            "queue": self.job.queue_id,
            "now": self.now,
            "tenant": tenant,
            "grp": group,
            "most": _HOLDERS_LOOKED_AT,
        }
        rows = self._db.named("why_holders", params)
        return [Other(id, self.job.queue, of, State.LEASED) for id, of in rows]

    def bucket(self) -> tuple[int, int]:
        at = self.job.tokens_at
        return refilled(self.job.tokens, self.now - at, self.rules.whole), max(self.now, at)

    def is_worked_on(self) -> bool:
        return self.used(EVERYTHING) > 0

    # Its place ----------------------------------------------------------------------------------

    def place(self) -> Place:
        lanes = dict.fromkeys([self.job.lane, *self._changed.lanes[self.job.tenant_id]])
        ahead = self._ahead_in(list(lanes))
        in_lane = ahead.pop(self.job.lane, 0)
        of_tenant = in_lane
        for lane in self._lanes(list(ahead)):
            of_tenant += min(ahead[lane.id], self._changed.room(lane))
        of_tenant += self._ahead_elsewhere(lanes, why.MOST_AHEAD - of_tenant)
        return Place(
            min(in_lane, why.MOST_AHEAD), min(of_tenant, why.MOST_AHEAD), self._tenants_ahead()
        )

    def _ahead_in(self, lanes: list[int]) -> dict[int, int]:
        """How many ready jobs of these lanes come first."""
        job, changed = self.job, self._changed
        params = {
            "queue": job.queue_id,
            "lanes": self._snapshot.listed(lanes),
            "priority": job.priority,
            "seq": job.seq,
            "most": why.MOST_AHEAD + _MOST_SWEPT,  # of which some may die
        }
        counts = dict.fromkeys(lanes, 0)
        for lane, count in self._db.named("why_ahead", params):
            counts[lane] = int(count)
        for lane in counts:
            counts[lane] += sum(head < job.head for head in changed.added[lane])
            counts[lane] -= sum(head < job.head for head in changed.removed[lane])
        return counts

    def _ahead_elsewhere(self, but: dict[int, None], most: int) -> int:
        """The same in the other open lanes of the tenant, as many as their limits allow to
        start."""
        count, after = 0, _BEFORE_ALL
        for size in _pages():
            if count >= most:
                break
            params = {
                "queue": self.job.queue_id,
                "tenant": self.job.tenant_id,
                "priority": self.job.priority,
                "seq": self.job.seq,
                "after_priority": after[0],
                "after_seq": after[1],
                "limit": size,
                "most": most,
            }
            rows = self._db.named("why_lanes_before", params)
            for lane, priority, seq, room, ahead in rows:
                after = (priority, seq)
                if lane not in but:
                    count += ahead if room is None else min(ahead, room)
            if len(rows) < size:
                break
        return count

    def _lanes(self, ids: Sequence[int]) -> list[Lane]:
        rows = self._db.all("why_lanes", self._snapshot.listed(ids)) if ids else []
        return [Lane(*row) for row in rows]

    @cached_property
    def _changed_lanes(self) -> dict[int, list[Lane]]:
        """By tenant."""
        found: dict[int, list[Lane]] = defaultdict(list)
        for lane in self._lanes(list(self._changed.ready)):
            found[lane.tenant].append(lane)
        return found

    @cached_property
    def _changed_tenants(self) -> list[Tenant]:
        """The tenants of changed lanes, and the job's own, as in the books."""
        ids = {self.job.tenant_id, *self._changed.lanes}
        rows = self._db.all("why_tenants", self._snapshot.listed(sorted(ids)))
        return [Tenant(*row) for row in rows]

    @cached_property
    def _turns(self) -> tuple[dict[int, int], int]:
        """The turns of changed tenants, by id, and the place of the last turn served."""
        turns: dict[int, int] = {}
        last = self.job.served
        for tenant in self._changed_tenants:
            mine = self._changed.turns[tenant.id]
            served = sum(row[0] for row in mine)
            turn = tenant.turn
            if served:
                turn = max(turn, self.job.served + 1) + served * tenant.stride
            turn = max([turn, *(row[1] for row in mine if row[1] is not None)])
            if served:
                last = max(last, turn - tenant.stride)
            last = max([last, *(row[2] for row in mine if row[2] is not None)])
            turns[tenant.id] = turn
        return turns, last

    def _tenants_ahead(self) -> int:
        turns, _ = self._turns
        mine = (turns[self.job.tenant_id], self.job.tenant)
        changed = self._changed_tenants
        params = {
            "queue": self.job.queue_id,
            "turn": mine[0],
            "tenant": mine[1],
            "most": why.MOST_AHEAD + len(changed),
        }
        ((count,),) = self._db.named("why_tenants_ahead", params)
        for tenant in changed:
            count -= tenant.open and (tenant.turn, tenant.name) < mine
            if (turns[tenant.id], tenant.name) < mine:
                count += self._startable(tenant) > 0
        return min(int(count), why.MOST_AHEAD)

    def _startable(self, tenant: Tenant) -> int:
        """How many jobs of a changed tenant its limits allow to start; at least one of those in
        lanes that have not changed, if there are any."""
        lanes = self._changed_lanes[tenant.id]
        return self._capped(tenant, tenant.open_lanes > sum(lane.open for lane in lanes))

    def _room(self, tenant: Tenant) -> int:
        if tenant.max_leased is None:
            return 2**31
        return max(0, tenant.max_leased - tenant.leased - self._changed.leased_of[tenant.id])

    # Whose turn it is ---------------------------------------------------------------------------

    def is_among_first(self, count: int, place: Place) -> bool:
        if self.job.queue_ready + sum(self._changed.ready.values()) <= count:
            return True
        before = place.of_tenant + (place.tenants or 0)  # each tenant takes at least one
        if before >= count or place.of_tenant >= why.MOST_AHEAD:
            return False
        if count > MOST_TURNS:
            return True  # most likely
        turns, served = self._turns
        mine = Line(self.job.tenant, turns[self.job.tenant_id], self._own_stride, 2**31)
        return is_among_first(mine, place.of_tenant, self._others(count), served, count)

    @property
    def _own_stride(self) -> int:
        (stride,) = (x.stride for x in self._changed_tenants if x.id == self.job.tenant_id)
        return stride

    def _others(self, most: int) -> list[Line]:
        """The other tenants that can be served, or as many as have a chance."""
        turns, _ = self._turns
        changed = self._changed_tenants
        known = {tenant.id for tenant in changed}
        rows = self._db.all("why_open_tenants", self.job.queue_id, most + len(changed))
        same = [Tenant(*row) for row in rows if row[0] not in known]
        others = [tenant for tenant in changed if tenant.id != self.job.tenant_id]
        share = max(2, most // max(1, len(same) + len(others)))
        counted = self._startable_unchanged([x.id for x in (*same, *others)], share)
        lines = []
        for tenant in (*same, *others):
            found, lanes = counted.get(tenant.id, (0, 0))
            more = partial(self._startable_of, tenant, most) if lanes == share else None
            left = self._capped(tenant, found)
            if left:
                turn = turns.get(tenant.id, tenant.turn)
                lines.append(Line(tenant.name, turn, tenant.stride, left, more))
        return lines

    def _startable_of(self, tenant: Tenant, lanes: int) -> int:
        """How many jobs of a tenant can start, in this many lanes."""
        found, _ = self._startable_unchanged([tenant.id], lanes)[tenant.id]
        return self._capped(tenant, found)

    def _capped(self, tenant: Tenant, unchanged: int) -> int:
        """How many jobs of a tenant can start, if lanes that have not changed let this many."""
        found = unchanged + sum(map(self._changed.room, self._changed_lanes[tenant.id]))
        return min(found, self._room(tenant))

    def _startable_unchanged(self, tenants: list[int], lanes: int) -> dict[int, tuple[int, int]]:
        """By tenant: how many jobs can start in the first of its open lanes, except changed ones,
        and how many lanes these are."""
        params = {
            "tenants": self._snapshot.listed(tenants),
            "but": self._snapshot.listed(list(self._changed.ready)),
            "limit": lanes,
        }
        rows = self._db.named("why_startable", params)
        return {tenant: (int(found), int(count)) for tenant, found, count in rows}


def _pages() -> Iterator[int]:
    yield from _PAGES
    while True:
        yield _PAGES[-1]
