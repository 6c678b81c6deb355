"""The API of Firecrawl's fdb-queue-service.

A team is a tenant, a crawl is a group, a claim is a lease, and an active job is a slot. Fields that
Tenure does not have (`listenable`, `listenChannelId`) are kept next to the data in the payload.
docs/dialects/firecrawl.md lists what is the same, better and different.

Ids belong to a team there, and to the whole store here. A job keeps its id if that is free;
otherwise it is stored under one that is made from the team and the id. Its unique key is always the
client's id, so a team cannot have two jobs of one id.
"""

from __future__ import annotations

import heapq
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from tenure.errors import Duplicate, InvalidInput, JobNotFound, LeaseLost, TenureError
from tenure.model import ops, queries
from tenure.model.fields import (
    MAX_ATTEMPTS,
    MAX_GROUPS_PER_CALL,
    MAX_LISTED,
    MAX_NAME,
    MAX_SPAN_MS,
    Label,
    check,
    check_name,
)
from tenure.model.job import FINAL, LIVE, Job, NewJob, State
from tenure.model.queries import Filter
from tenure.queue import Calls, store_of
from tenure.server.auth import Scope, Token
from tenure.server.bound_token import is_random_uuid
from tenure.server.dialects.error_text import ErrorText, as_text
from tenure.server.dialects.firecrawl_bodies import (
    ActiveCrawlJob,
    ActiveCrawlPush,
    ActiveJob,
    ActivePush,
    Cleaned,
    Complete,
    Correction,
    JobCount,
    JobIds,
    JobIdsQuery,
    Payload,
    Pop,
    Popped,
    PoppedJob,
    Push,
    ReleaseClaim,
    SampledIds,
    SampleQuery,
    ServiceHealth,
    Success,
)
from tenure.server.dialects.reach import digest, job_of, listed, must_be_for, must_be_for_all, reach
from tenure.server.route import Call, Route, encode

QUEUE = "firecrawl"
PAGE = 1_000
MOST = 10_000  # of each kind in one round of maintenance
MOST_IDS = 100_000  # that a list of a team's jobs has
TRIES = 5  # of a push, if the job that has its id ends meanwhile

_read_payload = msgspec.json.Decoder(Payload).decode


# Handlers ---------------------------------------------------------------------------------------


