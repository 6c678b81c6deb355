"""The native HTTP API, under /v1."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace

from tenure.errors import InvalidInput, ScheduleNotFound, TenureError
from tenure.model import ops, queries, wire
from tenure.model.audit import AuditLog
from tenure.model.error_groups import ErrorGroups
from tenure.model.fields import (
    MAX_FAILURE_TEXT,
    MAX_GROUPS_PER_CALL,
    MAX_JOBS_PER_CALL,
    MAX_OPS,
    Attempts,
    ClaimLimit,
    Concurrency,
    Cron,
    Label,
    MaintainLimit,
    Moment,
    Name,
    PageLimit,
    Percent,
    PositiveSeconds,
    Priority,
    Rate,
    Seconds,
    Weight,
    Zone,
    check_name,
    clean,
)
from tenure.model.history import Past
from tenure.model.job import NULL, IfParentFails, Job, Lease, NewJob, State, encode_json, null
from tenure.model.ops import AnyOp, IfExists, Limit, Maintained, Schedule, Slots
from tenure.model.queries import (
    AnyQuery,
    GroupStats,
    GroupTotal,
    Page,
    QueueStats,
    Slot,
    Stats,
    TenantStats,
)
from tenure.model.rates import Rates
from tenure.model.retry import Backoff
from tenure.observe.tracing import sending
from tenure.queue.arguments import good
from tenure.server.auth import Scope
from tenure.server.batches import apply_batch
from tenure.server.route import ANY, Call, Route
from tenure.server.waiting import claim_or_wait, wait_for_end

Wait = Annotated[float, Meta(ge=0, le=60)]
MAX_MANY = 1_000


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of request bodies and query strings. Unknown fields are rejected."""


# Requests ---------------------------------------------------------------------------------------


class JobBody(Body):
    """A job to enqueue. Durations are in seconds, `run_at` is in milliseconds since 1970. `trace`
    is a traceparent, and overrides the header of that name."""

    queue: Name
    payload: Raw = msgspec.field(default_factory=null)
    kind: Label = ""
    tenant: Label = ""
    group: Label = ""
    priority: Priority = 0
    max_attempts: Attempts = 3
    delay: Seconds = 0
    run_at: Moment | None = None
    id: Name | None = None
    unique_key: Name | None = None
    after: list[Name] = []
    if_parent_fails: IfParentFails = "wait"
    backoff: Backoff | None = None
    expires_in: PositiveSeconds | None = None
    timeout: PositiveSeconds | None = None
    trace: Annotated[str, Meta(max_length=55)] | None = None

    def new(self) -> NewJob:
        values = _asdict(self)
        if self.run_at is not None:
            values["run_at"] = datetime.fromtimestamp(self.run_at / 1000, UTC)
        return NewJob(**values)


class EnqueueQuery(Body):
    if_exists: Literal["error", "skip"] = "error"


class JobsQuery(Body):
    queue: Name | None = None
    state: State | None = None
    tenant: Label | None = None
    group: Label | None = None
    kind: Label | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: str | None = None


class LiveBody(Body):
    """Selects jobs by id or by filter."""

    ids: Annotated[list[Name], Meta(max_length=MAX_MANY)] | None = None
    queue: Name | None = None
    tenant: Label | None = None
    group: Label | None = None
    kind: Label | None = None

    def of(self) -> dict[str, Any]:
        values = _asdict(self)
        return {"jobs": values.pop("ids"), **values}


class WhichBody(LiveBody):
    """Selects jobs by id or by filter, optionally only those in one state."""

    state: State | None = None


class ClaimBody(Body):
    """`wait` is how many seconds to wait for a job if none is ready."""

    queues: Annotated[list[Name], Meta(min_length=1, max_length=100)]
    limit: ClaimLimit = 1
    lease: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    worker: Name = "http"
    tenant: Label | None = None
    not_groups: Annotated[list[Label], Meta(max_length=MAX_GROUPS_PER_CALL)] = []
    wait: Wait = 0


class LeaseBody(Body):
    """The id and token of a claimed job."""

    id: Name
    token: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class AckOne(LeaseBody):
    result: Raw = msgspec.field(default_factory=null)
    keep: bool = True
    then: Annotated[list[JobBody], Meta(max_length=MAX_MANY)] = []


class FailOne(LeaseBody):
    """`retry_in` is in seconds, and overrides the backoff. `fatal` makes the job dead without
    another attempt, `cancel` makes it cancelled."""

    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in: Seconds | None = None
    fatal: bool = False
    cancel: bool = False


