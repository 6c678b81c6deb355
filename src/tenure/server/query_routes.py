"""The routes that need no code: a query whose struct names a path (`get`) has one."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tenure.features import RESULTS
from tenure.model.fields import validated
from tenure.model.ops import good
from tenure.model.queries import Get, GrantedQuery, Query
from tenure.server.auth import Scope
from tenure.server.bodies import Body
from tenure.server.route import Call, Route

_CAPITAL = re.compile(r"(?<!^)([A-Z])")


def _route_of(kind: type[Query], get: Get) -> Route:
    parameters = _parameters(kind, get.path)

    async def read(call: Call, query: msgspec.Struct | None = None) -> Any:
        given = {} if query is None else msgspec.structs.asdict(query)
        return good(await call.store.ado(validated(kind(**call.params, **given))), object)

    read.__name__ = _CAPITAL.sub(r"_\1", kind.__name__).lower()
    read.__annotations__["return"] = RESULTS[kind]
    return Route("GET", get.path, read, scope=Scope(kind.needs), query=parameters,
                 answer=RESULTS[kind], summary=get.summary)  # fmt: skip


def _parameters(kind: type[Query], path: str) -> type[msgspec.Struct] | None:
    """The parameters of the query string: the fields that the path does not name."""
    left_out = {part[1:-1] for part in path.split("/") if part.startswith("{")}
    if issubclass(kind, GrantedQuery):
        left_out.add("grant")  # the guard sets it
    fields = [one for one in msgspec.structs.fields(kind) if one.name not in left_out]
    if not fields:
        return None
    return msgspec.defstruct(
        f"{kind.__name__}Query",
        [(one.name, one.type, one.default) for one in fields],
        bases=(Body,),
        kw_only=True,
    )


ROUTES = [_route_of(kind, kind.get) for kind in RESULTS if kind.get is not None]
