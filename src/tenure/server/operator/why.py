"""What holds a job back, over HTTP."""

from __future__ import annotations

from tenure.model.why import Explained
from tenure.server.auth import Scope
from tenure.server.route import Call, Route


async def why(call: Call) -> Explained:
    """Explain what holds a job back, or that it is next. The first reason is the one to solve
    first; `claimable` says whether the next claim that asks for enough jobs takes it."""
    return await call.queue.aexplain(call.params["id"])


ROUTES = [Route("GET", "/v1/jobs/{id}/why", why, scope=Scope.READ, answer=Explained)]
