"""What holds a job back, and which jobs it has to do with, over HTTP."""

from __future__ import annotations

from tenure.model.fields import PageLimit
from tenure.model.queries import Related
from tenure.model.why import Explained
from tenure.server.auth import Scope
from tenure.server.native import Body
from tenure.server.route import Call, Route


async def why(call: Call) -> Explained:
    """Explain what holds a job back, or that it is next. The first reason is the one to solve
    first; `claimable` says whether the next claim that asks for enough jobs takes it."""
    return await call.queue.aexplain(call.params["id"])


class RelatedQuery(Body):
    limit: PageLimit = 20


async def related(call: Call, query: RelatedQuery) -> Related:
    """List the jobs that a job was told to wait for, and the unfinished jobs that wait for it."""
    return await call.queue.arelated(call.params["id"], limit=query.limit)


ROUTES = [
    Route("GET", "/v1/jobs/{id}/why", why, scope=Scope.READ, answer=Explained),
    Route("GET", "/v1/jobs/{id}/related", related, scope=Scope.READ, query=RelatedQuery,
          answer=Related),
]  # fmt: skip
