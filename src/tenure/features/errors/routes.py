"""Error groups."""

from __future__ import annotations

import msgspec

from tenure.features.errors.data import ErrorGroup
from tenure.model.fields import Label, Name, PageLimit
from tenure.server.auth import Scope
from tenure.server.bodies import Body, Done
from tenure.server.route import Call, Route


class ErrorsQuery(Body):
    queue: Name | None = None
    limit: PageLimit = 100
    cursor: Label | None = None


class Errors(msgspec.Struct):
    errors: list[ErrorGroup]
    cursor: str | None = None


async def list_errors(call: Call, query: ErrorsQuery) -> Errors:
    """List error groups: failures of the same cause, the most recently seen first."""
    found = await call.queue.errors.alist(query.queue, limit=query.limit, cursor=query.cursor)
    return Errors(found.errors, found.cursor)


async def mute_error(call: Call) -> Done:
    """Mute an error group: it is still counted and listed, but not shown as a problem."""
    await call.queue.errors.amute(call.params["group"])
    return Done()


async def unmute_error(call: Call) -> Done:
    """Unmute an error group."""
    await call.queue.errors.aunmute(call.params["group"])
    return Done()


ROUTES = [
    Route("GET", "/v1/errors", list_errors, scope=Scope.READ, query=ErrorsQuery, answer=Errors),
    Route("POST", "/v1/errors/{group}/mute", mute_error, scope=Scope.ADMIN, answer=Done),
    Route("POST", "/v1/errors/{group}/unmute", unmute_error, scope=Scope.ADMIN, answer=Done),
]
