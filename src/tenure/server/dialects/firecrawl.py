"""The API of Firecrawl's fdb-queue-service.

A team is a tenant, a crawl is a group, a claim is a lease, and an active job is a slot. Fields that
Tenure does not have (`listenable`, `listenChannelId`) are kept next to the data in the payload. Two
things are better than in the original: a claim ends with its lease, so the jobs of a worker that
dies are not stranded; and blocked crawls are skipped however many jobs they have.
"""

from __future__ import annotations

import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from tenure.errors import Duplicate, InvalidInput, JobNotFound, LeaseLost, TenureError
from tenure.model import ops, queries
from tenure.model.fields import (
    MAX_ATTEMPTS,
    MAX_GROUPS_PER_CALL,
    MAX_NAME,
    MAX_PRIORITY,
    MAX_SPAN_MS,
    MIN_PRIORITY,
    Label,
    Name,
    check,
    check_name,
)
from tenure.model.job import FINAL, LIVE, Job, NewJob, State
from tenure.model.queries import Filter
from tenure.queue import Calls
from tenure.server.auth import Scope
from tenure.server.dialects.errors import ErrorText, as_text
from tenure.server.dialects.reach import job_of, listed, must_be_for, must_be_for_all, reach
from tenure.server.route import Call, Route, encode

QUEUE = "firecrawl"
PAGE = 1_000
MOST = 10_000  # of each kind in one round of maintenance
TRIES = 5  # of a push, if the job that has its id ends meanwhile


class Sent(msgspec.Struct, rename="camel", kw_only=True):
    """Base of request bodies and query strings."""


# Requests ---------------------------------------------------------------------------------------


class PushedJob(Sent):
    id: Name
    data: Raw
    priority: Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
    listenable: bool
    listen_channel_id: str | None = None


class Push(Sent):
    """`timeout` is in milliseconds; there is none if it is null, 0 or negative."""

    team_id: Name
    job: PushedJob
    timeout: Annotated[float, Meta(le=MAX_SPAN_MS)] | None = None
    crawl_id: Label | None = None


class Pop(Sent):
    worker_id: Name
    blocked_crawl_ids: Annotated[list[str], Meta(max_length=MAX_GROUPS_PER_CALL)] | None = None


class Complete(Sent):
    queue_key: str


class ReleaseClaim(Sent):
    job_id: Name


class ActiveJob(Sent):
    team_id: Name
    job_id: Name


class ActivePush(ActiveJob):
    """`timeout` is in milliseconds."""

    timeout: Annotated[float, Meta(gt=0, le=MAX_SPAN_MS)]


class ActiveCrawlJob(Sent):
    crawl_id: Name
    job_id: Name


class ActiveCrawlPush(ActiveCrawlJob):
    timeout: Annotated[float, Meta(gt=0, le=MAX_SPAN_MS)]


class JobIdsQuery(Sent):
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


class SampleQuery(Sent):
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 50
    after: Label | None = None


# Responses --------------------------------------------------------------------------------------


