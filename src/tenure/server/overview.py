"""All that the first page of the dashboard shows, in one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tenure.errors import Forbidden, TenureError
from tenure.model.ops import Limit
from tenure.model.queries import Counts, QueueStats, as_counts
from tenure.model.rates import RatePoint
from tenure.queue import Calls
from tenure.server.auth import Scope
from tenure.server.route import Call, Route

KEPT_SECONDS = 1.0  # that one result serves all pages with the same token
MOST_QUEUES = 500  # whose oldest ready jobs are looked up
LATE_MS = 60_000  # waiting longer than this needs attention
DESERTED_MS = 10_000  # the same if there is no worker
MOST_ATTENTION = 20
MINUTES, MINUTE_MS = 30, 60_000  # of rates that are shown


class QueueRow(Counts, frozen=True, kw_only=True):
    """A queue. Fields that are null are not known. `rates` and `failures`: jobs done, and failed
    attempts, in each of the last 30 minutes; `died`: jobs that became dead then. How long jobs
    waited and ran is in milliseconds: the median and the 99th percentile of the last minute that
    had any."""

    queue: str
    paused: bool = False
    oldest_ready_at: int | None = None
    limit: int | None = None
    workers: int | None = None
    rates: list[int] | None = None
    failures: list[int] | None = None
    died: int | None = None
    wait_p50: float | None = None
    wait_p99: float | None = None
    run_p50: float | None = None
    run_p99: float | None = None


class Attention(msgspec.Struct, frozen=True):
    """Something that an operator should look at. level: `bad` or `odd`."""

    text: str
    queue: str
    link: str
    level: str


class Overview(msgspec.Struct, frozen=True):
    """All queues, and what needs attention, at one time of the store's clock."""

    now: int
    queues: list[QueueRow]
    attention: list[Attention]


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


class Overviews:
    """The last overview of each token, which is computed once for all who ask at the same time."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    async def of(self, who: str, queue: Calls) -> Overview:
        """The overview for a token; at most KEPT_SECONDS old."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        known = self._kept.get(who)
        if known is None or now > known.until:
            self._kept = {one: kept for one, kept in self._kept.items() if now <= kept.until}
            known = _Kept(now + KEPT_SECONDS, loop.create_task(overview_of(queue)))
            self._kept[who] = known
        try:
            return await asyncio.shield(known.task)
        except Exception:
            self._kept.pop(who, None)
            raise


async def overview_of(queue: Calls) -> Overview:
    """Read the store."""
    now = queue.clock.now_ms()
    stats = list((await queue.astats()).queues.values())
    limits = {
        one.queue: one for one in await queue.alimits() if one.tenant is None and one.group is None
    }
    ready = sorted((one for one in stats if one.ready), key=lambda one: -one.ready)[:MOST_QUEUES]
    oldest = {one.queue: await _oldest(queue, one.queue) for one in ready}
    lately = await _lately(queue, now)
    workers = await _workers(queue)
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
    return Overview(now, rows, list(_first(attention_of(rows, now))))


async def _workers(queue: Calls) -> Counter[str] | None:
    """How many live workers each queue has, if the token may know."""
    try:
        return Counter(name for worker in await queue.aworkers() for name in worker.queues)
    except Forbidden:
        return None


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


def attention_of(rows: Iterable[QueueRow], now: int) -> Iterator[Attention]:
    """What needs attention, in words."""
    for row in rows:
        if row.paused and row.ready:
            yield _about(row, f"paused, and {_jobs(row.ready)} ready", "odd")
            continue
        waits = 0 if row.oldest_ready_at is None else now - row.oldest_ready_at
        deserted = row.workers == 0 and waits > DESERTED_MS
        if row.ready and (waits > LATE_MS or deserted):
            full = row.limit is not None and row.leased >= row.limit
            text = f"{_jobs(row.ready)} ready, the oldest for {_span(waits)}"
            yield _about(row, text + _cause(row, full), "odd" if full else "bad")
        if row.dead:
            lately = f", {row.died:,} in the last {MINUTES} min" if row.died else ""
            level = "odd" if row.died == 0 else "bad"  # old news, unless that is not known
            yield _about(row, f"{_jobs(row.dead)} dead{lately}", level, "?state=dead")


def _cause(row: QueueRow, full: bool) -> str:
    if full:
        return f"; its limit of {row.limit:,} is used up"
    if row.workers == 0:
        return "; no live worker listens to it"
    return "" if row.leased else "; none is running"


def _first(found: Iterator[Attention]) -> Iterator[Attention]:
    everything = sorted(found, key=lambda one: one.level != "bad")
    return iter(everything[:MOST_ATTENTION])


def _about(row: QueueRow, text: str, level: str, where: str = "") -> Attention:
    return Attention(text, row.queue, where, level)


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


def _span(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit}"
    return f"{ms // 1000} s"


async def overview(call: Call) -> Overview:
    """Get all queues with what the dashboard shows about them, and what needs attention."""
    return await call.service.overviews.of(call.token.hash, call.queue)


ROUTES = [Route("GET", "/v1/overview", overview, scope=Scope.READ, answer=Overview)]
