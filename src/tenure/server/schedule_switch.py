"""Routes that pause and resume a schedule, and run its job now."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenure.errors import ScheduleNotFound
from tenure.model import ops
from tenure.model.ops import Schedule, good
from tenure.server.auth import Scope
from tenure.server.route import Call, Route


class Started(msgspec.Struct):
    """The job of the schedule. `created` is false if one with its unique key is unfinished."""

    id: str
    created: bool


class Switched(msgspec.Struct):
    name: str
    disabled: bool


async def pause_schedule(call: Call) -> Switched:
    """Pause a schedule: it does not fire. An app that declares it resumes it when it starts."""
    return await _switch(call, disabled=True)


async def resume_schedule(call: Call) -> Switched:
    """Resume a paused schedule. The times that it missed are skipped."""
    return await _switch(call, disabled=False)


async def run_schedule_now(call: Call) -> Started:
    """Enqueue the job of a schedule now. Its next time does not change."""
    found = await _stored(call)
    ids = await call.queue.aenqueue_many([found.job.again()], if_exists="skip")
    return Started(ids[0], ids.created[0])


async def _switch(call: Call, *, disabled: bool) -> Switched:
    found = await _stored(call)
    (answer,) = await call.store.ado([ops.PutSchedule(replace(found, disabled=disabled))])
    good(answer, ops.Ok)
    return Switched(found.name, disabled)


async def _stored(call: Call) -> Schedule:
    """The schedule as it is stored, with nothing redacted; raises ScheduleNotFound."""
    name = call.params["name"]
    for one in await call.service.queue_for(call.token).schedules.alist():
        if one.name == name:
            found: Schedule = one
            return found
    raise ScheduleNotFound(name)


A = Scope.ADMIN
ROUTES = [
    Route("POST", "/v1/schedules/{name}/pause", pause_schedule, scope=A, answer=Switched),
    Route("POST", "/v1/schedules/{name}/resume", resume_schedule, scope=A, answer=Switched),
    Route("POST", "/v1/schedules/{name}/run-now", run_schedule_now, scope=A, answer=Started,
          status=201),
]  # fmt: skip