class Answered(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Base of response bodies. Fields without a value are left out."""


class ServiceHealth(Answered):
    status: str
    fdb_connected: bool


class Success(Answered):
    success: bool


class PoppedJob(Answered, kw_only=True):
    id: str
    data: Raw
    priority: int
    listenable: bool
    created_at: int
    times_out_at: int | None = None
    listen_channel_id: str | None = None
    crawl_id: str | None = None
    team_id: str


class Popped(Answered):
    job: PoppedJob
    queue_key: str


class JobCount(Answered):
    count: int


class JobIds(Answered):
    job_ids: list[str]


class Cleaned(Answered):
    cleaned: int


class Correction(Answered):
    correction: int


class SampledIds(Answered):
    ids: list[str]


class Payload(msgspec.Struct, rename="camel", omit_defaults=True):
    """The stored payload."""

    data: Raw
    listenable: bool
    listen_channel_id: str | None = None


_read_payload = msgspec.json.Decoder(Payload).decode


# Handlers ---------------------------------------------------------------------------------------


class Firecrawl:
    """The handlers, for one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.team_slots, self.crawl_slots = f"{queue}/team", f"{queue}/crawl"

    async def health(self, call: Call) -> ServiceHealth:
        """Check that the store responds."""
        if await call.service.pulse.trouble() is not None:
            return ServiceHealth(status="degraded", fdb_connected=False)
        return ServiceHealth(status="ok", fdb_connected=True)

    async def push(self, call: Call, body: Push) -> Success:
        """Enqueue a job. If it is already queued, it stays as it is."""
        queue, job = reach(call, self.queue), body.job
        timeout = None if body.crawl_id or not body.timeout or body.timeout < 0 else body.timeout
        new = NewJob(
            queue=self.queue,
            id=job.id,
            tenant=body.team_id,
            group=body.crawl_id or "",
            priority=job.priority,
            payload=Raw(encode(Payload(job.data, job.listenable, job.listen_channel_id))),
            # Only the timeout ends a job, not workers that die.
            max_attempts=MAX_ATTEMPTS,
            expires_in=None if timeout is None else max(timeout, 1) / 1000,
        )
        for _ in range(TRIES):
            ids = await queue.aenqueue_many([new], if_exists="skip")
            if ids.created[0] or await self._is_queued(queue, new, job.id):
                return Success(success=True)
        raise Duplicate("id", job.id, job.id)

    async def _is_queued(self, queue: Calls, new: NewJob, id: str) -> bool:
        """Whether the job is already queued. If the id belongs to one that ended, delete that."""
        held = await queue.ado(queries.GetJob(id))
        if not isinstance(held, Job):
            return False  # it was completed just now, or the token must not see it
        if (held.queue, held.tenant) != (new.queue, new.tenant):
            raise Duplicate("id", id, id)
        late = held.expires_at is not None and held.expires_at <= queue.clock.now_ms()
        if held.state is State.PENDING and late:
            ended: tuple[State, ...] = (State.PENDING,)  # expired, so it is never claimed
        elif held.state in LIVE:
            return True
        else:
            ended = tuple(sorted(FINAL))
        await queue.ado([ops.Delete((id,), ended)])
        return False

    async def pop(self, call: Call, body: Pop) -> Popped | None:
        """Claim a team's next job, skipping the blocked crawls; null if there is none."""
        queue = reach(call, self.queue)
        jobs = await queue.aclaim(
            self.queue,
            lease=queue.settings.pop_lease,
            worker=body.worker_id,
            tenant=call.params["team_id"],
            not_groups=[crawl for crawl in body.blocked_crawl_ids or () if crawl],
        )
        return Popped(job=_popped(jobs[0]), queue_key=_key_of(jobs[0])) if jobs else None

    async def complete(self, call: Call, body: Complete) -> Success:
        """Remove a completed job. Success is false if the claim or the job no longer exists."""
        id, token = _claim_of(body.queue_key)
        (answer,) = await reach(call, self.queue).ado([ops.Ack(id, token, keep=False)])
        if isinstance(answer, JobNotFound | LeaseLost):
            return Success(success=False)
        _check(answer)
        return Success(success=True)

    async def release(self, call: Call, body: ReleaseClaim) -> Success:
        """Return a claimed job to the queue; does nothing if it is not claimed."""
        queue = reach(call, self.queue)
        job = await job_of(queue, self.queue, body.job_id)
        if job is not None and job.state is State.LEASED:
            (answer,) = await queue.ado([ops.Release(job.id, job.token)])
            if not isinstance(answer, JobNotFound | LeaseLost):
                _check(answer)
        return Success(success=True)

    async def count_team(self, call: Call) -> JobCount:
        """Count the jobs of a team that are not completed."""
        queue, team = reach(call, self.queue), call.params["team_id"]
        must_be_for(call, check_name("team_id", team))
        counts = await listed(queue, queries.ListTenants(self.queue, 1, tenant=team))
        return JobCount(count=sum(one.unfinished for one in counts))

    async def count_crawl(self, call: Call) -> JobCount:
        """Count the jobs of a crawl that are not completed."""
        queue, crawl = reach(call, self.queue), check_name("crawl_id", call.params["crawl_id"])
        count = 0
        # The request does not name the team, so look through all of them.
        async for team in self._teams(queue):
            query = queries.ListGroups(self.queue, team, 1, just_before(crawl))
            found = await listed(queue, query)
            count += sum(one.unfinished for one in found if one.group == crawl)
        return JobCount(count=count)

    async def _teams(self, queue: Calls) -> AsyncIterator[str]:
        after = None
        while True:
            found = await listed(queue, queries.ListTenants(self.queue, PAGE, after))
            for one in found:
                yield one.tenant
            if len(found) < PAGE:
                return
            after = found[-1].tenant

    async def team_jobs(self, call: Call, query: JobIdsQuery) -> JobIds:
        """List the ids of a team's jobs that are not completed, in queue order."""
        queue, team = reach(call, self.queue), check_name("team_id", call.params["team_id"])
        must_be_for(call, team)
        where = Filter(queue=self.queue, states=tuple(sorted(LIVE)), tenant=team)
        first: list[tuple[int, int, str]] = []
        place = 0
        async for job in _jobs(queue, where):
            place -= 1  # they come newest first
            first.append((job.priority, place, job.id))
            if len(first) >= 2 * query.limit + PAGE:
                first = heapq.nsmallest(query.limit, first)
        return JobIds(job_ids=[id for _, _, id in sorted(first)[: query.limit]])

    # Active jobs --------------------------------------------------------------------------------

    async def push_active(self, call: Call, body: ActivePush) -> Success:
        """Mark a job of a team as active until a timeout."""
        must_be_for(call, body.team_id)
        return await self._mark(call, self.team_slots, body.team_id, body.job_id, body.timeout)

    async def push_active_crawl(self, call: Call, body: ActiveCrawlPush) -> Success:
        """Mark a job of a crawl as active until a timeout."""
        must_be_for_all(call)
        return await self._mark(call, self.crawl_slots, body.crawl_id, body.job_id, body.timeout)

    async def remove_active(self, call: Call, body: ActiveJob) -> Success:
        """Mark a job of a team as no longer active."""
        must_be_for(call, body.team_id)
        await reach(call, self.queue).adrop_slot(self.team_slots, body.team_id, body.job_id)
        return Success(success=True)

    async def remove_active_crawl(self, call: Call, body: ActiveCrawlJob) -> Success:
        """Mark a job of a crawl as no longer active."""
        must_be_for_all(call)
        await reach(call, self.queue).adrop_slot(self.crawl_slots, body.crawl_id, body.job_id)
        return Success(success=True)

    async def count_active(self, call: Call) -> JobCount:
        """Count the active jobs of a team."""
        return JobCount(count=len((await self.active_jobs(call)).job_ids))

    async def active_jobs(self, call: Call) -> JobIds:
        """List the active jobs of a team."""
        must_be_for(call, call.params["team_id"])
        return await self._marked(call, self.team_slots, call.params["team_id"])

    async def active_crawl_jobs(self, call: Call) -> JobIds:
        """List the active jobs of a crawl."""
        must_be_for_all(call)
        return await self._marked(call, self.crawl_slots, call.params["crawl_id"])

    async def _mark(self, call: Call, scope: str, key: str, job: str, timeout: float) -> Success:
        seconds = max(timeout, 1) / 1000
        await reach(call, self.queue).atake_slot(scope, key, job, seconds)
        return Success(success=True)

    async def _marked(self, call: Call, scope: str, key: str) -> JobIds:
        slots = await reach(call, self.queue).aslots(scope, key)
        return JobIds(job_ids=[slot.holder for slot in slots])

    # Maintenance --------------------------------------------------------------------------------

    async def clean_expired_jobs(self, call: Call) -> Cleaned:
        """Delete jobs that timed out."""
        queue = reach(call, self.queue)
        await self._maintain(queue, "expired")
        now, ids = queue.clock.now_ms(), []
        async for job in _jobs(queue, Filter(queue=self.queue, states=(State.DEAD,))):
            if job.expires_at is not None and job.expires_at <= now:
                ids.append(job.id)
        cleaned = 0
        for start in range(0, len(ids), PAGE):
            some = tuple(ids[start : start + PAGE])
            (answer,) = await queue.ado([ops.Delete(some, (State.DEAD,))])
            cleaned += _check(answer).count
        return Cleaned(cleaned=cleaned)

    async def clean_expired_active(self, call: Call) -> Cleaned:
        """Remove active jobs that timed out."""
        return Cleaned(cleaned=await self._maintain(reach(call, self.queue), "slots"))

    async def clean_orphaned_claims(self, call: Call) -> Cleaned:
        """Return jobs with expired leases to the queue."""
        return Cleaned(cleaned=await self._maintain(reach(call, self.queue), "leases"))

    async def clean_stale_counters(self, call: Call) -> Cleaned:
        """Recompute all counters. Returns how many kinds of counter were wrong."""
        queue = reach(call, self.queue)
        must_be_for_all(call)
        return Cleaned(cleaned=len(await self._recounted(queue)))

    async def _maintain(self, queue: Calls, kind: str) -> int:
        """Run due maintenance until nothing of a kind is left. Returns how many there were."""
        count = 0
        while True:
            found: int = getattr(await queue.amaintain(limit=MOST), kind)
            count += found
            if found < MOST:
                return count

    async def reconcile_team_queue(self, call: Call) -> Correction:
        """Recompute the job counter of a team."""
        team = check_name("team_id", call.params["team_id"])
        must_be_for(call, team)
        return _correction(await self._recounted(reach(call, self.queue), tenant=team))

    async def reconcile_crawl_queue(self, call: Call) -> Correction:
        """Recompute the job counter of a crawl."""
        crawl = check_name("crawl_id", call.params["crawl_id"])
        must_be_for_all(call)
        return _correction(await self._recounted(reach(call, self.queue), group=crawl))

    async def reconcile_team_active(self, call: Call) -> Correction:
        """Recompute the counter of a team's active jobs."""
        must_be_for(call, call.params["team_id"])
        queue = reach(call, self.queue)
        by = await queue.areconcile_slots(self.team_slots, call.params["team_id"])
        return Correction(correction=by)

    async def reconcile_crawl_active(self, call: Call) -> Correction:
        """Recompute the counter of a crawl's active jobs."""
        must_be_for_all(call)
        queue = reach(call, self.queue)
        by = await queue.areconcile_slots(self.crawl_slots, call.params["crawl_id"])
        return Correction(correction=by)

    async def _recounted(
        self, queue: Calls, tenant: str | None = None, group: str | None = None
    ) -> dict[str, int]:
        (answer,) = await queue.ado([ops.Reconcile(self.queue, tenant, group)])
        if isinstance(answer, TenureError) and answer.code == "queue_not_found":
            return {}
        by: dict[str, int] = _check(answer).by
        return by

    async def sample_teams(self, call: Call, query: SampleQuery) -> SampledIds:
        """List the teams that have a counter, in order."""
        after = check("after", query.after, Label | None)
        wanted = queries.ListTenants(self.queue, query.limit, after)
        found = await listed(reach(call, self.queue), wanted)
        return SampledIds(ids=[one.tenant for one in found])

    async def sample_crawls(self, call: Call, query: SampleQuery) -> SampledIds:
        """List the crawls that have a counter, in order."""
        queue = reach(call, self.queue)
        after = check("after", query.after, Label | None)
        crawls: set[str] = set()
        async for team in self._teams(queue):
            wanted = queries.ListGroups(self.queue, team, query.limit, after)
            crawls.update([one.group for one in await listed(queue, wanted)])
            crawls = set(heapq.nsmallest(query.limit, crawls))
        return SampledIds(ids=sorted(crawls))


async def _jobs(queue: Calls, where: Filter) -> AsyncIterator[Job]:
    cursor = None
    while True:
        page = await queue.ado(queries.ListJobs(where, PAGE, cursor))
        if isinstance(page, TenureError):
            if page.code == "queue_not_found":
                return
            raise page
        for job in page.jobs:
            yield job
        cursor = page.cursor
        if cursor is None:
            return


def _check(answer: Any) -> Any:
    if isinstance(answer, TenureError):
        raise answer
    return answer


def _correction(by: dict[str, int]) -> Correction:
    unfinished = ("waiting", "delayed", "ready", "leased")
    return Correction(correction=sum(by.get(name, 0) for name in unfinished))


def _popped(job: Job) -> PoppedJob:
    try:
        kept = _read_payload(job.raw_payload)
    except msgspec.DecodeError:  # enqueued by another API
        kept = Payload(job.raw_payload, False)
    return PoppedJob(
        id=job.id,
        data=kept.data,
        priority=job.priority,
        listenable=kept.listenable,
        created_at=job.created_at,
        times_out_at=job.expires_at,
        listen_channel_id=kept.listen_channel_id,
        crawl_id=job.group or None,
        team_id=job.tenant,
    )


def _key_of(job: Job) -> str:
    """Return the claim of a job as an opaque string."""
    return urlsafe_b64encode(f"{job.token}.{job.id}".encode()).decode()


def _claim_of(key: str) -> tuple[str, int]:
    """Return the id and token of a claim; raises InvalidInput."""
    try:
        token, _, id = urlsafe_b64decode(key.encode("ascii")).decode().partition(".")
        if token.isascii() and token.isdigit() and int(token) < 2**63:
            return check_name("id", id), int(token)
    except ValueError:
        pass
    raise InvalidInput("queueKey", "is not one that a pop gave")


def just_before(name: str) -> str:
    """Return the greatest possible name below this one: a list that starts after it begins with
    this name, if it contains it."""
    start, last = name[:-1], ord(name[-1])
    if last == 1:
        return start  # no name has a NUL
    before = 0xD7FF if last == 0xE000 else last - 1  # nor a surrogate
    return start + chr(before) + "\U0010ffff" * (MAX_NAME - len(name))


def routes(queue: str = QUEUE) -> list[Route]:
    """Return the routes of this dialect. Its jobs are in a queue of their own."""
    calls = Firecrawl(queue)
    p, w, r, a = Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.ADMIN

    def route(*args: Any, **kwargs: Any) -> Route:
        return Route(*args, **kwargs, tag="firecrawl", show_error=as_text, problem=ErrorText)

    return [
        route("GET", "/health", calls.health, scope=None, answer=ServiceHealth),
        route("POST", "/queue/push", calls.push, scope=p, body=Push, answer=Success),
        route("POST", "/queue/pop/{team_id}", calls.pop, scope=w, body=Pop, answer=Popped | None),
        route("POST", "/queue/complete", calls.complete, scope=w, body=Complete, answer=Success),
        route("POST", "/queue/release", calls.release, scope=w, body=ReleaseClaim, answer=Success),
        route("GET", "/queue/count/team/{team_id}", calls.count_team, scope=r, answer=JobCount),
        route("GET", "/queue/count/crawl/{crawl_id}", calls.count_crawl, scope=r, answer=JobCount),
        route("GET", "/queue/jobs/team/{team_id}", calls.team_jobs, scope=r, query=JobIdsQuery,
              answer=JobIds),
        route("POST", "/active/push", calls.push_active, scope=w, body=ActivePush, answer=Success),
        route("DELETE", "/active/remove", calls.remove_active, scope=w, body=ActiveJob,
              answer=Success),
        route("GET", "/active/count/{team_id}", calls.count_active, scope=r, answer=JobCount),
        route("GET", "/active/jobs/{team_id}", calls.active_jobs, scope=r, answer=JobIds),
        route("POST", "/active/crawl/push", calls.push_active_crawl, scope=w, body=ActiveCrawlPush,
              answer=Success),
        route("DELETE", "/active/crawl/remove", calls.remove_active_crawl, scope=w,
              body=ActiveCrawlJob, answer=Success),
        route("GET", "/active/crawl/jobs/{crawl_id}", calls.active_crawl_jobs, scope=r,
              answer=JobIds),
        route("POST", "/cleanup/expired-jobs", calls.clean_expired_jobs, scope=a, answer=Cleaned),
        route("POST", "/cleanup/expired-active-jobs", calls.clean_expired_active, scope=a,
              answer=Cleaned),
        route("POST", "/cleanup/orphaned-claims", calls.clean_orphaned_claims, scope=a,
              answer=Cleaned),
        route("POST", "/cleanup/stale-counters", calls.clean_stale_counters, scope=a,
              answer=Cleaned),
        route("POST", "/reconcile/team/queue/{team_id}", calls.reconcile_team_queue, scope=a,
              answer=Correction),
        route("POST", "/reconcile/team/active/{team_id}", calls.reconcile_team_active, scope=a,
              answer=Correction),
        route("POST", "/reconcile/crawl/queue/{crawl_id}", calls.reconcile_crawl_queue, scope=a,
              answer=Correction),
        route("POST", "/reconcile/crawl/active/{crawl_id}", calls.reconcile_crawl_active, scope=a,
              answer=Correction),
        route("GET", "/sample/teams", calls.sample_teams, scope=r, query=SampleQuery,
              answer=SampledIds),
        route("GET", "/sample/crawls", calls.sample_crawls, scope=r, query=SampleQuery,
              answer=SampledIds),
    ]  # fmt: skip
