"""Rates: what happened in each queue, by minute or by hour."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from tenure.features.rates.data import QueueRates
from tenure.model.fields import Moment, Name
from tenure.server.auth import Scope
from tenure.server.bodies import Body
from tenure.server.route import Call, Route


class RatesQuery(Body):
    """`since` is in milliseconds since 1970."""

    queue: Name | None = None
    per: Literal["minute", "hour"] = "minute"
    since: Moment | None = None


class RatesFound(msgspec.Struct):
    per_ms: int
    since: int
    now: int
    queues: dict[str, QueueRates]


async def list_rates(call: Call, query: RatesQuery) -> RatesFound:
    """Get what happened in one queue, or in all, by minute (kept for a day) or by hour (kept for 90
    days): jobs enqueued, claimed, done, failed and dead, and how long they waited and ran."""
    since = None if query.since is None else datetime.fromtimestamp(query.since / 1000, UTC)
    found = await call.queue.arates(query.queue, per=query.per, since=since)
    return RatesFound(found.per_ms, found.since, found.now, found.queues)


ROUTES = [
    Route("GET", "/v1/rates", list_rates, scope=Scope.READ, query=RatesQuery, answer=RatesFound),
]
