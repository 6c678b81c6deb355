"""Run now, over HTTP."""

from __future__ import annotations

from tenure.server.auth import Scope
from tenure.server.bodies import Count, LiveBody
from tenure.server.route import Call, Route


async def run_job_now(call: Call) -> Count:
    """Make a delayed job ready now."""
    return Count(await call.queue.arun_now(call.params["id"]))


async def run_jobs_now(call: Call, body: LiveBody) -> Count:
    """Make delayed jobs ready now, by id or by filter."""
    return Count(await call.queue.arun_now(**body.of()))


ROUTES = [
    Route("POST", "/v1/jobs/run-now", run_jobs_now, scope=Scope.ADMIN, body=LiveBody, answer=Count),
    Route("POST", "/v1/jobs/{id}/run-now", run_job_now, scope=Scope.ADMIN, answer=Count),
]
