"""What holds a job back, over HTTP."""

from __future__ import annotations

from tenure.features.why.data import Why, with_last_error
from tenure.server.auth import Scope
from tenure.server.route import Call, Route


async def why(call: Call) -> Why:
    """Explain what holds a job back, or that it is next. The first reason is the one to solve
    first; `claimable` says whether the next claim that asks for enough jobs takes it. `last_error`
    says why its last attempt failed, if it is to be tried again or is dead."""
    found = await call.queue.aexplain(call.params["id"])
    return with_last_error(found, await call.queue.aget(found.id))


ROUTES = [Route("GET", "/v1/jobs/{id}/why", why, scope=Scope.READ, answer=Why)]
