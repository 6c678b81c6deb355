"""All that the first page of the dashboard shows, in one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tenure.errors import Forbidden, StoreError, TenureError
from tenure.features.overview.attention import (
    MINUTE_MS,
    MINUTES,
    MOST_ATTENTION,
    Attention,
    QueueRow,
    attention,
    away,
    known_of,
)
from tenure.features.rates.data import RatePoint
from tenure.model.ops import Limit
from tenure.model.queries import QueueStats, as_counts
from tenure.queue import Calls, Queue
from tenure.server.auth import Scope, Tokens
from tenure.server.route import Call, Route
from tenure.server.service import Part

KEPT_SECONDS = 1.0  # that one result serves all pages with the same token
MOST_QUEUES = 500  # whose oldest ready jobs are looked up


class Overview(msgspec.Struct, frozen=True):
    """All queues, and what needs attention, at one time of the store's clock. attention_left: how
    much more needs attention than is listed."""

    now: int
    queues: list[QueueRow]
    attention: list[Attention]
    attention_left: int = 0


class Lately(NamedTuple):
    """What happened in a queue: done and failed by minute, how many jobs died, and the last minutes
    in which jobs were claimed and ended."""

    done: list[int]
    failed: list[int]
    died: int
    waited: RatePoint | None
    ran: RatePoint | None


class _Kept(NamedTuple):
    until: float
    task: asyncio.Task[Overview]


class Overviews(Part):
    """The last overview of each token, which is computed once for all who ask at the same time."""

    def __init__(self, queue: Queue, tokens: Tokens) -> None:
        super().__init__(queue, tokens)
        self._kept: dict[str, _Kept] = {}

    async def of(self, who: str, queue: Calls, is_bound: bool) -> Overview:
        """The overview for a token; at most KEPT_SECONDS old. is_bound: to queues or tenants."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        known = self._kept.get(who)
        if known is None or now > known.until:
            self._kept = {one: kept for one, kept in self._kept.items() if now <= kept.until}
            known = _Kept(now + KEPT_SECONDS, loop.create_task(overview_of(queue, is_bound)))
            self._kept[who] = known
        try:
            return await asyncio.shield(known.task)
        except Exception:
            self._kept.pop(who, None)
            raise


async def overview_of(queue: Calls, is_bound: bool = False) -> Overview:
    """Read the store."""
    now = queue.clock.now_ms()
    counted, every, lately, workers, known = await asyncio.gather(
        queue.astats(),
        _limits(queue),
        _lately(queue, now),
        _workers(queue, is_bound),
        known_of(queue),
    )
    stats = list(counted.queues.values())
    limits = {one.queue: one for one in every if one.tenant is None and one.group is None}
    ready = sorted((one for one in stats if one.ready), key=lambda one: -one.ready)[:MOST_QUEUES]
    oldest = {one.queue: await _oldest(queue, one.queue) for one in ready}
    rows = [
        _row(
            one,
            limits.get(one.queue),
            oldest.get(one.queue),
            lately.get(one.queue),
            None if workers is None else workers[one.queue],
        )
        for one in stats
    ]
    rows.sort(key=lambda row: row.queue)
    limited = {one.queue for one in every}
    found = [*away(counted.away), *await attention(queue, rows, limited, known, now)]
    return Overview(now, rows, found[:MOST_ATTENTION], len(found[MOST_ATTENTION:]))


async def _limits(queue: Calls) -> list[Limit]:
    try:
        found: list[Limit] = await queue.limits.alist()
    except StoreError:  # a shard is away: the overview says so, and shows the others
        return []
    return found


async def _workers(queue: Calls, is_bound: bool) -> Counter[str] | None:
    """How many live workers each queue has. A bound token sees only those that serve nobody else,
    so it cannot know."""
    if is_bound:
        return None
    return Counter(name for worker in await queue.aworkers() for name in worker.queues)


async def _lately(queue: Calls, now: int) -> dict[str, Lately]:
    """What happened in each queue in the last minutes, if the token may know."""
    since = now // MINUTE_MS * MINUTE_MS - (MINUTES - 1) * MINUTE_MS
    try:
        found = await queue.arates(since=datetime.fromtimestamp(since / 1000, UTC))
    except Forbidden:  # the counts are of all tenants
        return {}
    return {name: _of_minutes(one.points, since) for name, one in found.queues.items()}


def _of_minutes(points: list[RatePoint], since: int) -> Lately:
    done, failed = [0] * MINUTES, [0] * MINUTES
    for one in points:
        at = (one.at - since) // MINUTE_MS
        if 0 <= at < MINUTES:
            done[at], failed[at] = one.done, one.failed
    waited = next((one for one in reversed(points) if one.wait_p50 is not None), None)
    ran = next((one for one in reversed(points) if one.run_p50 is not None), None)
    return Lately(done, failed, sum(one.dead for one in points), waited, ran)


async def _oldest(queue: Calls, name: str) -> int | None:
    try:
        found: int | None = await queue.aoldest_ready(name)
    except TenureError:  # a token that is bound to tenants may not know it; or it was forgotten
        return None
    return found


def _row(
    stats: QueueStats,
    limit: Limit | None,
    oldest: int | None,
    lately: Lately | None,
    workers: int | None,
) -> QueueRow:
    values: dict[str, Any] = {**as_counts(stats)}
    if lately is not None:
        values |= {"rates": lately.done, "failures": lately.failed, "died": lately.died}
        if lately.waited is not None:
            values |= {"wait_p50": lately.waited.wait_p50, "wait_p99": lately.waited.wait_p99}
        if lately.ran is not None:
            values |= {"run_p50": lately.ran.run_p50, "run_p99": lately.ran.run_p99}
    return QueueRow(
        **values,
        queue=stats.queue,
        paused=stats.paused,
        oldest_ready_at=oldest,
        limit=None if limit is None else limit.concurrency,
        workers=workers,
    )


async def overview(call: Call) -> Overview:
    """Get all queues with what the dashboard shows about them, and what needs attention."""
    return await call.service.part(Overviews).of(call.token.hash, call.queue, call.token.is_bound)


ROUTES = [Route("GET", "/v1/overview", overview, scope=Scope.READ, answer=Overview)]
