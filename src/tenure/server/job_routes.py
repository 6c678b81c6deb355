"""Routes of jobs that people look at and change: lists, edits, history, what holds one back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tenure.model.fields import Label, Moment, PageLimit, Priority, Seconds, validated
from tenure.model.history import JobMove
from tenure.model.job import Job
from tenure.model.queries import Filter, Page, Related, Summaries
from tenure.server.auth import Scope
from tenure.server.bodies import Body, JobsQuery
from tenure.server.route import Call, Route


class ListQuery(JobsQuery):
    """Selects jobs. Times are in milliseconds since 1970. With `summary`, jobs come without
    payload, result and tracebacks."""

    worker: Label | None = None
    error: Label | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    finished_after: Moment | None = None
    finished_before: Moment | None = None
    summary: bool = False


async def list_jobs(call: Call, query: ListQuery) -> Page | Summaries:
    """List jobs, newest first. With a final state, the most recently finished come first. At most
    10,000 jobs are looked at for a page of summaries: `scanned_to` says how far back it goes, and
    `cursor` continues there."""
    where = filter_of(msgspec.structs.asdict(query))
    if query.summary:
        return await call.queue._asummaries_of(where, query.limit, query.cursor)
    return await call.queue._ajobs_of(where, query.limit, query.cursor)


def filter_of(values: dict[str, Any]) -> Filter:
    """The filter of a query string or a body, which has one state; raises InvalidInput."""
    names = (name for name in Filter.__struct_fields__ if name != "states")
    states = () if values["state"] is None else (values["state"],)
    return validated(Filter(**{name: values[name] for name in names}, states=states))


class UpdateBody(Body):
    """What to change. `delay` is in seconds, `run_at` in milliseconds since 1970."""

    priority: Priority | None = None
    run_at: Moment | None = None
    delay: Seconds | None = None
    payload: Raw | UnsetType = UNSET


class EditBody(Body):
    """What to change in the new job. `delay` is in seconds."""

    payload: Raw | UnsetType = UNSET
    priority: Priority | None = None
    delay: Seconds = 0


class NewId(msgspec.Struct):
    id: str


async def update_job(call: Call, body: UpdateBody) -> Job:
    """Change a job that was not claimed: its priority, when it may run, its payload."""
    run_at = None if body.run_at is None else datetime.fromtimestamp(body.run_at / 1000, UTC)
    return await call.queue.aupdate(
        call.params["id"],
        priority=body.priority,
        delay=body.delay,
        run_at=run_at,
        payload=body.payload,
    )


async def edit_and_replay(call: Call, body: EditBody) -> NewId:
    """Enqueue a finished job again as a new one, with changes. Its `replay_of` is the old id."""
    new_id = await call.queue.areplay_edited(
        call.params["id"], payload=body.payload, priority=body.priority, delay=body.delay
    )
    return NewId(new_id)


async def job_history(call: Call) -> list[JobMove]:
    """List the last moves of a job, oldest first."""
    return await call.queue.ahistory(call.params["id"])


class RelatedQuery(Body):
    limit: PageLimit = 20


async def related(call: Call, query: RelatedQuery) -> Related:
    """List the parents of a job, and the unfinished jobs that wait for it."""
    return await call.queue.arelated(call.params["id"], limit=query.limit)


ROUTES = [
    Route("GET", "/v1/jobs", list_jobs, scope=Scope.READ, query=ListQuery, answer=Page | Summaries),
    Route("PATCH", "/v1/jobs/{id}", update_job, scope=Scope.ADMIN, body=UpdateBody, answer=Job),
    Route("POST", "/v1/jobs/{id}/edit-and-replay", edit_and_replay, scope=Scope.ADMIN,
          body=EditBody, answer=NewId, status=201, body_required=False),
    Route("GET", "/v1/jobs/{id}/history", job_history, scope=Scope.READ, answer=list[JobMove]),
    Route("GET", "/v1/jobs/{id}/related", related, scope=Scope.READ, query=RelatedQuery,
          answer=Related),
]  # fmt: skip
