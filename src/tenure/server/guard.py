"""A queue limited to what a token may do.

Every call becomes operations and queries, so this is the one place that decides what a token may
do. It needs a scope for each kind of operation. If it is bound to queues or tenants, it cannot tell
that the jobs of others exist: what an operation finds in the store is checked there, in the same
transaction (see `ops.Grant`).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from tenure.errors import (
    Forbidden,
    NotFound,
    QueueNotFound,
    TenureError,
)
from tenure.features import AnyOp, AnyQuery
from tenure.features.audit.data import AuditEntry, key_of
from tenure.features.live_workers.data import Beat
from tenure.model import ops, queries
from tenure.model.job import Job, JobSpec, new_ids
from tenure.model.ops import Grant, Op
from tenure.model.queries import Filter, Query
from tenure.model.records import NewRecord, PutRecords
from tenure.queue import Layer, Store, Wanted, Within
from tenure.queue.arguments import good
from tenure.server.auth import Scope, Token
from tenure.server.new_names import NewNames, names_of

# Everything that a service accepts, and the scope that it needs.
NEEDS: dict[type[Op] | type[Query], Scope] = {
    kind: Scope(kind.needs) for kind in (*get_args(AnyOp), *get_args(AnyQuery))
}
_MINUTE_MS = 60_000
MOST_SCHEDULES = 100  # of a bound token
NOTES_PER_HOUR = 100  # that a token which is not an admin's adds to the audit log
# Operations that have no note for the audit log; most of all that a service gets.
_UNSIGNED = frozenset({ops.Enqueue, ops.Claim, ops.Ack, ops.Fail, ops.Extend, ops.Release})


class Guarded(Layer):
    """A store, limited to what a token may do."""

    def __init__(
        self,
        inner: Store,
        token: Token,
        names: NewNames | None = None,
        *,
        acts_for_dialect: bool = False,
    ) -> None:
        """names: limits how many queues the token creates, unless it is an admin's.
        acts_for_dialect: what is done is part of another call, and not an operator's change."""
        super().__init__(inner)
        self.token = token
        self._is_admin = token.allows(Scope.ADMIN)
        self._names = None if self._is_admin else names
        self._is_operator = self._is_admin and not acts_for_dialect
        self._notes_left, self._notes_until = 0, float("-inf")
        self._notes_owed: list[AuditEntry] = []  # about changes that are not recorded
        self._grant = Grant(token.queues, token.tenants)
        self._free = not token.is_bound
        self._may = frozenset(kind for kind, scope in NEEDS.items() if token.allows(scope))
        # Operations that it may do whatever they hold.
        self._always = self._may if token.allows(Scope.PRODUCE) else self._may - {ops.Ack}
        # Operations that need no further look: all that most requests of such a token hold.
        unlimited = self._free and self._names is None
        self._plain = self._always & _UNSIGNED if unlimited else frozenset()

    def do(self, wanted: Wanted) -> Any:
        raise Forbidden("a request does not wait in a thread")

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        if type(wanted) is list and self._plain.issuperset(map(type, wanted)):
            return self._inner.ado(wanted)
        return self._checked(wanted)

    async def _checked(self, wanted: Wanted) -> Any:
        if isinstance(wanted, Within):
            raise Forbidden("a request has no connection to share")
        if isinstance(wanted, Query):
            return await self._read(wanted)
        if not self._always.issuperset(map(type, wanted)):
            for op in wanted:
                self.must(op)
        if not self._free:
            wanted = list(map(self._bounded, wanted))
            if ops.PutSchedule in map(type, ops.flat(wanted)):
                await self._admit_schedules(wanted)
        if not _UNSIGNED.issuperset(map(type, wanted)):
            wanted = list(map(self._signed, wanted))
            if self._notes_owed:
                await self._pay_notes()
        if self._names is not None:
            if Beat in map(type, ops.flat(wanted)):
                self._names.admit_workers(self.token.hash, wanted)
            await self._names.admit(self.token.hash, names_of(wanted))
        return await self._inner.ado(wanted)

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
        who = "without a token, you" if self.token.is_anonymous else "this token"
        raise Forbidden(
            f"{who} may not {asked_for(type(op))}: that needs the scope {needed.value!r}"
        )

    def away(self) -> tuple[str, ...]:
        return self._inner.away() if self._free else ()

    # What the token is bound to -----------------------------------------------------------------

    def _has(self, queue: str, tenant: str) -> bool:
        return self._grant.allows(queue, tenant)

    def _has_queue(self, queue: str) -> bool:
        return self.token.queues is None or queue in self.token.queues

    def _has_tenant(self, tenant: str | None) -> bool:
        return self.token.tenants is None or tenant in self.token.tenants

    def _must_have(self, queue: str, tenant: str | None) -> None:
        if not self._has_queue(queue):
            raise Forbidden(f"this token is not for the queue {queue!r}")
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

    def _bounded(self, op: Op) -> Op:
        """The operation with the token's grant, which the store applies to what it finds. What the
        operation names itself is checked here; raises Forbidden."""
        match op:
            case ops.Once():
                return replace(op, ops=tuple(map(self._bounded, op.ops)))
            case ops.Enqueue():
                self._must_have_specs(op.jobs)
            case ops.Claim():
                for queue in op.queues:
                    self._must_have(queue, self._one_tenant(op.tenant))
                return replace(op, tenant=self._one_tenant(op.tenant))
            case ops.Ack():
                self._must_have_specs(op.then)
            case Beat():
                for queue in op.worker.queues:
                    if not self._has_queue(queue):
                        raise Forbidden(f"this token is not for the queue {queue!r}")
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

    def _signed(self, op: Op) -> Op:
        """The operation with the token's name in its note, which a client cannot choose. What an
        admin's token changes is always noted."""
        if isinstance(op, ops.Once):
            return replace(op, ops=tuple(map(self._signed, op.ops)))
        if not isinstance(op, ops.NotedOp | ops.NotedGrantedOp):
            return op
        if not self._is_operator:
            if op.note is None:
                return op
            if not self._may_note():
                return replace(op, note=None)
        note = op.note or ops.Note()
        return replace(op, note=replace(note, by=self.token.name if self.token.hash else note.by))

    def _may_note(self) -> bool:
        """Whether a token that is not an admin's may add another entry to the audit log. They are
        optional; without a bound, they could bury the entries of admins."""
        now = self.clock.monotonic()
        if now >= self._notes_until:
            if self._notes_left < 0:
                reason = "the changes since the last such entry that were not recorded, at most"
                self._owe_note(reason, -self._notes_left)
            self._notes_left, self._notes_until = NOTES_PER_HOUR, now + 3600
        self._notes_left -= 1
        if self._notes_left == -1:
            self._owe_note(
                f"over {NOTES_PER_HOUR} changes: for an hour, further ones of this token are "
                "carried out, but not recorded one by one"
            )
        return self._notes_left >= 0

    def _owe_note(self, reason: str, count: int | None = None) -> None:
        at, by = self.clock.now_ms(), self.token.name
        entry = AuditEntry(at, by, "not_recorded", reason=reason, count=count)
        self._notes_owed.append(entry)

    async def _pay_notes(self) -> None:
        """Record that changes are not recorded, before they are made."""
        owed, self._notes_owed = self._notes_owed, []
        keep_ms = self.settings.keep_audit_ms
        keys = [key_of(one, new_ids(one.at, 1)[0]) for one in owed]
        records = [
            NewRecord("audit", key, msgspec.json.encode(one), keep_ms)
            for key, one in zip(keys, owed, strict=True)
        ]
        try:
            (answer,) = await self._inner.ado([PutRecords(tuple(records))])
            good(answer, ops.Ok)
        except BaseException:
            self._notes_owed += owed
            raise

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
        return self._ours(await self._inner.ado(queries.ListSchedules()))

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

    async def _read(self, query: Query) -> Any:
        self.must(query)
        if self._free:
            return await self._inner.ado(query)
        if query.by_queue:
            return await self._of_our_queue(query)
        match query:
            case queries.ListPast():
                job = await self._inner.ado(queries.GetJob(query.id, grant=self._grant))
                if not isinstance(job, Job):
                    return []
                # A bound token must not learn who made a change.
                return [replace(one, by="") for one in await self._inner.ado(query)]
            case queries.GrantedQuery():
                return await self._inner.ado(replace(query, grant=self._grant.within(query.grant)))
            case queries.ListJobs() | queries.ListSummaries() | queries.FindIds():
                narrowed = self._filter(query.filter)
                if isinstance(narrowed, NotFound):
                    return narrowed
                return _told(await self._inner.ado(replace(query, filter=narrowed)))
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
            case queries.LongestWaits() | queries.ListGroups() | queries.ListGroupTotals():
                return await self._parts_of_ours(query)
            case queries.ListLimits():
                found = await self._inner.ado(query)
                return [one for one in found if self._has(one.queue, one.tenant or "")]
            case queries.SlotQuery():
                self._must_have_slot(query.scope, query.key)
                return await self._inner.ado(query)
            case queries.ListSchedules():
                return await self._schedules_of_ours()
            case queries.GetTimetable():
                found = await self._inner.ado(query)
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
        return await self._inner.ado(query)

    async def _of_our_queue(self, query: Any) -> Any:
        if self.token.tenants is not None:
            raise Forbidden("errors and rates cover all tenants, but this token is bound to some")
        if query.queue is not None and not self._has_queue(query.queue):
            return QueueNotFound(query.queue)
        if query.queue is None and self.token.queues is not None:
            if len(self.token.queues) > 1:
                raise Forbidden(f"name the queue, one of {', '.join(map(repr, self.token.queues))}")
            query = replace(query, queue=self.token.queues[0])
        return await self._inner.ado(query)

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
        found = await self._inner.ado(query)
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