class Firecrawl:
    """The handlers, for one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.team_slots, self.crawl_slots = f"{queue}/team", f"{queue}/crawl"
        self.claim_slots = f"{queue}/claim"  # by the client's id, where the stored one differs

    async def health(self, call: Call) -> ServiceHealth:
        """Check that the store responds."""
        if await call.service.pulse.trouble() is not None:
            return ServiceHealth(status="degraded", fdb_connected=False)
        return ServiceHealth(status="ok", fdb_connected=True)

    async def push(self, call: Call, body: Push) -> Success:
        """Enqueue a job. A job that is already queued does not change."""
        queue, job = reach(call, self.queue), body.job
        timeout = None if body.crawl_id or not body.timeout or body.timeout < 0 else body.timeout
        new = NewJob(
            queue=self.queue,
            id=job.id,
            unique_key=job.id,
            tenant=body.team_id,
            group=body.crawl_id or "",
            priority=job.priority,
            payload=Raw(encode(Payload(job.data, job.listenable, job.listen_channel_id))),
            # Only the timeout ends a job, not workers that die.
            max_attempts=MAX_ATTEMPTS,
            expires_in=None if timeout is None else _seconds(timeout),
        )
        may_choose = not call.token.is_bound or is_random_uuid(job.id)
        for _ in range(TRIES):
            if may_choose and await self._is_queued(queue, new):
                return Success(success=True)
            other = replace(new, id=self._id_in_team(call.token, body.team_id, job.id))
            if await self._is_queued(queue, other):
                return Success(success=True)
        raise Duplicate("id", job.id, job.id)

    def _id_in_team(self, token: Token, team: str, id: str) -> str:
        """Return the id under which a job is stored if its own id is taken, or may not be chosen
        with this token."""
        made = digest((self.queue, team, id))
        if not token.is_bound:
            return made
        return token.own_ids(self.queue, team) + made

    def _id_of(self, job: Job) -> str:
        """Return the id that the client knows a job by."""
        named = job.unique_key
        if named is None:
            return job.id
        made = digest((self.queue, job.tenant, named))
        return named if job.id == made or job.id.endswith(f"/{made}") else job.id

    async def _is_queued(self, queue: Calls, new: NewJob) -> bool:
        """Enqueue a job. Returns whether its team has it in the queue now. If its id belongs to a
        job of the team that ended, delete that, so that the next try succeeds."""
        try:
            ids = await queue.aenqueue_many([new], if_exists="skip")
        except Duplicate:  # the id is that of a job that the token must not see
            return False
        if ids.created[0]:
            return True
        held = await store_of(queue).ado(queries.GetJob(ids[0]))
        if not isinstance(held, Job) or (held.queue, held.tenant) != (new.queue, new.tenant):
            return False  # it was completed just now, or is another team's
        late = held.expires_at is not None and held.expires_at <= queue.clock.now_ms()
        if held.state is State.PENDING and late:
            ended: tuple[State, ...] = (State.PENDING,)  # expired, so it is never claimed
        elif held.state in LIVE:
            return True
        else:
            ended = tuple(sorted(FINAL))
        await store_of(queue).ado([ops.Delete((held.id,), ended)])
        return False

    async def pop(self, call: Call, body: Pop) -> Popped | None:
        """Claim a team's next job, skipping the blocked crawls; null if there is none."""
        queue, team = reach(call, self.queue), call.params["team_id"]
        blocked = {crawl for crawl in body.blocked_crawl_ids or () if crawl}
        named = blocked
        if len(blocked) > MAX_GROUPS_PER_CALL:
            named = await self._ready_crawls(queue, check_name("team_id", team), blocked)
        jobs = await queue.aclaim(
            self.queue,
            lease=queue.settings.pop_lease,
            worker=body.worker_id,
            tenant=team,
            not_groups=sorted(named)[:MAX_GROUPS_PER_CALL],
        )
        if not jobs:
            return None
        if jobs[0].group in blocked:  # more of them have jobs than a claim can skip
            await store_of(queue).ado([ops.Release(jobs[0].id, jobs[0].token)])
            return None
        job, id = jobs[0], self._id_of(jobs[0])
        if id != job.id:  # so that a release, which names no team, finds it
            seconds = queue.settings.pop_lease
            await call.service.queue.slots.atake(self.claim_slots, id, job.id, seconds)
        return Popped(job=_popped(job, id), queue_key=_key_of(job))

    async def _ready_crawls(self, queue: Calls, team: str, blocked: set[str]) -> set[str]:
        """Return which of very many crawls have ready jobs: a claim need not skip the others."""
        found: set[str] = set()
        after: str | None = None
        while len(found) < MAX_GROUPS_PER_CALL:
            query = queries.ListGroups(self.queue, team, MAX_LISTED, after)
            page = await listed(queue, query)
            found |= {one.group for one in page if one.ready and one.group in blocked}
            if len(page) < MAX_LISTED:
                break
            after = page[-1].group
        return found

    async def complete(self, call: Call, body: Complete) -> Success:
        """Remove a completed job. Success is false if the claim or the job no longer exists."""
        claim = _claim_of(body.queue_key)
        if claim is None:
            return Success(success=False)
        id, token = claim
        (answer,) = await store_of(reach(call, self.queue)).ado([ops.Ack(id, token, keep=False)])
        if isinstance(answer, JobNotFound | LeaseLost):
            return Success(success=False)
        _check(answer)
        return Success(success=True)

    async def release(self, call: Call, body: ReleaseClaim) -> Success:
        """Return a claimed job to the queue; does nothing if it is not claimed. As the request
        names no team, the jobs of this id in all teams are returned."""
        queue = reach(call, self.queue)
        others = await call.service.queue.slots.alist(self.claim_slots, body.job_id)
        for id in (body.job_id, *(slot.holder for slot in others)):
            job = await job_of(queue, self.queue, id)
            if job is None or job.state is not State.LEASED or self._id_of(job) != body.job_id:
                continue
            (answer,) = await store_of(queue).ado([ops.Release(job.id, job.token)])
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
        teams = call.token.tenants
        if teams is None:
            query: queries.Query = queries.ListGroupTotals(self.queue, 1, group=crawl)
            return JobCount(count=sum(one.unfinished for one in await listed(queue, query)))
        count = 0
        for team in teams:
            query = queries.ListGroups(self.queue, team, 1, just_before(crawl))
            found = await listed(queue, query)
            count += sum(one.unfinished for one in found if one.group == crawl)
        return JobCount(count=count)

    async def team_jobs(self, call: Call, query: JobIdsQuery) -> JobIds:
        """List the ids of a team's jobs that are not completed, in queue order."""
        queue, team = reach(call, self.queue), check_name("team_id", call.params["team_id"])
        must_be_for(call, team)
        where = Filter(queue=self.queue, states=tuple(sorted(LIVE)), tenant=team)
        first: list[tuple[int, int, str]] = []
        place, limit = 0, min(query.limit, MOST_IDS)
        async for job in _jobs(queue, where):
            place -= 1  # they come newest first
            first.append((job.priority, place, self._id_of(job)))
            if len(first) >= 2 * limit + PAGE:
                first = heapq.nsmallest(limit, first)
        return JobIds(job_ids=[id for _, _, id in sorted(first)[:limit]])

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
        await reach(call, self.queue).slots.adrop(self.team_slots, body.team_id, body.job_id)
        return Success(success=True)

    async def remove_active_crawl(self, call: Call, body: ActiveCrawlJob) -> Success:
        """Mark a job of a crawl as no longer active."""
        must_be_for_all(call)
        await reach(call, self.queue).slots.adrop(self.crawl_slots, body.crawl_id, body.job_id)
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
        await reach(call, self.queue).slots.atake(scope, key, job, _seconds(timeout))
        return Success(success=True)

    async def _marked(self, call: Call, scope: str, key: str) -> JobIds:
        slots = await reach(call, self.queue).slots.alist(scope, key)
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
            (answer,) = await store_of(queue).ado([ops.Delete(some, (State.DEAD,))])
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
        by = await queue.slots.areconcile(self.team_slots, call.params["team_id"])
        return Correction(correction=by)

    async def reconcile_crawl_active(self, call: Call) -> Correction:
        """Recompute the counter of a crawl's active jobs."""
        must_be_for_all(call)
        queue = reach(call, self.queue)
        by = await queue.slots.areconcile(self.crawl_slots, call.params["crawl_id"])
        return Correction(correction=by)

    async def _recounted(
        self, queue: Calls, tenant: str | None = None, group: str | None = None
    ) -> dict[str, int]:
        (answer,) = await store_of(queue).ado([ops.Reconcile(self.queue, tenant, group)])
        if isinstance(answer, TenureError) and answer.code == "queue_not_found":
            return {}
        by: dict[str, int] = _check(answer).by
        return by

    async def sample_teams(self, call: Call, query: SampleQuery) -> SampledIds:
        """List the teams that have a counter, in order."""
        after = check("after", query.after, Label | None)
        wanted = queries.ListTenants(self.queue, min(query.limit, MAX_LISTED), after)
        found = await listed(reach(call, self.queue), wanted)
        return SampledIds(ids=[one.tenant for one in found])

    async def sample_crawls(self, call: Call, query: SampleQuery) -> SampledIds:
        """List the crawls that have a counter, in order."""
        queue, teams = reach(call, self.queue), call.token.tenants
        after, limit = check("after", query.after, Label | None), min(query.limit, MAX_LISTED)
        if teams is None:
            found = await listed(queue, queries.ListGroupTotals(self.queue, limit, after))
            return SampledIds(ids=[one.group for one in found])
        crawls: set[str] = set()
        for team in teams:
            found = await listed(queue, queries.ListGroups(self.queue, team, limit, after))
            crawls.update([one.group for one in found])
        return SampledIds(ids=sorted(crawls)[:limit])