class ReleaseOne(LeaseBody):
    delay: Seconds = 0


class AckBody(Body):
    jobs: Annotated[list[AckOne], Meta(max_length=MAX_MANY)]


class FailBody(Body):
    jobs: Annotated[list[FailOne], Meta(max_length=MAX_MANY)]


class ReleaseBody(Body):
    jobs: Annotated[list[ReleaseOne], Meta(max_length=MAX_MANY)]


class ExtendBody(Body):
    jobs: Annotated[list[LeaseBody], Meta(max_length=MAX_MANY)]
    lease: Annotated[float, Meta(gt=0, le=86_400)] | None = None


class ProgressBody(Body):
    token: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    percent: Percent
    note: Label | None = None


class WaitQuery(Body):
    timeout: Wait = 30


class ScopeBody(Body):
    tenant: Label | None = None
    group: Name | None = None


class LimitBody(ScopeBody):
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    per: PositiveSeconds | None = None
    weight: Weight | None = None


class NamesQuery(Body):
    limit: PageLimit = 100
    after: Label | None = None


class TenantsQuery(NamesQuery):
    """With `waits`, the 100 tenants of the page that have the most ready jobs have a `wait_ms`."""

    waits: bool = False


class GroupsQuery(NamesQuery):
    tenant: Label = ""


class TotalsQuery(NamesQuery):
    group: Name | None = None


class PurgeBody(Body):
    older_than: Seconds
    queue: Name | None = None
    state: list[State] | None = None


class SlotBody(Body):
    ttl: PositiveSeconds
    limit: Concurrency | None = None


class ScheduleBody(Body):
    cron: Cron
    job: JobBody
    tz: Zone = "UTC"
    catch_up: Literal["last", "all", "none"] = "last"


class MaintainBody(Body):
    limit: MaintainLimit = 1000


class OpsBody(Body):
    """A batch of operations. With a `key` it is applied once, however often it is sent. Sending
    different operations under the same key is a conflict. Batches are compared by `fingerprint` if
    it is given, otherwise by their operations."""

    ops: Annotated[list[AnyOp], Meta(max_length=MAX_OPS)]
    key: Name | None = None
    fingerprint: Name | None = None


class QueryBody(Body):
    query: AnyQuery


# Responses --------------------------------------------------------------------------------------


class TenantRow(TenantStats, frozen=True, kw_only=True):
    """A tenant of a queue. `wait_ms`: how long its longest-waiting ready job has been ready, if
    that was asked for and there is one."""

    wait_ms: int | None = None


class EnqueuedOne(msgspec.Struct):
    """One of several enqueued jobs. `created` is false if the job already existed."""

    id: str
    created: bool


class Jobs(msgspec.Struct):
    jobs: list[Job]


class Refusal(msgspec.Struct):
    code: str
    message: str


class Result(msgspec.Struct, omit_defaults=True):
    """The outcome for one of several jobs: its state, or the error."""

    id: str
    ok: bool
    state: State | None = None
    error: Refusal | None = None


class Results(msgspec.Struct):
    results: list[Result]


class Count(msgspec.Struct):
    count: int


class Corrections(msgspec.Struct):
    corrected: dict[str, int]


class Done(msgspec.Struct):
    ok: bool = True


class Applied(msgspec.Struct):
    """The result of each operation, in order."""

    answers: list[wire.Written]


T = TypeVar("T")


class Found(msgspec.Struct, Generic[T]):
    """The result of a query."""

    found: T


AnyFound = (
    Found[Job]
    | Found[Page]
    | Found[queries.Summaries]
    | Found[queries.Ids]
    | Found[queries.Due]
    | Found[list[QueueStats]]
    | Found[list[TenantStats]]
    | Found[list[GroupStats]]
    | Found[list[GroupTotal]]
    | Found[list[Limit]]
    | Found[list[Slot]]
    | Found[list[Schedule]]
    | Found[queries.Timetable]
    | Found[list[Past]]
    | Found[ErrorGroups]
    | Found[AuditLog]
    | Found[Rates]
)


# Handlers ---------------------------------------------------------------------------------------