def asked_for(kind: type[Op] | type[Query]) -> str:
    """What the caller of an operation wants to do, in words: Enqueue -> enqueue jobs."""
    name = kind.__name__
    words = _WORDS.get(name) or _CAPITAL.sub(r" \1", name).strip().lower()
    return f"{words} jobs" if issubclass(kind, ops.JobsOp) and name not in _WORDS else words


_CAPITAL = re.compile(r"([A-Z])")
_WORDS = {
    **{name: f"{name.lower()} jobs" for name in ("Enqueue", "Claim")},
    **{name: f"{name.lower()} queues" for name in ("Pause", "Resume")},
    "Ack": "finish jobs",
    "PutSchedule": "store schedules",
    "DropSchedule": "drop schedules",
    "Fail": "fail jobs",
    "Extend": "extend leases",
    "Release": "give jobs back",
    "Progress": "report progress",
    "RunNow": "run jobs now",
    "GetJob": "read jobs",
    "GetJobs": "read jobs",
    "FindIds": "find jobs",
    "FindByPrefix": "find jobs",
    "FindByKey": "find jobs",
    "ListRelated": "read jobs",
    "GetStats": "read the counts of queues",
    "NextDue": "see what is due",
    "OldestReady": "see how long jobs wait",
    "LongestWaits": "see how long jobs wait",
    "ListSchedules": "read schedules",
    "GetTimetable": "read schedules",
}


def is_random_uuid(id: str) -> bool:
    """Whether an id is a UUID that nobody can guess."""
    try:
        found = uuid.UUID(id)
    except ValueError:
        return False
    return str(found) == id and found.version in (4, 7)
