"""The native HTTP API, under /v1."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from tenure.errors import InvalidInput, ScheduleNotFound, TenureError
from tenure.model import ops, queries, wire
from tenure.model.fields import (
    MAX_FAILURE_TEXT,
    MAX_JOBS_PER_CALL,
    check_name,
    check_names,
    clean,
)
from tenure.model.job import NULL, Job, Lease, NewJob, State, encode_json
from tenure.model.ops import IfExists, Maintained, Schedule, Slots, good
from tenure.model.queries import (
    GroupStats,
    Page,
    QueueStats,
    Stats,
)
from tenure.observe.tracing import current_trace, sending
from tenure.queue.arguments import too_many_jobs
from tenure.server.auth import Scope
from tenure.server.batches import apply_batch, apply_in_parts
from tenure.server.bodies import (
    AckBody,
    AckOne,
    AnyFound,
    Applied,
    ClaimBody,
    Corrections,
    Count,
    Done,
    EnqueuedOne,
    EnqueueQuery,
    ExtendBody,
    FailBody,
    Found,
    GroupsQuery,
    JobBody,
    Jobs,
    JobsQuery,
    LimitBody,
    LiveBody,
    MaintainBody,
    OpsBody,
    ProgressBody,
    PurgeBody,
    QueryBody,
    ReleaseBody,
    Result,
    ResultError,
    Results,
    ScheduleBody,
    ScopeBody,
    SlotBody,
    TenantRow,
    TenantsQuery,
    WaitQuery,
    WhichBody,
)
from tenure.server.idempotency import HEADER, NAME
from tenure.server.route import ANY, Call, Route
from tenure.server.waiting import claim_or_wait, wait_for_end

# Handlers ---------------------------------------------------------------------------------------


async def enqueue(
    call: Call, query: EnqueueQuery, body: JobBody | list[JobBody]
) -> Job | EnqueuedOne | list[EnqueuedOne]:
    """Enqueue one job, or a list of jobs (all or none of them)."""
    if isinstance(body, JobBody):
        if (body.after or query.if_exists == "skip") and not call.token.allows(Scope.READ):
            return await _enqueue_unread(call, body.new(), query.if_exists)
        job: Job = await call.queue._aenqueue_new(body.new(), query.if_exists)
        return job
    return await _enqueue_list(call, body, query.if_exists)


async def _enqueue_list(call: Call, body: list[JobBody], if_exists: IfExists) -> list[EnqueuedOne]:
    """Like `aenqueue_many`, except that a long list is validated in a thread."""
    if len(body) > MAX_JOBS_PER_CALL:
        raise too_many_jobs(len(body))
    if not body:
        return []
    news = await call.aside(len(body), lambda: [one.new() for one in body])
    with sending(news) as trace:
        specs = await call.aside(len(body), lambda: call.store.prepare(news, trace))
        (answer,) = await call.store.ado([ops.Enqueue(tuple(specs), if_exists)])
        found = good(answer, ops.Enqueued)
    return [EnqueuedOne(id, created) for id, created in zip(found.ids, found.created, strict=True)]


async def _enqueue_unread(call: Call, new: NewJob, if_exists: IfExists) -> Job | EnqueuedOne:
    """Enqueue a job with a token that may not read jobs. It gets the job only if it is new."""
    ids = await call.queue.aenqueue_many([new], if_exists=if_exists)
    if not ids.created[0]:
        return EnqueuedOne(ids[0], False)
    reading = replace(call.token, scopes=(Scope.READ,))
    job: Job = await call.service.queue_for(reading).aget(ids[0])
    # By a repetition with a key, a token could otherwise read what has become of the job.
    is_new = job.state in (State.WAITING, State.PENDING) and not job.attempts and not job.errors
    return job if is_new else EnqueuedOne(job.id, True)


async def delete_job(call: Call) -> Count:
    """Delete a job permanently."""
    return Count(await call.queue.adelete(call.params["id"]))


async def cancel_job(call: Call) -> Count:
    """Cancel a job if it has not finished."""
    return Count(await call.queue.acancel(call.params["id"]))


async def replay_job(call: Call) -> Count:
    """Run a dead or cancelled job again."""
    return Count(await call.queue.areplay(call.params["id"]))


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


async def delete_jobs(call: Call, body: WhichBody) -> Count:
    """Delete jobs permanently, by id or by filter."""
    return Count(await call.queue.adelete(**body.of()))


async def claim(call: Call, body: ClaimBody) -> Jobs:
    """Claim ready jobs, optionally waiting until there is one."""
    options = msgspec.structs.asdict(body)
    queues, seconds = options.pop("queues"), options.pop("wait")
    if seconds and call.headers.get(HEADER) is not None:
        raise InvalidInput("wait", f"must be 0 with {NAME}; use another key for each try")
    return Jobs(await claim_or_wait(call, queues, seconds, **options))


async def ack(call: Call, body: AckBody) -> Results:
    """Mark leased jobs as done. Each job has its own result."""
    check_names("id", [one.id for one in body.jobs])
    trace = current_trace()  # not known in a thread
    size = sum([len(one.then) for one in body.jobs])
    batch = await call.aside(size, lambda: [_ack_of(call, one, trace) for one in body.jobs])
    return _results(body.jobs, await apply_in_parts(call, batch), State.DONE)


def _ack_of(call: Call, one: AckOne, trace: str | None) -> ops.Ack:
    return ops.Ack(
        one.id,
        one.token,
        NULL if one.result is NULL else checked("result", one.result, call),
        tuple(call.store.prepare([new.new() for new in one.then], trace)) if one.then else (),
        one.keep,
    )


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
    return _results(body.jobs, await call.store.ado(batch), None)


async def extend(call: Call, body: ExtendBody) -> Results:
    """Extend leases. The new duration starts now."""
    lease = call.queue.settings.lease if body.lease is None else body.lease
    lease_ms = max(1, round(lease * 1000))
    batch = [ops.Extend(check_name("id", one.id), one.token, lease_ms) for one in body.jobs]
    return _results(body.jobs, await call.store.ado(batch), State.LEASED)


async def release(call: Call, body: ReleaseBody) -> Results:
    """Return leased jobs to the queue without counting the attempt."""
    batch = [
        ops.Release(check_name("id", one.id), one.token, round(one.delay * 1000))
        for one in body.jobs
    ]
    return _results(body.jobs, await call.store.ado(batch), State.PENDING)


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


async def put_limit(call: Call, body: LimitBody) -> Done:
    """Set limits of a queue, a tenant or a group. Omitted limits do not change."""
    await call.queue.limits.aset(call.params["queue"], **msgspec.structs.asdict(body))
    return Done()


async def clear_limit(call: Call, query: ScopeBody) -> Done:
    """Remove the limits of a queue, a tenant or a group."""
    await call.queue.limits.aclear(call.params["queue"], tenant=query.tenant, group=query.group)
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


async def list_groups_of(call: Call, query: GroupsQuery) -> list[GroupStats]:
    """List the groups of a tenant, which may be the unnamed tenant."""
    return await call.queue.agroups(call.params["queue"], **msgspec.structs.asdict(query))


async def list_dead(call: Call, query: JobsQuery) -> Page:
    """List dead jobs, most recent first."""
    return await call.queue.ajobs(**msgspec.structs.asdict(query) | {"state": State.DEAD})


async def replay_dead(call: Call, body: WhichBody) -> Count:
    """Run dead jobs again, by id or by filter."""
    return Count(await call.queue.areplay(**body.of() | {"state": State.DEAD}))


async def purge(call: Call, body: PurgeBody) -> Count:
    """Delete jobs that finished more than the given number of seconds ago."""
    states = body.state or [State.DEAD]
    return Count(await call.queue.apurge(body.older_than, queue=body.queue, state=states))


async def take_slot(call: Call, body: SlotBody) -> Slots:
    """Take or renew a slot."""
    names = _slot_of(call)
    return await call.queue.slots.atake(*names, body.ttl, limit=body.limit)


async def drop_slot(call: Call) -> Count:
    """Release a slot. Returns how many are still held."""
    return Count(await call.queue.slots.adrop(*_slot_of(call)))


def _slot_of(call: Call) -> tuple[str, str, str]:
    ops.check_own_scope(call.params["scope"])
    return call.params["scope"], call.params["key"], call.params["holder"]


async def put_schedule(call: Call, body: ScheduleBody) -> Schedule:
    """Create or replace a schedule that enqueues a job by a cron expression."""
    name = call.params["name"]
    await call.queue.schedules.aput(
        name, body.cron, body.job.new(), tz=body.tz, catch_up=body.catch_up
    )
    return await _schedule(call, name)


async def drop_schedule(call: Call) -> Done:
    """Delete a schedule."""
    await call.queue.schedules.adrop(call.params["name"])
    return Done()


async def _schedule(call: Call, name: str) -> Schedule:
    for one in await call.queue.schedules.alist():
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
    for field in ("key", "fingerprint"):
        if getattr(body, field) is not None:
            check_name(field, getattr(body, field))
    answers = await apply_batch(call, body.ops, body.key, body.fingerprint)
    return Applied([wire.refusal(one) if isinstance(one, TenureError) else one for one in answers])


async def query(call: Call, body: QueryBody) -> AnyFound:
    """Run a query. Used by the http:// engine."""
    found = await call.store.ado(wire.received_query(body.query))
    if isinstance(found, TenureError):
        raise found
    return Found(found)