async def enqueue(
    call: Call, query: EnqueueQuery, body: JobBody | list[JobBody]
) -> Job | EnqueuedOne | list[EnqueuedOne]:
    """Enqueue one job, or a list of jobs (all or none of them)."""
    if isinstance(body, JobBody):
        if not call.token.allows(Scope.READ) and (body.after or query.if_exists == "skip"):
            return await _enqueue_unread(call, body.new(), query.if_exists)
        job: Job = await call.queue._aenqueue_new(body.new(), query.if_exists)
        return job
    return await _enqueue_list(call, body, query.if_exists)


async def _enqueue_list(call: Call, body: list[JobBody], if_exists: IfExists) -> list[EnqueuedOne]:
    """Like `aenqueue_many`, except that a long list is validated in a thread."""
    if len(body) > MAX_JOBS_PER_CALL:
        raise InvalidInput("jobs", f"{len(body):,} in one call; at most {MAX_JOBS_PER_CALL:,}")
    if not body:
        return []
    who, size = call.token.hash, len(body)
    news = await call.service.aside(who, size, lambda: [one.new() for one in body])
    with sending(news) as trace:
        specs = await call.service.aside(who, size, lambda: call.queue.prepare(news, trace))
        (answer,) = await call.queue.ado([ops.Enqueue(tuple(specs), if_exists)])
        found = good(answer, ops.Enqueued)
    return [EnqueuedOne(id, created) for id, created in zip(found.ids, found.created, strict=True)]


async def _enqueue_unread(call: Call, new: NewJob, if_exists: IfExists) -> Job | EnqueuedOne:
    """Enqueue a job with a token that may not read jobs. It gets the job only if it is new."""
    ids = await call.queue.aenqueue_many([new], if_exists=if_exists)
    if not ids.created[0]:
        return EnqueuedOne(ids[0], False)
    reading = replace(call.token, scopes=(Scope.READ,))
    return await call.service.queue_for(reading).aget(ids[0])


async def get_job(call: Call) -> Job:
    """Get a job."""
    return await call.queue.aget(call.params["id"])


async def delete_job(call: Call) -> Count:
    """Delete a job permanently."""
    return Count(await call.queue.adelete(call.params["id"]))


async def cancel_job(call: Call) -> Count:
    """Cancel a job if it has not finished."""
    return Count(await call.queue.acancel(call.params["id"]))


async def replay_job(call: Call) -> Count:
    """Run a dead or cancelled job again."""
    return Count(await call.queue.areplay(call.params["id"]))


async def run_job_now(call: Call) -> Count:
    """Make a delayed job ready now."""
    return Count(await call.queue.arun_now(call.params["id"]))


async def wait_job(call: Call, query: WaitQuery) -> Job:
    """Wait until a job finishes or the timeout passes, then return the job."""
    return await wait_for_end(call, call.params["id"], query.timeout)


async def progress_job(call: Call, body: ProgressBody) -> Done:
    """Report the progress of a leased job."""
    lease = Lease(check_name("id", call.params["id"]), body.token)
    await call.queue.aprogress(lease, body.percent, body.note)
    return Done()


async def cancel_jobs(call: Call, body: LiveBody) -> Count:
    """Cancel jobs by id or by filter."""
    return Count(await call.queue.acancel(**body.of()))


async def replay_jobs(call: Call, body: WhichBody) -> Count:
    """Run dead and cancelled jobs again, by id or by filter."""
    return Count(await call.queue.areplay(**body.of()))


async def run_jobs_now(call: Call, body: LiveBody) -> Count:
    """Make delayed jobs ready now, by id or by filter."""
    return Count(await call.queue.arun_now(**body.of()))


async def delete_jobs(call: Call, body: WhichBody) -> Count:
    """Delete jobs permanently, by id or by filter."""
    return Count(await call.queue.adelete(**body.of()))


async def claim(call: Call, body: ClaimBody) -> Jobs:
    """Claim ready jobs, optionally waiting until there is one."""
    options = _asdict(body)
    queues, seconds = options.pop("queues"), options.pop("wait")
    return Jobs(await claim_or_wait(call, queues, seconds, **options))


async def ack(call: Call, body: AckBody) -> Results:
    """Mark leased jobs as done. Each job has its own result."""
    prepare = call.queue.prepare
    batch = [
        ops.Ack(
            check_name("id", one.id),
            one.token,
            checked("result", one.result, call),
            tuple(prepare([new.new() for new in one.then])) if one.then else (),
            one.keep,
        )
        for one in body.jobs
    ]
    return _results(body.jobs, await call.queue.ado(batch), State.DONE)