async def _jobs(queue: Calls, where: Filter) -> AsyncIterator[Job]:
    cursor = None
    while True:
        page = await store_of(queue).ado(queries.ListJobs(where, PAGE, cursor))
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


def _seconds(timeout: float) -> float:
    """Return a timeout in seconds, within what a store can hold. The original accepts any number,
    and its client stops calling a service that rejects some."""
    return min(max(timeout, 1), MAX_SPAN_MS) / 1000


def _popped(job: Job, id: str) -> PoppedJob:
    try:
        kept = _read_payload(job.raw_payload)
    except msgspec.DecodeError:  # enqueued by another API
        kept = Payload(job.raw_payload, False)
    return PoppedJob(
        id=id,
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


def _claim_of(key: str) -> tuple[str, int] | None:
    """Return the id and token of a claim; None if the key is valid base64, but not one that a pop
    returned. Raises InvalidInput if it is not base64, as the original does."""
    try:
        text = b64decode(key.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        raise InvalidInput("queueKey", "is not one that a pop returned") from None
    try:
        token, _, id = text.decode().partition(".")
        if token.isascii() and token.isdigit() and int(token) < 2**63:
            return check_name("id", id), int(token)
    except ValueError:
        pass
    return None


def just_before(name: str) -> str:
    """Return the greatest possible name below this one. Lists start after a name, so a list that
    starts after the result includes this name."""
    start, last = name[:-1], ord(name[-1])
    if last == 1:
        return start  # no name has a NUL
    before = 0xD7FF if last == 0xE000 else last - 1  # nor a surrogate
    return start + chr(before) + "\U0010ffff" * (MAX_NAME - len(name))


def routes(queue: str = QUEUE) -> list[Route]:
    """Return the routes of this dialect. Its jobs are in a queue of their own."""
    calls = Firecrawl(queue)
    p, w, r, m = Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.MAINTAIN

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
        route("POST", "/cleanup/expired-jobs", calls.clean_expired_jobs, scope=m, answer=Cleaned),
        route("POST", "/cleanup/expired-active-jobs", calls.clean_expired_active, scope=m,
              answer=Cleaned),
        route("POST", "/cleanup/orphaned-claims", calls.clean_orphaned_claims, scope=m,
              answer=Cleaned),
        route("POST", "/cleanup/stale-counters", calls.clean_stale_counters, scope=m,
              answer=Cleaned),
        route("POST", "/reconcile/team/queue/{team_id}", calls.reconcile_team_queue, scope=m,
              answer=Correction),
        route("POST", "/reconcile/team/active/{team_id}", calls.reconcile_team_active, scope=m,
              answer=Correction),
        route("POST", "/reconcile/crawl/queue/{crawl_id}", calls.reconcile_crawl_queue, scope=m,
              answer=Correction),
        route("POST", "/reconcile/crawl/active/{crawl_id}", calls.reconcile_crawl_active, scope=m,
              answer=Correction),
        route("GET", "/sample/teams", calls.sample_teams, scope=r, query=SampleQuery,
              answer=SampledIds),
        route("GET", "/sample/crawls", calls.sample_crawls, scope=r, query=SampleQuery,
              answer=SampledIds),
    ]  # fmt: skip