def checked(field: str, raw: Raw, call: Call) -> Raw:
    """Return JSON from a request; raises PayloadTooLarge."""
    return encode_json(field, raw, call.queue.settings.payload_limit)


def _results(sent: Any, answers: list[Any], state: State | None) -> Results:
    if ops.Ok in (kinds := set(map(type, answers))) and len(kinds) == 1:
        return Results([Result(one.id, True, state) for one in sent])
    return Results(
        [_result(one.id, answer, state) for one, answer in zip(sent, answers, strict=True)]
    )


def _result(id: str, answer: Any, state: State | None) -> Result:
    if isinstance(answer, TenureError):
        return Result(id, False, None, ResultError(answer.code, answer.message))
    return Result(id, True, answer.state if isinstance(answer, ops.Moved) else state)


P, W, R, A = Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.ADMIN

ROUTES = [
    Route("POST", "/v1/jobs", enqueue, scope=P, query=EnqueueQuery, body=JobBody | list[JobBody],
          answer=Job | EnqueuedOne | list[EnqueuedOne], status=201),
    Route("POST", "/v1/jobs/cancel", cancel_jobs, scope=P, body=LiveBody, answer=Count),
    Route("POST", "/v1/jobs/replay", replay_jobs, scope=A, body=WhichBody, answer=Count),
    Route("POST", "/v1/jobs/delete", delete_jobs, scope=A, body=WhichBody, answer=Count),
    Route("DELETE", "/v1/jobs/{id}", delete_job, scope=A, answer=Count),
    Route("POST", "/v1/jobs/{id}/cancel", cancel_job, scope=P, answer=Count),
    Route("POST", "/v1/jobs/{id}/replay", replay_job, scope=A, answer=Count),
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
    Route("PUT", "/v1/queues/{queue}/limits", put_limit, scope=A, body=LimitBody, answer=Done),
    Route("DELETE", "/v1/queues/{queue}/limits", clear_limit, scope=A, query=ScopeBody,
          answer=Done),
    Route("GET", "/v1/queues/{queue}/tenants", list_tenants, scope=R, query=TenantsQuery,
          answer=list[TenantRow]),
    Route("GET", "/v1/queues/{queue}/groups", list_groups_of, scope=R, query=GroupsQuery,
          answer=list[GroupStats]),
    Route("GET", "/v1/dead", list_dead, scope=R, query=JobsQuery, answer=Page),
    Route("POST", "/v1/dead/replay", replay_dead, scope=A, body=WhichBody, answer=Count),
    Route("POST", "/v1/dead/purge", purge, scope=A, body=PurgeBody, answer=Count),
    Route("PUT", "/v1/slots/{scope}/{key}/{holder}", take_slot, scope=W, body=SlotBody,
          answer=Slots),
    Route("DELETE", "/v1/slots/{scope}/{key}/{holder}", drop_slot, scope=W, answer=Count),
    Route("PUT", "/v1/schedules/{name}", put_schedule, scope=A, body=ScheduleBody, answer=Schedule),
    Route("DELETE", "/v1/schedules/{name}", drop_schedule, scope=A, answer=Done),
    Route("POST", "/v1/maintain", maintain, scope=A, body=MaintainBody, answer=Maintained,
          body_required=False),
    Route("POST", "/v1/ops", apply, scope=ANY, body=OpsBody, answer=Applied),
    Route("POST", "/v1/query", query, scope=ANY, body=QueryBody, answer=AnyFound,
          takes_key=False),
]  # fmt: skip