async def fail(call: Call, body: FailBody) -> Results:
    """Report failed attempts. Each job is retried after its backoff, or becomes dead."""
    batch = [
        ops.Fail(
            check_name("id", one.id),
            one.token,
            clean(one.message[:MAX_FAILURE_TEXT]),
            clean(one.type[:MAX_FAILURE_TEXT]),
            clean(one.traceback[-MAX_FAILURE_TEXT:]),
            None if one.retry_in is None else round(one.retry_in * 1000),
            one.fatal,
            one.cancel,
        )
        for one in body.jobs
    ]
    return _results(body.jobs, await call.queue.ado(batch), None)


async def extend(call: Call, body: ExtendBody) -> Results:
    """Extend leases. The new duration starts now."""
    lease = call.queue.settings.lease if body.lease is None else body.lease
    lease_ms = max(1, round(lease * 1000))
    batch = [ops.Extend(check_name("id", one.id), one.token, lease_ms) for one in body.jobs]
    return _results(body.jobs, await call.queue.ado(batch), State.LEASED)


async def release(call: Call, body: ReleaseBody) -> Results:
    """Return leased jobs to the queue without counting the attempt."""
    batch = [
        ops.Release(check_name("id", one.id), one.token, round(one.delay * 1000))
        for one in body.jobs
    ]
    return _results(body.jobs, await call.queue.ado(batch), State.PENDING)


async def list_queues(call: Call) -> Stats:
    """Get the job counts of all queues."""
    return await call.queue.astats()


async def get_queue(call: Call) -> QueueStats:
    """Get the job counts of a queue."""
    queue = call.params["queue"]
    return (await call.queue.astats(queue)).queues[queue]


async def pause_queue(call: Call, body: ScopeBody) -> Done:
    """Pause a queue, or one of its tenants or groups: its jobs are no longer claimed."""
    await call.queue.apause(call.params["queue"], tenant=body.tenant, group=body.group)
    return Done()


async def resume_queue(call: Call, body: ScopeBody) -> Done:
    """Resume a paused queue, tenant or group."""
    await call.queue.aresume(call.params["queue"], tenant=body.tenant, group=body.group)
    return Done()


async def list_limits(call: Call) -> list[Limit]:
    """List the limits and pauses of a queue."""
    return await call.queue.alimits(call.params["queue"])


async def put_limit(call: Call, body: LimitBody) -> Done:
    """Set limits of a queue, a tenant or a group. Omitted limits stay as they are."""
    await call.queue.aset_limit(call.params["queue"], **_asdict(body))
    return Done()


async def clear_limit(call: Call, query: ScopeBody) -> Done:
    """Remove the limits of a queue, a tenant or a group."""
    await call.queue.aclear_limit(call.params["queue"], tenant=query.tenant, group=query.group)
    return Done()


async def list_tenants(call: Call, query: TenantsQuery) -> list[TenantRow]:
    """List the tenants of a queue with their job counts, by name."""
    queue = call.params["queue"]
    found = await call.queue.atenants(queue, limit=query.limit, after=query.after)
    waits: dict[str, int] = {}
    if query.waits:
        ready = sorted((one for one in found if one.ready), key=lambda one: -one.ready)
        names = [one.tenant for one in ready[: queries.MOST_WAITS]]
        waits = await call.queue.alongest_waits(queue, names)
    return [
        TenantRow(**msgspec.structs.asdict(one), wait_ms=waits.get(one.tenant)) for one in found
    ]


async def list_groups(call: Call, query: NamesQuery) -> list[GroupStats]:
    """List the groups of a tenant with their job counts, by name."""
    queue, tenant = call.params["queue"], call.params["tenant"]
    return await call.queue.agroups(queue, tenant=tenant, limit=query.limit, after=query.after)


async def list_groups_of(call: Call, query: GroupsQuery) -> list[GroupStats]:
    """List the groups of a tenant, which may be the unnamed tenant."""
    return await call.queue.agroups(call.params["queue"], **_asdict(query))


async def list_group_totals(call: Call, query: TotalsQuery) -> list[GroupTotal]:
    """List the groups of a queue with their jobs of all tenants, by name."""
    return await call.queue.agroup_totals(call.params["queue"], **_asdict(query))


async def list_dead(call: Call, query: JobsQuery) -> Page:
    """List dead jobs, most recent first."""
    return await call.queue.ajobs(**_asdict(query) | {"state": State.DEAD})


