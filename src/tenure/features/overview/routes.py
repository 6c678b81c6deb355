"""All that the first page of the dashboard shows, in one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

import msgspec

from tenure.errors import Forbidden, StoreError
from tenure.features.errors.data import ErrorGroups, ListErrors
from tenure.features.live_workers.data import ListWorkers, LiveWorker
from tenure.features.overview.attention import (
    MINUTE_MS,
    MINUTES,
    MOST_ATTENTION,
    MOST_GROUPS,
    Attention,
    Known,
    QueueRow,
    attention,
    away,
)
from tenure.features.rates.data import ListRates, RatePoint, Rates
from tenure.model.ops import Limit, good
from tenure.model.queries import (
    Due,
    GetStats,
    GetTimetable,
    ListLimits,
    OldestReady,
    Query,
    QueueStats,
    Timetable,
    Together,
    as_counts,
)
from tenure.queue import Calls, Queue, store_of
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
    """Read the store: what all queues are, together, and then how long the ready ones wait."""
    now = queue.clock.now_ms()
    since = now // MINUTE_MS * MINUTE_MS - (MINUTES - 1) * MINUTE_MS
    counted, every, rates, workers, groups, timetable = await _together(
        queue,
        GetStats(),
        ListLimits(),
        ListRates(max(0, since), now),
        ListWorkers(),
        ListErrors(None, MOST_GROUPS),
        GetTimetable(),
    )
    stats = good(counted, list)
    # A shard is away: the overview says so, and shows the others.
    every = [] if isinstance(every, StoreError) else good(every, list)
    # Rates and errors cover all tenants: a bound token may not know them.
    lately = {} if isinstance(rates, Forbidden) else _lately(good(rates, Rates), since)
    groups = [] if isinstance(groups, Forbidden | StoreError) else good(groups, ErrorGroups).errors
    listen = None if is_bound else _workers(good(workers, list))
    limits = {one.queue: one for one in every if one.tenant is None and one.group is None}
    oldest = await _oldest(queue, stats)
    rows = [
        _row(
            one,
            limits.get(one.queue),
            oldest.get(one.queue),
            lately.get(one.queue),
            None if listen is None else listen[one.queue],
        )
        for one in stats
    ]
    rows.sort(key=lambda row: row.queue)
    limited = {one.queue for one in every}
    known = Known(groups, good(timetable, Timetable).schedules)
    found = [
        *away(store_of(queue).away()),
        *await attention(queue, rows, limited, known, now),
    ]
    return Overview(now, rows, found[:MOST_ATTENTION], len(found[MOST_ATTENTION:]))


async def _together(queue: Calls, *wanted: Query) -> list[Any]:
    """The results of queries, which are of one snapshot, or errors."""
    return good(await store_of(queue).ado(Together(wanted)), list)


def _workers(alive: list[LiveWorker]) -> Counter[str]:
    """How many live workers each queue has. A bound token sees only those that serve nobody else,
    so it cannot know."""
    return Counter(name for worker in alive for name in worker.queues)


async def _oldest(queue: Calls, stats: list[QueueStats]) -> dict[str, int | None]:
    """When the oldest ready job of each queue became ready, of those with the most ready jobs."""
    ready = sorted((one for one in stats if one.ready), key=lambda one: -one.ready)[:MOST_QUEUES]
    names = [one.queue for one in ready]
    found = await _together(queue, *(OldestReady((name,)) for name in names)) if names else []
    # A token that is bound to tenants may not know it; or the queue was forgotten.
    return {name: one.at for name, one in zip(names, found, strict=True) if isinstance(one, Due)}


def _lately(rates: Rates, since: int) -> dict[str, Lately]:
    """What happened in each queue in the last minutes."""
    return {name: _of_minutes(one.points, since) for name, one in rates.queues.items()}


def _of_minutes(points: list[RatePoint], since: int) -> Lately:
    done, failed = [0] * MINUTES, [0] * MINUTES
    for one in points:
        at = (one.at - since) // MINUTE_MS
        if 0 <= at < MINUTES:
            done[at], failed[at] = one.done, one.failed
    waited = next((one for one in reversed(points) if one.wait_p50 is not None), None)
    ran = next((one for one in reversed(points) if one.run_p50 is not None), None)
    return Lately(done, failed, sum(one.dead for one in points), waited, ran)


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
