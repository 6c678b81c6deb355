"""What holds a job back, and which jobs it is related to, over HTTP."""

from __future__ import annotations

from tenure.model.fields import PageLimit
from tenure.model.queries import Related
from tenure.model.why import Why, with_last_error
from tenure.server.auth import Scope
from tenure.server.bodies import Body
from tenure.server.route import Call, Route


async def why(call: Call) -> Why:
    """Explain what holds a job back, or that it is next. The first reason is the one to solve
    first; `claimable` says whether the next claim that asks for enough jobs takes it. `last_error`
    says why its last attempt failed, if it is to be tried again or is dead."""
    found = await call.queue.aexplain(call.params["id"])
    return with_last_error(found, await call.queue.aget(found.id))


class RelatedQuery(Body):
    limit: PageLimit = 20


async def related(call: Call, query: RelatedQuery) -> Related:
    """List the parents of a job, and the unfinished jobs that wait for it."""
    return await call.queue.arelated(call.params["id"], limit=query.limit)


ROUTES = [
    Route("GET", "/v1/jobs/{id}/why", why, scope=Scope.READ, answer=Why),
    Route("GET", "/v1/jobs/{id}/related", related, scope=Scope.READ, query=RelatedQuery,
          answer=Related),
]  # fmt: skip
