"""A queue limited to what a token may do.

Every call becomes operations and queries, so this is the one place that decides what a token may
do. It needs a scope for each kind of operation. If it is bound to queues or tenants, it cannot tell
that the jobs of others exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from tenure.errors import (
    DependencyNotFound,
    Duplicate,
    Forbidden,
    JobNotFound,
    NotFound,
    QueueNotFound,
    ScheduleNotFound,
    TenureError,
)
from tenure.model import ops, queries
from tenure.model.job import Job, JobSpec
from tenure.model.ops import Op
from tenure.model.queries import Filter, Query
from tenure.queue import Calls, Queue
from tenure.queue.sync_async import Wanted, Within
from tenure.server.auth import Scope, Token

NEEDS: dict[type[Op] | type[Query], Scope] = {
    ops.Enqueue: Scope.PRODUCE,
    ops.Cancel: Scope.PRODUCE,
    ops.Claim: Scope.WORK,
    ops.Ack: Scope.WORK,
    ops.Fail: Scope.WORK,
    ops.Extend: Scope.WORK,
    ops.Release: Scope.WORK,
    ops.Progress: Scope.WORK,
    ops.TakeSlot: Scope.WORK,
    ops.DropSlot: Scope.WORK,
    queries.NextDue: Scope.WORK,
    ops.Replay: Scope.ADMIN,
    ops.RunNow: Scope.ADMIN,
    ops.Delete: Scope.ADMIN,
    ops.SetLimit: Scope.ADMIN,
    ops.ClearLimit: Scope.ADMIN,
    ops.Pause: Scope.ADMIN,
    ops.Resume: Scope.ADMIN,
    ops.PutSchedule: Scope.ADMIN,
    ops.DropSchedule: Scope.ADMIN,
    ops.Fire: Scope.ADMIN,
    ops.Maintain: Scope.ADMIN,
    ops.Reconcile: Scope.ADMIN,
    ops.ReconcileSlots: Scope.ADMIN,
    queries.GetJob: Scope.READ,
    queries.ListJobs: Scope.READ,
    queries.FindIds: Scope.READ,
    queries.FindByPrefix: Scope.READ,
    queries.OldestReady: Scope.READ,
    queries.GetStats: Scope.READ,
    queries.ListTenants: Scope.READ,
    queries.ListGroups: Scope.READ,
    queries.ListGroupTotals: Scope.READ,
    queries.ListLimits: Scope.READ,
    queries.ListSlots: Scope.READ,
    queries.ListSchedules: Scope.READ,
    queries.GetTimetable: Scope.READ,
}

NOTHING = ops.Release("", 0)  # no job has this id


class Guarded(Calls):
    """The calls of a Queue, limited to what a token may do."""

    def __init__(self, inner: Queue, token: Token) -> None:
        self.settings, self.clock, self.changes = inner.settings, inner.clock, inner.changes
        self._inner = inner
        self.token = token
        self._free = token.queues is None and token.tenants is None
        self._may = frozenset(kind for kind, scope in NEEDS.items() if token.allows(scope))

    def do(self, wanted: Wanted) -> Any:
        raise Forbidden("a request does not wait in a thread")

    async def ado(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Within):
            raise Forbidden("a request has no connection to share")
        if isinstance(wanted, Query):
            return await self._read(wanted)
        for op in wanted:
            self.must(op)
        if self._free:
            return await self._inner.ado(wanted)
        return await self._apply(wanted)

    def must(self, op: Op | Query) -> None:
        """Raise Forbidden unless the token has the scope that an operation needs."""
        if isinstance(op, ops.Once):
            for one in op.ops:
                self.must(one)
            return
        needed = NEEDS[type(op)]
        if type(op) in self._may:
            if not (isinstance(op, ops.Ack) and op.then) or self.token.allows(Scope.PRODUCE):
                return
            needed = Scope.PRODUCE
        raise Forbidden(
            f"{type(op).__name__} needs the scope {needed.value!r}; this token lacks it"
        )

    # What the token is bound to -----------------------------------------------------------------

    def _has(self, queue: str, tenant: str) -> bool:
        return self._has_queue(queue) and self._has_tenant(tenant)

    def _has_queue(self, queue: str) -> bool:
        return self.token.queues is None or queue in self.token.queues

    def _has_tenant(self, tenant: str | None) -> bool:
        return self.token.tenants is None or tenant in self.token.tenants

    def _must_have(self, queue: str, tenant: str | None) -> None:
        if not self._has_queue(queue):
            raise Forbidden(f"this token is not for the queue {queue!r}")
        if not self._has_tenant(tenant):
            whom = "all tenants" if tenant in (None, "*") else f"the tenant {tenant!r}"
            raise Forbidden(f"this token is not for {whom}")

    async def _of_others(self, ids: Iterable[str]) -> set[str]:
        """The ids of existing jobs that the token must not see."""
        found: set[str] = set()
        for id in dict.fromkeys(ids):
            job = await self._inner.ado(queries.GetJob(id))
            if isinstance(job, Job) and not self._has(job.queue, job.tenant):
                found.add(id)
        return found

    def _one_tenant(self, tenant: str | None) -> str | None:
        """The tenant of a call. A token that is bound to one tenant may omit it."""
        if self.token.tenants is None:
            return tenant
        if tenant is None and len(self.token.tenants) == 1:
            return self.token.tenants[0]
        if tenant not in self.token.tenants:
            raise Forbidden(f"say for which tenant: {', '.join(map(repr, self.token.tenants))}")
        return tenant

    # Operations ---------------------------------------------------------------------------------

    async def _apply(self, batch: Sequence[Op]) -> list[Any]:
        """Apply the operations that the token may do, and reject the others one by one. A rejected
        operation is replaced by one that does nothing, so that a batch that is sent again under its
        key gets the same number of results."""
        plain = [ops_of(op) for op in batch]
        allowed = [[await self._narrowed(one) for one in some] for some in plain]
        wanted: list[Op] = []
        for op, narrowed in zip(batch, allowed, strict=True):
            sent: Any = tuple(one if isinstance(one, Op) else NOTHING for one in narrowed)
            wanted.append(replace(op, ops=sent) if isinstance(op, ops.Once) else sent[0])
        told: list[Any] = []
        answers = await self._inner.ado(wanted)
        for op, some, narrowed, answer in zip(batch, plain, allowed, answers, strict=True):
            if isinstance(answer, ops.Answers):
                each = zip(some, narrowed, answer.answers, strict=True)
                told.append(ops.Answers([_told(*one) for one in each]))
            else:
                told.append(answer if isinstance(op, ops.Once) else _told(op, narrowed[0], answer))
        return told

    async def _narrowed(self, op: Op) -> Op | TenureError:
        """The operation without what the token must not touch, or the error to return for it."""
        match op:
            case ops.Enqueue():
                return await self._specs(op.jobs) or await self._taken(op) or op
            case ops.Claim():
                for queue in op.queues:
                    self._must_have(queue, self._one_tenant(op.tenant))
                return replace(op, tenant=self._one_tenant(op.tenant))
            case ops.LeaseOp():
                # Check `then` first: its errors must not reveal whether the job exists.
                refused = await self._specs(op.then) if isinstance(op, ops.Ack) else None
                if await self._of_others([op.id]):
                    return JobNotFound(op.id)
                return refused or op
            case ops.JobsOp():
                others = await self._of_others(op.ids)
                return replace(op, ids=tuple(id for id in op.ids if id not in others))
            case ops.SetLimit() | ops.ClearLimit() | ops.Pause() | ops.Resume() | ops.Reconcile():
                self._must_have(op.queue, op.tenant)
                return op
            case ops.PutSchedule():
                return await self._specs([op.schedule.job]) or await self._free_name(op)
            case ops.DropSchedule() | ops.Fire():
                if op.name in await self._schedules_of_others():
                    return ScheduleNotFound(op.name)
                return op
            case ops.TakeSlot() | ops.DropSlot() | ops.ReconcileSlots():
                self._must_have_slot(op.scope, op.key)
                return op
        raise Forbidden(
            f"{type(op).__name__} is for tokens that are not bound to tenants or queues"
        )

    async def _specs(self, specs: Sequence[JobSpec]) -> TenureError | None:
        """Check that new jobs, and those they wait for, are within the token's bounds."""
        for spec in specs:
            self._must_have(spec.queue, spec.tenant)
        parents = [parent for spec in specs for parent in spec.after]
        own = {spec.id for spec in specs}
        hidden = await self._of_others(set(parents) - own)
        return DependencyNotFound(min(hidden)) if hidden else None

    async def _taken(self, op: ops.Enqueue) -> TenureError | None:
        """Reject ids that jobs of others have: skipping them would reveal those jobs."""
        if op.if_exists == "skip":
            named = [spec.id for spec in op.jobs if not spec.made_up_id]
            for id in await self._of_others(named):
                return Duplicate("id", id, id)
        return None

    async def _free_name(self, op: ops.PutSchedule) -> Op:
        if op.schedule.name in await self._schedules_of_others():
            raise Forbidden(f"there is already a schedule named {op.schedule.name!r}")
        return op

    async def _schedules_of_ours(self) -> list[ops.Schedule]:
        return self._ours(await self._inner.ado(queries.ListSchedules()))

    def _ours(self, schedules: list[ops.Schedule]) -> list[ops.Schedule]:
        return [one for one in schedules if self._has(one.job.queue, one.job.tenant)]

    async def _schedules_of_others(self) -> set[str]:
        ours = {one.name for one in await self._schedules_of_ours()}
        return {one.name for one in await self._inner.ado(queries.ListSchedules())} - ours

    def _must_have_slot(self, scope: str, key: str) -> None:
        """Slots have no owner. For a token that is bound to queues, the scope must name one (as
        `queue` or `queue/...`); for one that is bound to tenants, the key must be a tenant."""
        if self.token.tenants is not None and key not in self.token.tenants:
            raise Forbidden("this token can only use slots whose key is one of its tenants")
        if not self._has_queue(scope) and not self._has_queue(scope.partition("/")[0]):
            raise Forbidden("this token can only use slots whose scope is one of its queues")

    # Queries ------------------------------------------------------------------------------------

    async def _read(self, query: Query) -> Any:
        self.must(query)
        if self._free:
            return await self._inner.ado(query)
        match query:
            case queries.GetJob():
                job = await self._inner.ado(query)
                if isinstance(job, Job) and not self._has(job.queue, job.tenant):
                    return JobNotFound(query.id)
                return job
            case queries.ListJobs() | queries.FindIds():
                narrowed = self._filter(query.filter)
                if isinstance(narrowed, NotFound):
                    return narrowed
                return await self._inner.ado(replace(query, filter=narrowed))
            case queries.NextDue() | queries.OldestReady():
                for queue in query.queues:
                    self._must_have(queue, self.token.tenants[0] if self.token.tenants else None)
                if self.token.tenants is not None:
                    return queries.Due(None)  # the due job may be of another tenant
                return await self._inner.ado(query)
            case queries.GetStats():
                return await self._stats_of_ours(query)
            case queries.ListTenants():
                return await self._tenants_of_ours(query)
            case queries.ListGroups():
                if not self._has(query.queue, query.tenant):
                    return QueueNotFound(query.queue)
                return await self._inner.ado(query)
            case queries.ListGroupTotals():
                if not self._has_queue(query.queue):
                    return QueueNotFound(query.queue)
                if self.token.tenants is not None:
                    raise Forbidden("totals are of all tenants, and this token is not")
                return await self._inner.ado(query)
            case queries.ListLimits():
                found = await self._inner.ado(query)
                return [one for one in found if self._has(one.queue, one.tenant or "")]
            case queries.ListSlots():
                self._must_have_slot(query.scope, query.key)
                return await self._inner.ado(query)
            case queries.ListSchedules():
                return await self._schedules_of_ours()
            case queries.GetTimetable():
                found = await self._inner.ado(query)
                return replace(found, schedules=self._ours(found.schedules))
        raise Forbidden(f"{type(query).__name__} is not for this token")

    def _filter(self, where: Filter) -> Filter | NotFound:
        tenant = self._one_tenant(where.tenant)
        queue = where.queue
        if self.token.queues is not None:
            if queue is None and len(self.token.queues) == 1:
                queue = self.token.queues[0]
            if queue is None:
                raise Forbidden(f"say of which queue: {', '.join(map(repr, self.token.queues))}")
            if queue not in self.token.queues:
                return QueueNotFound(queue)
        return replace(where, tenant=tenant, queue=queue)

    async def _stats_of_ours(self, query: queries.GetStats) -> Any:
        found = await self._inner.ado(query)
        if isinstance(found, TenureError):
            return found
        ours = [one for one in found if self._has_queue(one.queue)]
        if query.queue is not None and not ours:
            return QueueNotFound(query.queue)
        if self.token.tenants is None:
            return ours
        counted = [await self._counted(one) for one in ours]
        # A queue without jobs of our tenants is shown only if the token names it.
        known = self.token.queues is not None
        shown = [one for one in counted if known or any(queries.as_counts(one).values())]
        return shown if shown or query.queue is None else QueueNotFound(query.queue)

    async def _counted(self, queue: queries.QueueStats) -> queries.QueueStats:
        """The counts of a queue, for the token's tenants only."""
        counts = queries.Counts()
        for one in await self._tenants_of_ours(queries.ListTenants(queue.queue, 1_000_000)):
            counts = queries.add(counts, one)
        return queries.QueueStats(
            queue=queue.queue, paused=queue.paused, **queries.as_counts(counts)
        )

    async def _tenants_of_ours(self, query: queries.ListTenants) -> Any:
        if not self._has_queue(query.queue):
            return QueueNotFound(query.queue)
        if self.token.tenants is None:
            return await self._inner.ado(query)
        found: list[queries.TenantStats] = []
        for tenant in sorted(self.token.tenants):
            wanted = query.tenant in (None, tenant)
            if wanted and (query.after is None or tenant > query.after):
                some = await self._inner.ado(replace(query, tenant=tenant, limit=1))
                if isinstance(some, TenureError):
                    return some
                found += some
        return found[: query.limit]


def ops_of(op: Op) -> Sequence[Op]:
    """The operations in an operation: those of a Once, or itself."""
    return op.ops if isinstance(op, ops.Once) else [op]


def _told(op: Op, narrowed: Op | TenureError, answer: Any) -> Any:
    """The result of a narrowed operation. Ids that were left out are reported as missing."""
    if isinstance(narrowed, TenureError):
        return narrowed
    changed = isinstance(answer, ops.Changed)
    if changed and isinstance(narrowed, ops.JobsOp):
        assert isinstance(op, type(narrowed))
        there = set(narrowed.ids) - set(answer.missing)
        missing = tuple(id for id in dict.fromkeys(op.ids) if id not in there)
        return replace(answer, missing=missing)
    return answer
