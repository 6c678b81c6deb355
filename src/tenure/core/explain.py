"""Explain: turns what a store knows about a job into the reasons that hold it back.

An engine provides the facts, all of one snapshot. They describe the store as the next claim would
find it: a claim first sweeps, so an expired lease holds no limit, and a job that is due is ready.
Facts that cost something are methods, called only when needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tenure.core.limits import EVERYTHING, Rules, TenantGroup
from tenure.features.live_workers.data import has_worker, last_seen
from tenure.model import ops, why
from tenure.model.job import FINAL, State
from tenure.model.ops import Grant
from tenure.model.past_records import heard_at
from tenure.model.pause_records import pause_note
from tenure.model.record_queries import ListRecords
from tenure.model.records import Record

NO_GRANT = Grant()


class Subject(why.Subject, Protocol):
    """The job."""

    @property
    def attempts(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def run_at(self) -> int: ...
    @property
    def expires_at(self) -> int | None: ...
    @property
    def worker(self) -> str: ...
    @property
    def started_at(self) -> int | None: ...
    @property
    def lease_until(self) -> int | None: ...
    @property
    def finished_at(self) -> int | None: ...


class Other(NamedTuple):
    """Another job, and whose it is."""

    id: str
    queue: str
    tenant: str
    state: State


class Place(NamedTuple):
    """What comes before a ready job: jobs in its lane, jobs of its tenant that the limits of their
    groups let start, and tenants, if they have an order. None is counted beyond MOST_AHEAD."""

    in_lane: int
    of_tenant: int
    tenants: int | None


class Facts(Protocol):
    """What an engine knows about a job."""

    @property
    def job(self) -> Subject: ...
    @property
    def now(self) -> int: ...
    @property
    def in_line(self) -> bool:
        """Whether the job is pending and ready, as stored."""

    @property
    def lease_is_over(self) -> bool:
        """Whether the job is leased, and the next claim takes the lease back."""

    @property
    def rules(self) -> Rules:
        """The limits that may apply to the job."""

    def parents(self) -> tuple[Sequence[Other], int]:
        """Jobs that it waits for, the first PARENTS_LOOKED_AT by id, and how many there are."""

    def used(self, scope: TenantGroup) -> int:
        """How many leases count against a limit."""

    def holders(self, scope: TenantGroup) -> Sequence[Other]:
        """Some of the jobs that hold them: at least MOST_HOLDERS, if there are that many."""

    def bucket(self) -> tuple[int, int]:
        """The tokens in the bucket of the queue's rate limit, and the time they were counted at:
        later than now if the clock was set back."""

    def is_worked_on(self) -> bool:
        """Whether any job of the queue is leased."""

    def records(self, part: ListRecords) -> list[Record]:
        """Records of the same snapshot."""

    def place(self) -> Place:
        """Its place, if it is ready."""

    def is_among_first(self, count: int, place: Place) -> bool:
        """Whether it is among the first jobs that a claim takes, if the queue has room for only
        this many. Called if the tenant's own limits leave room for it. May be approximate if
        there is room for more jobs than one claim takes."""


def explain(facts: Facts, grant: Grant | None) -> why.Explained:
    """What holds the job back, without what the grant does not allow to see."""
    claimable, reasons = _Explaining(facts, grant or NO_GRANT).result()
    return why.explained(facts.job, facts.now, claimable, reasons)


class _Bound(NamedTuple):
    """A concurrency limit that applies to the job."""

    scope: why.Scope
    leases: TenantGroup  # that count against it
    limit: ops.Limit
    concurrency: int


class _Explaining:
    def __init__(self, facts: Facts, grant: Grant) -> None:
        self._facts = facts
        self._job = facts.job
        self._grant = grant

    def result(self) -> tuple[bool, list[why.AnyReason]]:
        job, facts = self._job, self._facts
        if job.state in FINAL:
            return False, [self._finished(job.finished_at or 0)]
        reasons: list[why.AnyReason] = []
        if job.state is State.LEASED:
            until = job.lease_until or 0
            if not facts.lease_is_over:
                return False, [why.Running(job.worker, job.started_at, until)]
            dies = job.attempts >= job.max_attempts or self._has_expired()
            reasons.append(why.LeaseOver(job.worker, until, dies))
            if dies:
                return False, reasons
        elif self._has_expired():
            assert job.expires_at is not None
            return False, [why.Expired(job.expires_at)]
        blocks = [*self._pauses(), *self._not_yet()]
        if any(isinstance(one, why.WaitsFor | why.Delayed) for one in blocks):
            return False, [*reasons, *blocks]
        claimable, more = self._ready(held_back=bool(blocks))
        return claimable, [*reasons, *blocks, *more]

    def _finished(self, at: int) -> why.Finished:
        job = self._job
        if job.state is not State.CANCELLED or not job.worker:
            return why.Finished(at, job.worker)
        return why.Finished(at, job.worker, heard_at(self._facts.records, job.id, at))

    def _has_expired(self) -> bool:
        return self._job.expires_at is not None and self._job.expires_at <= self._facts.now

    def _pauses(self) -> Iterator[why.Paused]:
        job, rules = self._job, self._facts.rules
        scopes: list[tuple[why.Scope, TenantGroup]] = [
            ("queue", EVERYTHING),
            ("tenant", (job.tenant, None)),
        ]
        if job.group:
            scopes += [("group", (job.tenant, job.group)), ("group", ("*", job.group))]
        for scope, names in scopes:
            if rules.of(*names).paused:
                yield self._paused(scope, names)

    def _paused(self, scope: why.Scope, names: TenantGroup) -> why.Paused:
        note = None
        if self._sees_queue or names[0] == self._job.tenant:
            note = pause_note(self._facts.records, self._job.queue, *names)
        if note is None:
            return why.Paused(scope, *names)
        return why.Paused(scope, *names, note.since, note.by, note.reason)

    def _not_yet(self) -> Iterator[why.AnyReason]:
        job, facts = self._job, self._facts
        if job.state is State.WAITING:
            found, count = facts.parents()
            failed = (State.DEAD, State.CANCELLED)
            # They come in the order of their ids. One that is done has not told all children yet.
            last = State.DONE
            found = sorted(found, key=lambda one: (one.state not in failed, one.state is last))
            yield why.WaitsFor([self._parent(one) for one in found[: why.MOST_PARENTS]], count)
        elif job.state is State.PENDING and not facts.in_line and job.run_at > facts.now:
            yield why.Delayed(job.run_at, job.attempts, job.max_attempts)

    def _parent(self, one: Other) -> why.Parent:
        return why.Parent(one.id, one.state if self._grant.allows(one.queue, one.tenant) else None)

    # A job that is ready ------------------------------------------------------------------------

    def _ready(self, held_back: bool) -> tuple[bool, list[why.AnyReason]]:
        facts, place = self._facts, self._facts.place()
        reasons: list[why.AnyReason] = []
        rooms: dict[why.Scope, int] = {}
        for bound in self._bounds():
            used = facts.used(bound.leases)
            rooms[bound.scope] = bound.concurrency - used
            if rooms[bound.scope] <= 0:
                reasons.append(self._limited(bound, used))
        by_rate = self._room_by_rate()
        if by_rate is not None:
            room, next_at = by_rate
            rooms["queue"] = min(room, rooms.get("queue", room))
            if room <= 0:
                reasons.append(why.RateLimited(next_at if self._sees_queue else None))
        claimable = not held_back and not reasons and self._fits(rooms, place)
        reasons += self._no_worker()
        line = self._in_line(rooms, place)
        if claimable and not line.ahead and not line.tenants_ahead:
            return True, [*reasons, why.Next()]
        return claimable, [*reasons, line]

    def _bounds(self) -> Iterator[_Bound]:
        job, rules = self._job, self._facts.rules
        found: list[tuple[why.Scope, TenantGroup, ops.Limit | None]] = [
            ("queue", EVERYTHING, rules.whole),
            ("tenant", (job.tenant, None), rules.tenant_limit(job.tenant)),
            ("group", (job.tenant, job.group), rules.group_limit(job.tenant, job.group)),
        ]
        for scope, leases, limit in found:
            if limit is not None and limit.concurrency is not None:
                yield _Bound(scope, leases, limit, limit.concurrency)

    def _limited(self, bound: _Bound, used: int) -> why.Limited:
        shown = bound.scope != "queue" or self._sees_queue
        holders = [
            one.id
            for one in self._facts.holders(bound.leases)
            if self._grant.allows(one.queue, one.tenant)
        ]
        return why.Limited(
            bound.scope,
            used if shown else None,
            bound.concurrency if shown else None,
            holders[: why.MOST_HOLDERS],
            bound.limit.tenant,
            bound.limit.group,
        )

    @property
    def _sees_queue(self) -> bool:
        """Whether the caller may see figures of the whole queue."""
        return self._grant.tenants is None

    def _room_by_rate(self) -> tuple[int, int] | None:
        """How many jobs the rate lets start now, and when it lets the next one start."""
        limit = self._facts.rules.whole
        if limit.rate is None or limit.per_ms is None:
            return None
        tokens, at = self._facts.bucket()
        missing = max(0, limit.per_ms - tokens)
        return tokens // limit.per_ms, at - -missing // limit.rate

    def _no_worker(self) -> Iterator[why.NoWorker]:
        """Programs that call `claim` themselves are not known as workers, but their leases are."""
        facts, queue = self._facts, self._job.queue
        if not self._sees_queue or facts.is_worked_on() or has_worker(facts.records, queue):
            return
        yield why.NoWorker(last_seen(facts.records, queue))

    def _fits(self, rooms: dict[why.Scope, int], place: Place) -> bool:
        """Whether its place is within all limits."""
        if place.in_lane >= rooms.get("group", place.in_lane + 1):
            return False
        if place.of_tenant >= rooms.get("tenant", place.of_tenant + 1):
            return False
        return "queue" not in rooms or self._facts.is_among_first(rooms["queue"], place)

    def _in_line(self, rooms: dict[why.Scope, int], place: Place) -> why.InLine:
        shown = [room for scope, room in rooms.items() if scope != "queue" or self._sees_queue]
        tenants = place.tenants if self._sees_queue else None
        room = max(0, min(shown)) if shown else None
        return why.InLine(min(place.of_tenant, why.MOST_AHEAD), tenants, room)
