"""Routes that change a job, replay it with changes, and list its history."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tenure.model.fields import Moment, Priority, Seconds
from tenure.model.history import JobMove
from tenure.model.job import Job
from tenure.server.auth import Scope
from tenure.server.bodies import Body
from tenure.server.route import Call, Route


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


ROUTES = [
    Route("PATCH", "/v1/jobs/{id}", update_job, scope=Scope.ADMIN, body=UpdateBody, answer=Job),
    Route("POST", "/v1/jobs/{id}/edit-and-replay", edit_and_replay, scope=Scope.ADMIN,
          body=EditBody, answer=NewId, status=201, body_required=False),
    Route("GET", "/v1/jobs/{id}/history", job_history, scope=Scope.READ, answer=list[JobMove]),
]  # fmt: skip
