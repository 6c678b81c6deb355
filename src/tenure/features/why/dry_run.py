"""Explain: what holds a job back, found out by a dry run of the next claim.

An engine provides the facts, all of one snapshot, and nothing is changed. They describe the store
as the next claim would find it: a claim first sweeps, so an expired lease holds no limit, and a job
that is due is ready. Facts that cost something are methods, called only when needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tenure.core.claim import BY_TURN, UNLIMITED, serve
from tenure.core.limits import EVERYTHING, Rules, TenantGroup
from tenure.features.live_workers.data import has_worker, last_seen
from tenure.features.steps.data import suspension
from tenure.features.why import data as why
from tenure.model import ops
from tenure.model.job import FINAL, Job, State
from tenure.model.ops import Grant
from tenure.model.past_records import heard_at
from tenure.model.pause_records import pause_note
from tenure.model.record_queries import Read

MOST_TURNS = 1_000  # that it is worth to look ahead
NO_GRANT = Grant()
K = TypeVar("K")


class Other(NamedTuple):
    """Another job, and whose it is."""

    id: str
    queue: str
    tenant: str
    state: State


class Swept(Generic[K]):
    """What the sweep before the next claim changes, by lane: leases that end, and the places of
    jobs that join or leave the line."""

    def __init__(self, now: int) -> None:
        self.ended: Counter[K] = Counter()
        self.joined: dict[K, list[Any]] = defaultdict(list)
        self.left: dict[K, list[Any]] = defaultdict(list)
        self._now = now

    def add(
        self,
        lane: K,
        place: Any,
        state: State,
        is_ready: bool,
        is_last: bool,
        expires_at: int | None,
    ) -> None:
        """A job that is due. is_last: whether it has no attempt left."""
        dies = expires_at is not None and expires_at <= self._now
        if state is State.LEASED:
            self.ended[lane] += 1
            dies = dies or is_last
        if is_ready and dies:
            self.left[lane].append(place)
        elif not is_ready and not dies:
            self.joined[lane].append(place)

    def ready(self, lane: K) -> int:
        """How many more jobs of a lane are ready, or fewer."""
        return len(self.joined[lane]) - len(self.left[lane])

    def before(self, lane: K, place: Any) -> int:
        """The same of those before a place."""
        joined = [one for one in self.joined[lane] if one < place]
        return len(joined) - len([one for one in self.left[lane] if one < place])


class Line:
    """A tenant in a dry run. count: how many of its jobs may start, or at least some of them if
    `count_all` counts all."""

    def __init__(
        self,
        name: str,
        turn: int,
        stride: int,
        count: int,
        count_all: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.turn = turn
        self.stride = stride
        self.count = count
        self.taken = 0
        self._count_all = count_all

    def take(self, most: int) -> int:
        if self.taken + most > self.count and self._count_all is not None:
            self.count, self._count_all = self._count_all(), None
        count = min(most, self.count - self.taken)
        self.taken += count
        return count


class DryRun:
    """The tenants of a queue that have something to claim, or those of them that matter. Implements
    core.claim.Turns. others_ahead: how many of the others have an earlier turn."""

    def __init__(self, served: int) -> None:
        self.served = served
        self.lines: dict[str, Line] = {}
        self.others_ahead = 0

    def tenants(self, room: int) -> Iterator[Line]:
        return iter(sorted(self.lines.values(), key=BY_TURN))

    def take(self, line: Line, most: int) -> int:
        return line.take(most)

    def ahead_of(self, tenant: str) -> int:
        """How many have an earlier turn than this one."""
        mine = BY_TURN(self.lines[tenant])
        return self.others_ahead + sum(BY_TURN(line) < mine for line in self.lines.values())

    def takes(self, tenant: str, ahead: int, room: int) -> bool:
        """Whether a claim with this room takes a job of a tenant that has so many before it."""
        mine = self.lines[tenant]
        mine.count = UNLIMITED
        serve(self, room)
        return mine.taken > ahead


class Facts(Protocol):
    """What an engine knows about a job."""

    @property
    def job(self) -> Job: ...
    @property
    def now(self) -> int: ...
    @property
    def rules(self) -> Rules:
        """The limits that may apply to the job."""

    @property
    def records(self) -> Read: ...
    @property
    def is_ready(self) -> bool:
        """Whether the job is in line, as stored."""

    @property
    def lease_is_over(self) -> bool:
        """Whether the next claim takes the lease of the job back."""

    def parents(self) -> tuple[Sequence[Other], int]:
        """Jobs that it waits for, the first PARENTS_LOOKED_AT by id, and how many there are."""

    def used(self, scope: TenantGroup) -> int:
        """How many leases count against a limit."""

    def is_worked_on(self) -> bool:
        """Whether any job of the queue is leased."""

    def holders(self, scope: TenantGroup) -> Sequence[Other]:
        """Some of the jobs that hold them: at least MOST_HOLDERS, if there are that many."""

    def bucket(self) -> tuple[int, int]:
        """The tokens in the bucket of the queue's rate limit, and the time they were counted at:
        later than now if the clock was set back."""

    def ahead(self) -> tuple[int, int]:
        """How many jobs come before it in its lane, and of its tenant, if the limits of their
        groups let them start. May stop at MOST_AHEAD."""

    def turns(self, room: int) -> DryRun | None:
        """The tenants that have something to claim, if they have an order: at least its own. If
        `room` is not 0, so many that a claim with this room serves no other, with their jobs."""


def explain(facts: Facts, grant: Grant | None) -> why.Explained:
    """What holds the job back, without what the grant does not allow to see."""
    explaining = _Explaining(facts, grant or NO_GRANT)
    reasons = list(explaining.reasons())
    return why.explained(facts.job, facts.now, explaining.claimable, reasons)


class _Explaining:
    def __init__(self, facts: Facts, grant: Grant) -> None:
        self.claimable = False
        self._facts = facts
        self._job = facts.job
        self._grant = grant
        self._sees_queue: bool = grant.tenants is None  # figures of the whole queue

    def reasons(self) -> Iterator[why.AnyReason]:
        job, facts = self._job, self._facts
        has_expired = job.expires_at is not None and job.expires_at <= facts.now
        if job.state in FINAL:
            yield self._finished(job.finished_at or 0)
            return
        if job.state is State.LEASED:
            until = job.lease_until or 0
            if not facts.lease_is_over:
                yield why.Running(job.worker, job.started_at, until)
                return
            dies = has_expired or job.attempts >= job.max_attempts
            yield why.LeaseOver(job.worker, until, dies)
            if dies:
                return
        elif has_expired:
            yield why.Expired(job.expires_at or 0)
            return
        pauses = list(self._pauses())
        yield from pauses
        if job.state is State.WAITING:
            yield from self._suspended()
            yield self._waits_for()
        elif job.state is State.PENDING and not facts.is_ready and job.run_at > facts.now:
            suspended = list(self._suspended())
            delayed = why.Delayed(job.run_at, job.attempts, job.max_attempts)
            yield from suspended or [delayed]
        else:
            yield from self._in_line(is_paused=bool(pauses))

    def _finished(self, at: int) -> why.Finished:
        job = self._job
        if job.state is not State.CANCELLED or not job.worker:
            return why.Finished(at, job.worker)
        return why.Finished(at, job.worker, heard_at(self._facts.records, job.id, at))

    def _pauses(self) -> Iterator[why.Paused]:
        job = self._job
        scopes: list[tuple[why.Scope, TenantGroup]] = [
            ("queue", EVERYTHING),
            ("tenant", (job.tenant, None)),
            ("group", (job.tenant, job.group)),
            ("group", ("*", job.group)),
        ]
        for scope, names in scopes:
            if self._facts.rules.of(*names).paused:
                note = None
                if self._sees_queue or names[0] == job.tenant:
                    note = pause_note(self._facts.records, job.queue, *names)
                known = () if note is None else (note.since, note.by, note.reason)
                yield why.Paused(scope, *names, *known)

    def _suspended(self) -> Iterator[why.AnyReason]:
        found = suspension(self._facts.records, self._job)
        if found is not None:
            yield why.Suspended(found.kind, found.name, found.at, found.until)

    def _waits_for(self) -> why.WaitsFor:
        found, count = self._facts.parents()
        failed, last = (State.DEAD, State.CANCELLED), State.DONE
        # They come in the order of their ids. One that is done has not told all children yet.
        found = sorted(found, key=lambda one: (one.state not in failed, one.state is last))
        parents = [
            why.Parent(one.id, one.state if self._grant.allows(one.queue, one.tenant) else None)
            for one in found[: why.MOST_PARENTS]
        ]
        return why.WaitsFor(parents, count)

    # A job that is ready ------------------------------------------------------------------------

    def _in_line(self, is_paused: bool) -> Iterator[why.AnyReason]:
        facts, job, sees_queue = self._facts, self._job, self._sees_queue
        rooms: dict[why.Scope, int] = {}
        in_lane, ahead = facts.ahead()
        yield from self._limits(rooms)
        room = rooms.get("queue", UNLIMITED)
        turns = facts.turns(0)
        tenants = 0 if turns is None else turns.ahead_of(job.tenant)
        self.claimable = (
            not is_paused
            and in_lane < rooms.get("group", UNLIMITED)
            and ahead < rooms.get("tenant", UNLIMITED)
            and ahead + tenants < room  # each of these tenants takes at least one
            and (room > MOST_TURNS or self._has_turn(ahead, room))
        )
        # Programs that call `claim` themselves are not known as workers, but their leases are.
        if sees_queue and not facts.is_worked_on() and not has_worker(facts.records, job.queue):
            yield why.NoWorker(last_seen(facts.records, job.queue))
        if self.claimable and not ahead and not (sees_queue and tenants):
            yield why.Next()
            return
        shown = [room for scope, room in rooms.items() if scope != "queue" or sees_queue]
        yield why.InLine(
            min(ahead, why.MOST_AHEAD),
            None if turns is None or not sees_queue else min(tenants, why.MOST_AHEAD),
            max(0, min(shown)) if shown else None,
        )

    def _has_turn(self, ahead: int, room: int) -> bool:
        turns = self._facts.turns(room)
        return turns is None or turns.takes(self._job.tenant, ahead, room)

    def _limits(self, rooms: dict[why.Scope, int]) -> Iterator[why.AnyReason]:
        """Those that let no job start. Notes the room that each leaves."""
        job, rules = self._job, self._facts.rules
        bounds: list[tuple[why.Scope, TenantGroup, ops.Limit | None]] = [
            ("queue", EVERYTHING, rules.whole),
            ("tenant", (job.tenant, None), rules.tenant_limit(job.tenant)),
            ("group", (job.tenant, job.group), rules.group_limit(job.tenant, job.group)),
        ]
        for scope, leases, limit in bounds:
            if limit is not None and limit.concurrency is not None:
                used = self._facts.used(leases)
                rooms[scope] = limit.concurrency - used
                if rooms[scope] <= 0:
                    yield self._limited(scope, leases, limit, used)
        whole = rules.whole
        if whole.rate is not None and whole.per_ms is not None:
            tokens, at = self._facts.bucket()
            room = tokens // whole.per_ms
            rooms["queue"] = min(room, rooms.get("queue", room))
            if room <= 0:
                next_at = at - (tokens - whole.per_ms) // whole.rate
                yield why.RateLimited(next_at if self._sees_queue else None)

    def _limited(
        self, scope: why.Scope, leases: TenantGroup, limit: ops.Limit, used: int
    ) -> why.Limited:
        holders = self._facts.holders(leases)
        ids = [one.id for one in holders if self._grant.allows(one.queue, one.tenant)]
        is_shown = scope != "queue" or self._sees_queue
        return why.Limited(
            scope,
            used if is_shown else None,
            limit.concurrency if is_shown else None,
            ids[: why.MOST_HOLDERS],
            limit.tenant,
            limit.group,
        )
