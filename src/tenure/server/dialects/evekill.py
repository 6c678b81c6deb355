"""The API of EVE Kill's SQLite queue: its operator routes, for all queues.

There, jobs are enqueued and run in the same process; use the Python API for that.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from tenure.model import queries
from tenure.model.fields import Name, check_name
from tenure.model.job import Job, State
from tenure.server.auth import Scope
from tenure.server.dialects.error_text import ErrorText, as_text
from tenure.server.route import Call, Route

MOST = 1_000  # failed jobs that are listed


class FailedQuery(msgspec.Struct):
    """At most 1,000 jobs are listed, even if `limit` is greater."""

    limit: Annotated[int, Meta(ge=1)] = 50


class Retry(msgspec.Struct, rename="camel"):
    """Ids are numbers in the original; 7 means the job "7"."""

    job_id: Name | int


class StateCounts(msgspec.Struct):
    pending: int
    processing: int
    completed: int
    failed: int


class AllCounts(msgspec.Struct):
    overall: StateCounts
    queues: dict[str, StateCounts]


class FailedJob(msgspec.Struct, rename="camel"):
    """A row of the jobs table, with times in ISO 8601."""

    id: str
    queue: str
    type: str
    payload: Raw
    status: Literal["failed"]
    available_at: str
    reserved_at: str | None
    processed_at: str | None
    created_at: str
    attempts: int
    max_attempts: int
    error: str | None
    priority: int


class FailedJobs(msgspec.Struct):
    jobs: list[FailedJob]


class Retrying(msgspec.Struct):
    status: Literal["retrying"] = "retrying"


async def stats(call: Call) -> AllCounts:
    """Count the jobs in each status, in total and by queue."""
    found = await call.queue.astats()
    return AllCounts(_counts(found), {name: _counts(one) for name, one in found.queues.items()})


async def failed(call: Call, query: FailedQuery) -> FailedJobs:
    """List failed jobs, most recent first."""
    page = await call.queue.ajobs(state=State.DEAD, limit=min(query.limit, MOST))
    return FailedJobs([_row(job) for job in page.jobs])


async def retry(call: Call, body: Retry) -> Retrying:
    """Run a failed job again, with its attempts reset to 0. One that waits for its next attempt
    runs now; others do not change."""
    id = check_name("jobId", str(body.job_id))
    if not await call.queue.areplay(id):
        await call.queue.arun_now(id)
    return Retrying()


def _counts(counts: queries.Counts) -> StateCounts:
    pending = counts.waiting + counts.pending
    return StateCounts(pending, counts.leased, counts.done, counts.dead)


def _row(job: Job) -> FailedJob:
    return FailedJob(
        id=job.id,
        queue=job.queue,
        type=job.kind,
        payload=job.raw_payload,
        status="failed",
        available_at=_iso(job.run_at),
        reserved_at=None if job.started_at is None else _iso(job.started_at),
        processed_at=None if job.finished_at is None else _iso(job.finished_at),
        created_at=_iso(job.created_at),
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        error=job.error,
        priority=job.priority,
    )


def _iso(ms: int) -> str:
    """A time in the format of JavaScript's `toISOString`."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def routes() -> list[Route]:
    """Return the routes of this dialect."""

    def route(*args: Any, **kwargs: Any) -> Route:
        return Route(*args, **kwargs, tag="evekill", show_error=as_text, problem=ErrorText)

    return [
        route("GET", "/api/queue/stats", stats, scope=Scope.READ, answer=AllCounts),
        route("GET", "/api/queue/failed", failed, scope=Scope.READ, query=FailedQuery,
              answer=FailedJobs),
        route("POST", "/api/queue/retry", retry, scope=Scope.ADMIN, body=Retry, answer=Retrying),
    ]  # fmt: skip
