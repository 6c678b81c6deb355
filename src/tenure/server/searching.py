"""The search box of the dashboard."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.errors import Forbidden, InvalidInput, JobNotFound, NotFound
from tenure.model.queries import ListTenants
from tenure.queue import Calls
from tenure.server.auth import Scope
from tenure.server.route import Call, Route

MOST = 20  # of each kind
MOST_QUEUES = 100  # in which a tenant is looked for


class SearchQuery(msgspec.Struct, forbid_unknown_fields=True):
    q: Annotated[str, Meta(min_length=1, max_length=500)]


class FoundTenant(msgspec.Struct):
    queue: str
    tenant: str


class Matches(msgspec.Struct):
    """Jobs whose id is or starts with the text, queues whose name contains it, and queues with a
    tenant of that name."""

    jobs: list[str]
    queues: list[str]
    tenants: list[FoundTenant]


async def search(call: Call, query: SearchQuery) -> Matches:
    """Find jobs by the start of their id, queues by a part of their name, and tenants by name."""
    text, queue = query.q, call.queue
    names = sorted((await queue.astats()).queues)
    found = [name for name in names if text.lower() in name.lower()]
    tenants = [
        FoundTenant(name, text) for name in names[:MOST_QUEUES] if await _has(queue, name, text)
    ]
    return Matches(await _jobs(queue, text), found[:MOST], tenants[:MOST])


async def _jobs(queue: Calls, text: str) -> list[str]:
    try:
        ids: list[str] = await queue.afind_ids(text, limit=MOST)
    except Forbidden:  # a token that is bound may only look up whole ids
        ids = []
    except InvalidInput:  # no id is like this
        return []
    if ids:
        return ids
    try:
        return [(await queue.aget(text)).id]
    except JobNotFound:
        return []


async def _has(queue: Calls, name: str, tenant: str) -> bool:
    found = await queue.ado(ListTenants(name, limit=1, tenant=tenant))
    return not isinstance(found, NotFound) and bool(found)


ROUTES = [
    Route("GET", "/v1/search", search, scope=Scope.READ, query=SearchQuery, answer=Matches),
]