async def replay_dead(call: Call, body: WhichBody) -> Count:
    """Run dead jobs again, by id or by filter."""
    return Count(await call.queue.areplay(**body.of() | {"state": State.DEAD}))


async def purge(call: Call, body: PurgeBody) -> Count:
    """Delete jobs that finished more than the given number of seconds ago."""
    states = body.state or [State.DEAD]
    return Count(await call.queue.apurge(body.older_than, queue=body.queue, state=states))


async def list_slots(call: Call) -> list[Slot]:
    """List the slots that are held under a scope and key."""
    return await call.queue.aslots(call.params["scope"], call.params["key"])


async def take_slot(call: Call, body: SlotBody) -> Slots:
    """Take or renew a slot."""
    names = _slot_of(call)
    return await call.queue.atake_slot(*names, body.ttl, limit=body.limit)


async def drop_slot(call: Call) -> Count:
    """Release a slot. Returns how many are still held."""
    return Count(await call.queue.adrop_slot(*_slot_of(call)))


def _slot_of(call: Call) -> tuple[str, str, str]:
    ops.check_own_scope(call.params["scope"])
    return call.params["scope"], call.params["key"], call.params["holder"]


async def list_schedules(call: Call) -> list[Schedule]:
    """List all schedules, by name."""
    return await call.queue.aschedules()


async def put_schedule(call: Call, body: ScheduleBody) -> Schedule:
    """Create or replace a schedule that enqueues a job by a cron expression."""
    name = call.params["name"]
    await call.queue.aput_schedule(
        name, body.cron, body.job.new(), tz=body.tz, catch_up=body.catch_up
    )
    return await _schedule(call, name)


async def drop_schedule(call: Call) -> Done:
    """Delete a schedule."""
    await call.queue.adrop_schedule(call.params["name"])
    return Done()


async def _schedule(call: Call, name: str) -> Schedule:
    for one in await call.queue.aschedules():
        if one.name == name:
            found: Schedule = one
            return found
    raise ScheduleNotFound(name)


async def maintain(call: Call, body: MaintainBody) -> Maintained:
    """Run due maintenance: delayed jobs, expired leases, jobs and slots, retention."""
    return await call.queue.amaintain(limit=body.limit)


async def reconcile(call: Call, body: ScopeBody) -> Corrections:
    """Recompute the counters of a queue, a tenant or a group."""
    queue = call.params["queue"]
    return Corrections(await call.queue.areconcile(queue, tenant=body.tenant, group=body.group))


async def apply(call: Call, body: OpsBody) -> Applied:
    """Apply a batch of operations. Used by the http:// engine."""
    answers = await apply_batch(call, body.ops, body.key, body.fingerprint)
    return Applied([wire.refusal(one) if isinstance(one, TenureError) else one for one in answers])


async def query(call: Call, body: QueryBody) -> AnyFound:
    """Run a query. Used by the http:// engine."""
    found = await call.queue.ado(wire.received_query(body.query))
    if isinstance(found, TenureError):
        raise found
    return Found(found)


def checked(field: str, raw: Raw, call: Call) -> Raw:
    """Return JSON from a request; raises PayloadTooLarge."""
    if raw is NULL:
        return raw
    return encode_json(field, raw, call.queue.settings.payload_limit)


def _results(sent: Any, answers: list[Any], state: State | None) -> Results:
    return Results(
        [_result(one.id, answer, state) for one, answer in zip(sent, answers, strict=True)]
    )


def _result(id: str, answer: Any, state: State | None) -> Result:
    if isinstance(answer, TenureError):
        return Result(id, False, None, Refusal(answer.code, answer.message))
    return Result(id, True, answer.state if isinstance(answer, ops.Moved) else state)


def _asdict(body: Body) -> dict[str, Any]:
    return msgspec.structs.asdict(body)


P, W, R, A = Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.ADMIN

