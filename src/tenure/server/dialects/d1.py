"""The API of the D1-backed queue.

A run is a group. Clients acknowledge jobs by id only, so the lease token is looked up first. A job
that is claimed by another client in between is not changed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenure.errors import JobNotFound, LeaseLost, TenureError
from tenure.model import ops, queries
from tenure.model.fields import MAX_ATTEMPTS, Name
from tenure.model.job import Job, NewJob, State
from tenure.model.ops import Op
from tenure.queue import store_of
from tenure.server.auth import Scope
from tenure.server.dialects.error_text import ErrorText, as_text
from tenure.server.dialects.reach import enqueue, job_of, listed, reach
from tenure.server.route import Call, Route

QUEUE = "d1"
MAX_KEY = 1_024  # the limit for keys in R2

Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]


class FileOfRun(msgspec.Struct, rename="camel", kw_only=True):
    tenant_id: Name
    r2_key: Key = msgspec.field(name="r2Key")


class FileToDo(FileOfRun):
    run_id: Name


class Pull(msgspec.Struct, rename="camel"):
    """`visibilitySeconds` is the duration of the lease."""

    max: Annotated[int, Meta(ge=1, le=100)] | None = None
    visibility_seconds: Annotated[int, Meta(ge=1, le=43_200)] | None = None


class Acknowledge(msgspec.Struct):
    ids: Annotated[list[Name], Meta(max_length=1_000)]
    status: Literal["done", "failed"]


class EnqueuedJob(msgspec.Struct, rename="camel"):
    success: bool
    job_id: str
    run_id: str
    status: Literal["pending"] = "pending"


class PulledJob(msgspec.Struct, rename="camel"):
    id: str
    run_id: str
    tenant_id: str
    r2_key: str = msgspec.field(name="r2Key")
    attempts: int


class PulledJobs(msgspec.Struct):
    jobs: list[PulledJob]


class JobStatus(msgspec.Struct):
    id: str
    status: Literal["done", "pending", "failed", "not_found", "not_leased"]


class Acknowledged(msgspec.Struct):
    success: bool
    results: list[JobStatus]


class StatusCounts(msgspec.Struct):
    pending: int
    leased: int
    done: int
    failed: int


class JobStats(msgspec.Struct):
    stats: StatusCounts
    timestamp: int


class D1:
    """The handlers, for one queue."""

    def __init__(self, queue: str, max_attempts: int) -> None:
        self.queue = queue
        self.max_attempts = max_attempts

    async def enqueue(self, call: Call, body: FileToDo) -> EnqueuedJob:
        """Enqueue a job."""
        return await self._enqueue(call, body.run_id, body)

    async def enqueue_of_run(self, call: Call, body: FileOfRun) -> EnqueuedJob:
        """Enqueue a job in a run."""
        return await self._enqueue(call, call.params["run_id"], body)

    async def _enqueue(self, call: Call, run: str, body: FileOfRun) -> EnqueuedJob:
        new = NewJob(
            queue=self.queue,
            tenant=body.tenant_id,
            group=run,
            payload={"r2Key": body.r2_key},
            max_attempts=self.max_attempts,
        )
        job = await enqueue(call, reach(call, self.queue), new)
        return EnqueuedJob(True, job.id, run)

    async def pull(self, call: Call, body: Pull) -> PulledJobs:
        """Claim jobs, including those whose lease has expired."""
        jobs = await reach(call, self.queue).aclaim(
            self.queue,
            limit=body.max or 10,
            lease=body.visibility_seconds or 60,
            worker=call.token.name if call.service.tokens else self.queue,
        )
        return PulledJobs([_pulled(job) for job in jobs])

    async def ack(self, call: Call, body: Acknowledge) -> Acknowledged:
        """Acknowledge jobs as done, or as failed and to be retried. Each has its own result."""
        queue = reach(call, self.queue)
        became: dict[str, Any] = {}
        batch: list[Op] = []
        for id in dict.fromkeys(body.ids):
            job = await job_of(queue, self.queue, id)
            if job is None:
                became[id] = "not_found"
            elif job.state is not State.LEASED:
                became[id] = "not_leased"
            elif body.status == "done":
                batch.append(ops.Ack(id, job.token))
            else:
                batch.append(ops.Fail(id, job.token, "the agent reported a failure", retry_in_ms=0))
        asked = [id for id in dict.fromkeys(body.ids) if id not in became]
        answers = await store_of(queue).ado(batch) if batch else []
        became |= {id: _became(one) for id, one in zip(asked, answers, strict=True)}
        return Acknowledged(True, [JobStatus(id, became[id]) for id in body.ids])

    async def stats(self, call: Call) -> JobStats:
        """Count the jobs in each status."""
        queue = reach(call, self.queue)
        counts: queries.Counts = queries.Counts()
        for one in await listed(queue, queries.GetStats(self.queue)):
            counts = queries.add(counts, one)
        pending = counts.waiting + counts.pending
        shown = StatusCounts(pending, counts.leased, counts.done, counts.dead)
        return JobStats(shown, queue.clock.now_ms() // 1000)


def _pulled(job: Job) -> PulledJob:
    payload = job.payload
    key = payload.get("r2Key") if isinstance(payload, dict) else None
    return PulledJob(
        job.id, job.group, job.tenant, key if isinstance(key, str) else "", job.attempts
    )


def _became(answer: Any) -> str:
    if isinstance(answer, JobNotFound):
        return "not_found"
    if isinstance(answer, LeaseLost):
        return "not_leased"
    if isinstance(answer, TenureError):
        raise answer
    if isinstance(answer, ops.Moved) and answer.state is not State.DONE:
        return "failed" if answer.state is State.DEAD else "pending"
    return "done"


def routes(queue: str = QUEUE, max_attempts: int | None = None) -> list[Route]:
    """Return the routes of this dialect. Its jobs are in a queue of their own. max_attempts: None
    for no limit, as in the original."""
    calls = D1(queue, MAX_ATTEMPTS if max_attempts is None else max_attempts)
    p, w, r = Scope.PRODUCE, Scope.WORK, Scope.READ

    def route(*args: Any, **kwargs: Any) -> Route:
        return Route(*args, **kwargs, tag="d1", show_error=as_text, problem=ErrorText)

    return [
        route("POST", "/jobs/enqueue", calls.enqueue, scope=p, body=FileToDo, answer=EnqueuedJob),
        route("POST", "/runs/{run_id}/enqueue", calls.enqueue_of_run, scope=p, body=FileOfRun,
              answer=EnqueuedJob),
        route("POST", "/jobs/pull", calls.pull, scope=w, body=Pull, answer=PulledJobs,
              body_required=False),
        route("POST", "/jobs/ack", calls.ack, scope=w, body=Acknowledge, answer=Acknowledged),
        route("GET", "/jobs/stats", calls.stats, scope=r, answer=JobStats),
    ]  # fmt: skip
