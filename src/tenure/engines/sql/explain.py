"""The facts for Explain, for both SQL engines.

The books say what was true at the last write. A claim would first sweep, and on PostgreSQL fold the
news in; these changes are added here to the books as read. All counts stop early.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

from tenure.core.claim import UNLIMITED, serve
from tenure.core.limits import EVERYTHING, Rules, TenantGroup, refilled
from tenure.engines.sql.limit_names import mark, unmark
from tenure.engines.sql.rows import READY, STATES
from tenure.engines.sql.snapshot import StoreSnapshot
from tenure.features.why import data as why
from tenure.features.why.dry_run import DryRun, Line, Other, Swept
from tenure.model import ops
from tenure.model.job import Job, State
from tenure.model.record_queries import Read

_MOST_SWEPT = 1_000  # of each kind: what a claim sweeps
_HOLDERS_LOOKED_AT = 1_000
_BEFORE_ALL = (-(2**63), 0)
_MOST_LANES = 512  # that are read together


class Books(NamedTuple):
    """The books of a job. The row of `why_books`."""

    seq: int
    state: int
    lane: int
    tenant: int
    queue: int
    tokens: int
    tokens_at: int
    served: int
    queue_leased: int
    tenant_leased: int


class Lane(NamedTuple):
    """A row of `why_lanes`."""

    id: int
    tenant: int
    open: bool
    max_leased: int | None
    leased: int
    ready: int

    @property
    def room(self) -> int:
        """How many jobs may start."""
        bound = UNLIMITED if self.max_leased is None else self.max_leased - self.leased
        return max(0, min(self.ready, bound))


class Tenant(NamedTuple):
    """A row of `why_tenants`."""

    id: int
    name: str
    turn: int
    stride: int
    max_leased: int | None
    leased: int
    open_lanes: int


class News(NamedTuple):
    """What is not in the books of a lane yet. See StoreSnapshot.news."""

    lane: int
    ready: int
    leased: int
    served: int
    turn: int | None
    last_turn: int | None


class SqlFacts:
    """Implements core.explain.Facts."""

    def __init__(self, snapshot: StoreSnapshot, job: Job, records: Read) -> None:
        self.job = job
        self.records = records
        self.now: int = snapshot.now()
        self._snapshot = snapshot
        self._db = snapshot.db
        self._books = Books(*snapshot.db.all("why_books", job.id)[0])

    @property
    def is_ready(self) -> bool:
        return self._books.state == READY

    @property
    def lease_is_over(self) -> bool:
        return self.job.lease_until is not None and self.job.lease_until <= self.now

    @cached_property
    def rules(self) -> Rules:
        job = self.job
        names = {"queue": job.queue, "tenant": mark(job.tenant), "grp": mark(job.group)}
        limits: dict[TenantGroup, ops.Limit] = {}
        for tenant, grp, bound, rate, per_ms, weight, paused in self._db.named("why_limits", names):
            scope = unmark(tenant), unmark(grp)
            bounds = (bound, rate, per_ms, weight, bool(paused))
            limits[scope] = ops.Limit(job.queue, *scope, *bounds)
        return Rules(job.queue, limits)

    def parents(self) -> tuple[Sequence[Other], int]:
        params = {"seq": self._books.seq, "most": why.PARENTS_LOOKED_AT}
        rows = self._db.named("why_parents", params)
        count = int(rows[0][4]) if rows else 0
        return [Other(id, queue, of, STATES[code]) for id, queue, of, code, _ in rows], count

    def used(self, scope: TenantGroup) -> int:
        if scope == EVERYTHING:
            return self._books.queue_leased + self._more_leased.total()
        if scope[1] is None:
            lanes = self._lanes_of[self._books.tenant]
            return self._books.tenant_leased + sum(self._more_leased[one.id] for one in lanes)
        return self._lanes[self._books.lane].leased

    def is_worked_on(self) -> bool:
        return self.used(EVERYTHING) > 0

    def holders(self, scope: TenantGroup) -> Sequence[Other]:
        tenant, group = scope
        params = {"queue": self._books.queue, "until": self.now, "most": _HOLDERS_LOOKED_AT}
        rows = self._db.named("why_holders", {"tenant": tenant, "grp": group, **params})
        return [Other(id, self.job.queue, of, State.LEASED) for id, of in rows]

    def bucket(self) -> tuple[int, int]:
        at = self._books.tokens_at
        return refilled(self._books.tokens, self.now - at, self.rules.whole), max(self.now, at)

    # What the next claim changes before it looks at the books -----------------------------------

    @cached_property
    def _news(self) -> dict[int, News]:
        return {row[0]: News(*row) for row in self._snapshot.news(self._books.queue)}

    @cached_property
    def _swept(self) -> Swept[int]:
        swept = Swept[int](self.now)
        params = {"queue": self._books.queue, "until": self.now, "most": _MOST_SWEPT}
        for row in self._db.named("why_swept", params):
            lane, code, priority, seq, attempts, max_attempts, expires_at = row
            is_last = attempts >= max_attempts
            swept.add(lane, (priority, seq), STATES[code], code == READY, is_last, expires_at)
        return swept

    @cached_property
    def _more_leased(self) -> Counter[int]:
        """By lane: how many more jobs are leased, or fewer."""
        leased = Counter({lane: one.leased for lane, one in self._news.items()})
        leased.subtract(self._swept.ended)
        return leased

    @cached_property
    def _lanes(self) -> dict[int, Lane]:
        """Those that change, and the job's own, as the claim will find them."""
        swept, news = self._swept, self._news
        ids = sorted({self._books.lane, *news, *swept.ended, *swept.joined, *swept.left})
        lanes: dict[int, Lane] = {}
        for lane in map(Lane._make, self._db.all("why_lanes", self._snapshot.listed(ids))):
            ready = lane.ready + swept.ready(lane.id)
            ready += news[lane.id].ready if lane.id in news else 0
            leased = lane.leased + self._more_leased[lane.id]
            lanes[lane.id] = lane._replace(ready=ready, leased=leased)
        return lanes

    @cached_property
    def _lanes_of(self) -> dict[int, list[Lane]]:
        """The same by tenant."""
        found: dict[int, list[Lane]] = defaultdict(list)
        for lane in self._lanes.values():
            found[lane.tenant].append(lane)
        return found

    # Its place ----------------------------------------------------------------------------------

    def ahead(self) -> tuple[int, int]:
        books, place = self._books, (self.job.priority, self._books.seq)
        lanes = {lane.id: lane for lane in self._lanes_of[books.tenant]}
        params = {"queue": books.queue, "tenant": books.tenant, "priority": place[0]}
        params |= {"seq": place[1], "most": why.MOST_AHEAD + _MOST_SWEPT}  # of which some may die
        listed = {"lanes": self._snapshot.listed(list(lanes))}
        before = {
            lane: count + self._swept.before(lane, place)
            for lane, count in self._db.named("why_ahead", params | listed)
        }
        in_lane = before.pop(books.lane)
        count = in_lane + sum(min(before[lane], lanes[lane].room) for lane in before)
        after, size = _BEFORE_ALL, 2
        while count < why.MOST_AHEAD and size:
            page = {"after_priority": after[0], "after_seq": after[1], "limit": size}
            rows = self._db.named("why_lanes_before", params | page)
            for lane, priority, seq, room, more in rows:
                after = (priority, seq)
                if lane not in lanes:
                    count += more if room is None else min(more, room)
            size = min(4 * size, _MOST_LANES) if len(rows) == size else 0
        return in_lane, count

    def turns(self, room: int) -> DryRun:
        """Without room, only the tenants of changed lanes are read, and the others are counted."""
        books, ids = self._books, sorted({self._books.tenant, *self._lanes_of})
        params = {"queue": books.queue, "ids": self._snapshot.listed(ids)}
        rows = self._db.named("why_tenants", params | {"most": room + len(ids) if room else 0})
        share = max(2, room // len(rows))
        counted = self._counted([row[0] for row in rows], share) if room else {}
        run = DryRun(books.served)
        for tenant in map(Tenant._make, rows):
            lanes = self._lanes_of.get(tenant.id, [])
            # An open lane has at least one job that may start.
            unchanged = tenant.open_lanes - sum(lane.open for lane in lanes)
            has_more = bool(room) and unchanged > share
            count_all = partial(self._count_all, tenant, room) if has_more else None
            count = self._capped(tenant, counted.get(tenant.id, unchanged))
            line = Line(tenant.name, tenant.turn, tenant.stride, count, count_all)
            news = [self._news[lane.id] for lane in lanes if lane.id in self._news]
            run.served = max(run.served, self._fold(line, news) if news else 0)
            if count or tenant.id == books.tenant:
                run.lines[tenant.name] = line
        if not room:
            mine = run.lines[self.job.tenant]
            place = {"turn": mine.turn, "tenant": mine.name, "most": why.MOST_AHEAD}
            ((run.others_ahead,),) = self._db.named("why_tenants_ahead", params | place)
        return run

    def _fold(self, line: Line, news: Sequence[News]) -> int:
        """Move the turn of a tenant as the news says. Returns the turn that was served last."""
        times = sum(one.served for one in news)
        beside = DryRun(self._books.served)
        beside.lines[line.name] = mine = Line(line.name, line.turn, line.stride, times)
        serve(beside, times)
        line.turn = max([mine.turn, *(one.turn or 0 for one in news)])
        last = line.turn - line.stride if times else 0
        return max([beside.served, last, *(one.last_turn or 0 for one in news)])

    def _counted(self, tenants: list[int], lanes: int) -> dict[int, int]:
        """By tenant: how many jobs may start in the first of its open lanes, except changed
        ones."""
        but = self._snapshot.listed(list(self._lanes))
        params = {"tenants": self._snapshot.listed(tenants), "but": but, "limit": lanes}
        rows = self._db.named("why_startable", params)
        return {tenant: int(count or 0) for tenant, count in rows}

    def _count_all(self, tenant: Tenant, lanes: int) -> int:
        return self._capped(tenant, self._counted([tenant.id], lanes)[tenant.id])

    def _capped(self, tenant: Tenant, unchanged: int) -> int:
        """How many jobs of a tenant may start, if lanes that do not change let this many."""
        lanes = self._lanes_of.get(tenant.id, ())
        count = unchanged + sum(lane.room for lane in lanes)
        if tenant.max_leased is None:
            return count
        leased = tenant.leased + sum(self._more_leased[lane.id] for lane in lanes)
        return max(0, min(count, tenant.max_leased - leased))
