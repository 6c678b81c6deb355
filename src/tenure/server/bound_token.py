"""What a token may name and see that is bound to queues or tenants.

It cannot tell that the jobs of others exist: what an operation finds in the store is checked there,
in the same transaction (see `ops.Grant`). What it names is checked here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from tenure.errors import Forbidden, NotFound, QueueNotFound, TenureError
from tenure.model import ops, queries
from tenure.model.job import Job, JobSpec
from tenure.model.ops import Grant, Op
from tenure.model.queries import Filter, Query
from tenure.server.asked_for import asked_for
from tenure.server.auth import Token

_MINUTE_MS = 60_000
MOST_SCHEDULES = 100  # of a bound token


class Bound:
    """The bounds of a token."""

    def __init__(self, token: Token, ask: Callable[[Query], Awaitable[Any]]) -> None:
        """ask: carries out a query, without these bounds."""
        self.token = token
        self._ask = ask
        self._grant = Grant(token.queues, token.tenants)

    async def limited(self, batch: Sequence[Op]) -> list[Op]:
        """The operations with the token's grant; raises Forbidden."""
        limited = list(map(self._with_grant, batch))
        if ops.PutSchedule in map(type, ops.flat(limited)):
            await self._admit_schedules(limited)
        return limited

    def _has(self, queue: str, tenant: str) -> bool:
        return self._grant.allows(queue, tenant)

    def _has_queue(self, queue: str) -> bool:
        return self.token.queues is None or queue in self.token.queues

    def _has_tenant(self, tenant: str | None) -> bool:
        return self.token.tenants is None or tenant in self.token.tenants

    def _must_have_queue(self, queue: str) -> None:
        if not self._has_queue(queue):
            raise Forbidden(f"this token is not for the queue {queue!r}")

    def _must_have(self, queue: str, tenant: str | None) -> None:
        self._must_have_queue(queue)
        if not self._has_tenant(tenant):
            if not tenant:
                raise Forbidden(self._which_tenant())
            whom = "all tenants" if tenant == "*" else f"the tenant {tenant!r}"
            raise Forbidden(f"this token is not for {whom}")

    def _which_tenant(self) -> str:
        names = ", ".join(map(repr, self.token.tenants or ()))
        return f"name the tenant, with tenant= or --tenant: this token is for {names}"

    def _one_tenant(self, tenant: str | None) -> str | None:
        """The tenant of a call. A token that is bound to one tenant may omit it."""
        if self.token.tenants is None:
            return tenant
        if tenant is None and len(self.token.tenants) == 1:
            return self.token.tenants[0]
        if tenant not in self.token.tenants:
            raise Forbidden(self._which_tenant())
        return tenant

    # Operations ---------------------------------------------------------------------------------

    def _with_grant(self, op: Op) -> Op:
        """The operation with the token's grant, which the store applies to what it finds. What the
        operation names itself is checked here; raises Forbidden."""
        if isinstance(op, ops.Once):
            return replace(op, ops=tuple(map(self._with_grant, op.ops)))
        self._must_have_specs(op.adds)
        for queue in op.new_queues:
            self._must_have_queue(queue)
        match op:
            case ops.Claim():
                for queue in op.queues:
                    self._must_have(queue, self._one_tenant(op.tenant))
                return replace(op, tenant=self._one_tenant(op.tenant))
            case ops.SetLimit() | ops.ClearLimit() | ops.Pause() | ops.Resume() | ops.Reconcile():
                self._must_have(op.queue, op.tenant)
                return op
            case ops.PutSchedule():
                self._must_have(op.schedule.job.queue, op.schedule.job.tenant)
                if op.schedule.job.after:
                    raise Forbidden("with this token, the job of a schedule cannot wait for others")
            case ops.Fire() | ops.ReplayEdited():
                queues, tenants = self.token.queues or ("",), self.token.tenants or ("",)
                new_id = op.id if isinstance(op, ops.Fire) else op.new_id
                self._must_have_id(
                    new_id, [self.token.own_ids(q, t) for q in queues for t in tenants]
                )
            case ops.TakeSlot() | ops.DropSlot() | ops.ReconcileSlots():
                self._must_have_slot(op.scope, op.key)
                return op
        if not isinstance(op, ops.GrantedOp):
            raise Forbidden(
                f"this token may not {asked_for(type(op))}: it is bound to tenants or queues"
            )
        return replace(op, grant=self._grant.within(op.grant))

    def _must_have_specs(self, specs: Sequence[JobSpec]) -> None:
        """Check that new jobs are within the token's bounds."""
        for spec in specs:
            self._must_have(spec.queue, spec.tenant)
            if not spec.made_up_id:
                self._must_have_id(spec.id, [self.token.own_ids(spec.queue, spec.tenant)])

    def _must_have_id(self, id: str, prefixes: Sequence[str]) -> None:
        """Ids are common to all tenants. A token that is bound may choose only ids that others
        would not choose: otherwise it could take them, or learn that they are taken."""
        if not is_random_uuid(id) and not any(map(id.startswith, prefixes)):
            raise Forbidden(
                f"with this token, an id must begin with {prefixes[0]!r} or be a random UUID; "
                "leave it out, or use unique_key"
            )

    async def _admit_schedules(self, batch: Sequence[Op]) -> None:
        """Raise Forbidden if a bound token would have too many schedules: everybody reads them."""
        names = {one.name for one in await self._schedules_of_ours()}
        names |= {op.schedule.name for op in ops.flat(batch) if isinstance(op, ops.PutSchedule)}
        if len(names) > MOST_SCHEDULES:
            raise Forbidden(f"this token is bound, and may have {MOST_SCHEDULES} schedules")

    async def _schedules_of_ours(self) -> list[ops.Schedule]:
        return self._ours(await self._ask(queries.ListSchedules()))

    def _ours(self, schedules: list[ops.Schedule]) -> list[ops.Schedule]:
        return [one for one in schedules if self._has(one.job.queue, one.job.tenant)]

    def _must_have_slot(self, scope: str, key: str) -> None:
        """Slots have no owner. For a token that is bound to queues, the scope must name one (as
        `queue` or `queue/...`); for one that is bound to tenants, the key must be a tenant."""
        if self.token.tenants is not None and key not in self.token.tenants:
            raise Forbidden("this token can only use slots whose key is one of its tenants")
        if not self._has_queue(scope) and not self._has_queue(scope.partition("/")[0]):
            raise Forbidden("this token can only use slots whose scope is one of its queues")

    # Queries ------------------------------------------------------------------------------------

    async def read(self, query: Query) -> Any:
        """What a query finds that the token may see; raises Forbidden."""
        if isinstance(query, queries.Together):
            found = await asyncio.gather(*map(self.read, query.queries), return_exceptions=True)
            for one in found:
                if isinstance(one, BaseException) and not isinstance(one, TenureError):
                    raise one
            return found
        if query.by_queue:
            return await self._of_our_queue(query)
        match query:
            case queries.ListPast():
                job = await self._ask(queries.GetJob(query.id, grant=self._grant))
                if not isinstance(job, Job):
                    return []
                # A bound token must not learn who made a change.
                return [replace(one, by="") for one in await self._ask(query)]
            case queries.GrantedQuery():
                return await self._ask(replace(query, grant=self._grant.within(query.grant)))
            case queries.ListJobs() | queries.ListSummaries() | queries.FindIds():
                narrowed = self._filter(query.filter)
                if isinstance(narrowed, NotFound):
                    return narrowed
                return _told(await self._ask(replace(query, filter=narrowed)))
            case queries.NextDue() | queries.OldestReady():
                for queue in query.queues:
                    self._must_have(queue, self.token.tenants[0] if self.token.tenants else None)
                if self.token.tenants is not None:
                    return queries.Due(None)  # the due job may be of another tenant
                return await self._ask(query)
            case queries.GetStats():
                return await self._stats_of_ours(query)
            case queries.ListTenants():
                return await self._tenants_of_ours(query)
            case queries.LongestWaits() | queries.ListGroups() | queries.ListGroupTotals():
                return await self._parts_of_ours(query)
            case queries.ListLimits():
                found = await self._ask(query)
                return [one for one in found if self._has(one.queue, one.tenant or "")]
            case queries.SlotQuery():
                self._must_have_slot(query.scope, query.key)
                return await self._ask(query)
            case queries.ListSchedules():
                return await self._schedules_of_ours()
            case queries.GetTimetable():
                found = await self._ask(query)
                return replace(found, schedules=self._ours(found.schedules))
        raise Forbidden(
            f"this token may not {asked_for(type(query))}: it is bound to tenants or queues"
        )

    async def _parts_of_ours(
        self, query: queries.LongestWaits | queries.ListGroups | queries.ListGroupTotals
    ) -> Any:
        """What a query returns about tenants or groups of one queue."""
        if not self._has_queue(query.queue):
            return QueueNotFound(query.queue)
        match query:
            case queries.LongestWaits():
                ours = tuple(filter(self._has_tenant, query.tenants))
                query = replace(query, tenants=ours)
            case queries.ListGroups():
                if not self._has_tenant(query.tenant):
                    return QueueNotFound(query.queue)
            case queries.ListGroupTotals():
                if self.token.tenants is not None:
                    raise Forbidden("totals cover all tenants, but this token is bound to some")
        return await self._ask(query)

    async def _of_our_queue(self, query: Any) -> Any:
        if self.token.tenants is not None:
            raise Forbidden("errors and rates cover all tenants, but this token is bound to some")
        if query.queue is not None and not self._has_queue(query.queue):
            return QueueNotFound(query.queue)
        if query.queue is None and self.token.queues is not None:
            if len(self.token.queues) > 1:
                raise Forbidden(f"name the queue, one of {', '.join(map(repr, self.token.queues))}")
            query = replace(query, queue=self.token.queues[0])
        return await self._ask(query)

    def _filter(self, where: Filter) -> Filter | NotFound:
        tenant = self._one_tenant(where.tenant)
        queue = where.queue
        if self.token.queues is not None:
            if queue is None and len(self.token.queues) == 1:
                queue = self.token.queues[0]
            if queue is None:
                raise Forbidden(f"name the queue, one of {', '.join(map(repr, self.token.queues))}")
            if queue not in self.token.queues:
                return QueueNotFound(queue)
        return replace(where, tenant=tenant, queue=queue)

    async def _stats_of_ours(self, query: queries.GetStats) -> Any:
        mine = self.token.tenants
        if mine is not None:
            asked = mine if query.tenants is None else query.tenants
            query = replace(query, tenants=tuple(one for one in mine if one in asked))
        found = await self._ask(query)
        if isinstance(found, TenureError):
            return found
        ours = [one for one in found if self._has_queue(one.queue)]
        if mine is not None and self.token.queues is None:
            # A queue without jobs of our tenants is shown only if the token names it.
            ours = [one for one in ours if any(queries.as_counts(one).values())]
        return ours if ours or query.queue is None else QueueNotFound(query.queue)

    async def _tenants_of_ours(self, query: queries.ListTenants) -> Any:
        if not self._has_queue(query.queue):
            return QueueNotFound(query.queue)
        if self.token.tenants is None:
            return await self._ask(query)
        found: list[queries.TenantStats] = []
        for tenant in sorted(self.token.tenants):
            wanted = query.tenant in (None, tenant)
            if wanted and (query.after is None or tenant > query.after):
                some = await self._ask(replace(query, tenant=tenant, limit=1))
                if isinstance(some, TenureError):
                    return some
                found += some
        return found[: query.limit]


def _told(page: Any) -> Any:
    """A page without what would reveal the jobs of others to a bound token: how many jobs were
    looked at, and the exact time of the last."""
    if isinstance(page, queries.Ids):
        return replace(page, scanned=len(page.ids))
    if isinstance(page, queries.Page | queries.Summaries):
        to = page.scanned_to
        minute = None if to is None else -(-to // _MINUTE_MS) * _MINUTE_MS
        return replace(page, scanned=len(page.jobs), scanned_to=minute)
    return page


def is_random_uuid(id: str) -> bool:
    """Whether an id is a UUID that nobody can guess."""
    try:
        found = uuid.UUID(id)
    except ValueError:
        return False
    return str(found) == id and found.version in (4, 7)
