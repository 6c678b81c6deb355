"""The search box of the dashboard."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from tenure.errors import Forbidden, InvalidInput, JobNotFound, NotFound
from tenure.model.queries import Filter, ListGroupTotals, ListTenants
from tenure.queue import Calls, store_of
from tenure.server.auth import Scope
from tenure.server.route import Call, Route

MOST = 20  # of each kind
MOST_QUEUES = 100  # in which a tenant or a group is looked for

T = TypeVar("T")


class SearchQuery(msgspec.Struct, forbid_unknown_fields=True):
    q: Annotated[str, Meta(min_length=1, max_length=500)]


class FoundTenant(msgspec.Struct):
    queue: str
    tenant: str


class FoundGroup(msgspec.Struct):
    queue: str
    group: str


class FoundKind(msgspec.Struct):
    queue: str
    kind: str


class Matches(msgspec.Struct):
    """Jobs whose id is or starts with the text, unfinished jobs that hold it as their unique key,
    queues whose name contains it, queues with a tenant or group of that name, and queues with a job
    of that kind among the newest jobs of the store."""

    jobs: list[str]
    keys: list[str]
    queues: list[str]
    tenants: list[FoundTenant]
    groups: list[FoundGroup]
    kinds: list[FoundKind]


async def search(call: Call, query: SearchQuery) -> Matches:
    """Find jobs by the start of their id or by their unique key, queues by a part of their name,
    and tenants, groups and kinds by name."""
    text, queue = query.q, call.queue
    names = sorted((await queue.astats()).queues)
    found = [name for name in names if text.lower() in name.lower()]
    some = names[:MOST_QUEUES]
    tenants = [FoundTenant(name, text) for name in some if await _has_tenant(queue, name, text)]
    groups = [FoundGroup(name, text) for name in some if await _has_group(queue, name, text)]
    keys = await _allowed(queue.afind_by_key(text), [])
    kinds = await _kinds(queue, text)
    return Matches(
        await _jobs(queue, text), keys[:MOST], found[:MOST], tenants[:MOST], groups[:MOST], kinds
    )


async def _allowed(found: Awaitable[T], otherwise: T) -> T:
    """What a call finds; `otherwise` if the token may not ask, or the name is not valid."""
    try:
        return await found
    except (Forbidden, InvalidInput):
        return otherwise


async def _jobs(queue: Calls, text: str) -> list[str]:
    ids: list[str] = await _allowed(queue.afind_ids(text, limit=MOST), [])
    if ids:
        return ids
    try:  # a token that is bound may look up whole ids
        return [(await queue.aget(text)).id]
    except (JobNotFound, InvalidInput):
        return []


async def _has_tenant(queue: Calls, name: str, tenant: str) -> bool:
    found = await store_of(queue).ado(ListTenants(name, limit=1, tenant=tenant))
    return not isinstance(found, NotFound) and bool(found)


async def _has_group(queue: Calls, name: str, group: str) -> bool:
    found = await _allowed(store_of(queue).ado(ListGroupTotals(name, limit=1, group=group)), [])
    return not isinstance(found, NotFound) and bool(found)


async def _kinds(queue: Calls, kind: str) -> list[FoundKind]:
    """Kinds have no index. One list looks at a bounded number of jobs, from the newest."""
    page = await _allowed(queue._asummaries_of(Filter(kind=kind), MOST, None), None)
    queues = [] if page is None else sorted({job.queue for job in page.jobs})
    return [FoundKind(name, kind) for name in queues]


ROUTES = [
    Route("GET", "/v1/search", search, scope=Scope.READ, query=SearchQuery, answer=Matches),
]