ROUTES = [
    Route("POST", "/v1/jobs", enqueue, scope=P, query=EnqueueQuery, body=JobBody | list[JobBody],
          answer=Job | EnqueuedOne | list[EnqueuedOne], status=201),
    Route("POST", "/v1/jobs/cancel", cancel_jobs, scope=P, body=LiveBody, answer=Count),
    Route("POST", "/v1/jobs/replay", replay_jobs, scope=A, body=WhichBody, answer=Count),
    Route("POST", "/v1/jobs/run-now", run_jobs_now, scope=A, body=LiveBody, answer=Count),
    Route("POST", "/v1/jobs/delete", delete_jobs, scope=A, body=WhichBody, answer=Count),
    Route("GET", "/v1/jobs/{id}", get_job, scope=R, answer=Job),
    Route("DELETE", "/v1/jobs/{id}", delete_job, scope=A, answer=Count),
    Route("POST", "/v1/jobs/{id}/cancel", cancel_job, scope=P, answer=Count),
    Route("POST", "/v1/jobs/{id}/replay", replay_job, scope=A, answer=Count),
    Route("POST", "/v1/jobs/{id}/run-now", run_job_now, scope=A, answer=Count),
    Route("POST", "/v1/jobs/{id}/progress", progress_job, scope=W, body=ProgressBody, answer=Done),
    Route("GET", "/v1/jobs/{id}/wait", wait_job, scope=R, query=WaitQuery, answer=Job),
    Route("POST", "/v1/claim", claim, scope=W, body=ClaimBody, answer=Jobs),
    Route("POST", "/v1/ack", ack, scope=W, body=AckBody, answer=Results),
    Route("POST", "/v1/fail", fail, scope=W, body=FailBody, answer=Results),
    Route("POST", "/v1/extend", extend, scope=W, body=ExtendBody, answer=Results),
    Route("POST", "/v1/release", release, scope=W, body=ReleaseBody, answer=Results),
    Route("GET", "/v1/queues", list_queues, scope=R, answer=Stats),
    Route("GET", "/v1/queues/{queue}", get_queue, scope=R, answer=QueueStats),
    Route("POST", "/v1/queues/{queue}/pause", pause_queue, scope=A, body=ScopeBody, answer=Done,
          body_required=False),
    Route("POST", "/v1/queues/{queue}/resume", resume_queue, scope=A, body=ScopeBody, answer=Done,
          body_required=False),
    Route("POST", "/v1/queues/{queue}/reconcile", reconcile, scope=A, body=ScopeBody,
          answer=Corrections, body_required=False),
    Route("GET", "/v1/queues/{queue}/limits", list_limits, scope=R, answer=list[Limit]),
    Route("PUT", "/v1/queues/{queue}/limits", put_limit, scope=A, body=LimitBody, answer=Done),
    Route("DELETE", "/v1/queues/{queue}/limits", clear_limit, scope=A, query=ScopeBody,
          answer=Done),
    Route("GET", "/v1/queues/{queue}/tenants", list_tenants, scope=R, query=TenantsQuery,
          answer=list[TenantRow]),
    Route("GET", "/v1/queues/{queue}/tenants/{tenant}/groups", list_groups, scope=R,
          query=NamesQuery, answer=list[GroupStats]),
    Route("GET", "/v1/queues/{queue}/group-totals", list_group_totals, scope=R, query=TotalsQuery,
          answer=list[GroupTotal]),
    Route("GET", "/v1/queues/{queue}/groups", list_groups_of, scope=R, query=GroupsQuery,
          answer=list[GroupStats]),
    Route("GET", "/v1/dead", list_dead, scope=R, query=JobsQuery, answer=Page),
    Route("POST", "/v1/dead/replay", replay_dead, scope=A, body=WhichBody, answer=Count),
    Route("POST", "/v1/dead/purge", purge, scope=A, body=PurgeBody, answer=Count),
    Route("GET", "/v1/slots/{scope}/{key}", list_slots, scope=R, answer=list[Slot]),
    Route("PUT", "/v1/slots/{scope}/{key}/{holder}", take_slot, scope=W, body=SlotBody,
          answer=Slots),
    Route("DELETE", "/v1/slots/{scope}/{key}/{holder}", drop_slot, scope=W, answer=Count),
    Route("GET", "/v1/schedules", list_schedules, scope=R, answer=list[Schedule]),
    Route("PUT", "/v1/schedules/{name}", put_schedule, scope=A, body=ScheduleBody, answer=Schedule),
    Route("DELETE", "/v1/schedules/{name}", drop_schedule, scope=A, answer=Done),
    Route("POST", "/v1/maintain", maintain, scope=A, body=MaintainBody, answer=Maintained,
          body_required=False),
    Route("POST", "/v1/ops", apply, scope=ANY, body=OpsBody, answer=Applied),
    Route("POST", "/v1/query", query, scope=ANY, body=QueryBody, answer=AnyFound),
]  # fmt: skip
