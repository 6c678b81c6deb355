"""What an operator should look at, in words: what is stuck, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tenure.errors import TenureError
from tenure.features.errors.data import ErrorGroup
from tenure.features.why.data import Limited, Paused, RateLimited, WaitsFor
from tenure.model.job import State
from tenure.model.ops import UNKNOWN_KIND, Schedule
from tenure.model.queries import Counts
from tenure.queue import Calls

LATE_MS = 60_000  # waiting longer than this needs attention
DESERTED_MS = 10_000  # the same if there is no worker
MOST_ATTENTION = 12
MOST_EXPLAINED = 5  # queues of which jobs are explained
MOST_GROUPS = 100  # error groups that are looked at
MOST_SAMPLED = 50  # of the jobs of a queue, of which one of each tenant is explained
MOST_TENANTS = 3
MOST_WAITING = 3  # of the jobs of a queue that wait for others
MOST_MISSING = 10  # kinds of jobs of which it is looked up whether a worker has the task
MINUTES, MINUTE_MS = 30, 60_000  # of rates that are shown
LONGEST_MESSAGE = 80  # characters of an error


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
    """Something that an operator should look at. level: `bad` or `odd`. queue: empty if it is about
    schedules or shards. link: what shows more: empty for the queue, `dead` for its dead jobs,
    `errors` for its errors, `pending` for its pending jobs of one kind, `waiting` for its waiting
    jobs, `schedules`; `shards` has no link. count: of jobs, schedules or shards."""

    text: str
    queue: str
    link: str
    level: str
    count: int
    kind: str = ""


class Known(NamedTuple):
    """What is read of a store, besides its queues."""

    groups: list[ErrorGroup]
    schedules: list[Schedule]


async def attention(
    queue: Calls, rows: Sequence[QueueRow], limited: Collection[str], known: Known, now: int
) -> list[Attention]:
    """All that needs attention, the worst first. limited: the queues that have limits or pauses."""
    groups = known.groups
    found = [
        *_waiting(rows, now, await _causes(queue, rows, limited, now)),
        *_dead(rows, groups),
        *await _missing(queue, groups),
        *await _stranded(queue, rows),
        *_schedules(known.schedules, now),
    ]
    return sorted(found, key=lambda one: (one.level != "bad", -one.count))


def away(shards: Sequence[str]) -> Iterator[Attention]:
    """Comes before everything else, because the rest may lack what these shards have."""
    if shards:
        names = ", ".join(map(repr, shards))
        one = len(shards) == 1
        text = f"shard {names} is away: its" if one else f"shards {names} are away: their"
        text += " jobs do not run, and are not counted here"
        yield Attention(text, "", "shards", "bad", len(shards))


def _waiting(rows: Iterable[QueueRow], now: int, causes: dict[str, str]) -> Iterator[Attention]:
    for row in rows:
        if not row.ready or not (row.paused or is_late(row, now)):
            continue
        waits = _waits(row, now)
        text = f"{_jobs(row.ready)} ready" + (f", the oldest for {_span(waits)}" if waits else "")
        cause = causes.get(row.queue)
        if cause is not None:
            text = f"{text}. {cause}"
        else:
            text += _cause(row)
        expected = row.paused or _is_full(row) or cause is not None
        yield Attention(text, row.queue, "", "odd" if expected else "bad", row.ready)


def is_late(row: QueueRow, now: int) -> bool:
    waits = _waits(row, now)
    return waits > LATE_MS or (row.workers == 0 and waits > DESERTED_MS)


def _waits(row: QueueRow, now: int) -> int:
    return 0 if row.oldest_ready_at is None else now - row.oldest_ready_at


def _is_full(row: QueueRow) -> bool:
    return row.limit is not None and row.leased >= row.limit


def _cause(row: QueueRow) -> str:
    """What the counts alone say about a queue whose jobs wait."""
    if row.paused:
        return "; the queue is paused"
    if _is_full(row):
        return f"; its limit of {row.limit:,} is used up"
    if row.workers == 0:
        return "; no live worker listens to it"
    return "" if row.leased else "; none is running"


def _dead(rows: Iterable[QueueRow], groups: Sequence[ErrorGroup]) -> Iterator[Attention]:
    known = len(groups) < MOST_GROUPS
    for row in rows:
        if not row.dead:
            continue
        causes = [one for one in groups if one.queue == row.queue and one.dead]
        loud = [one for one in causes if not one.muted]
        if causes and not loud and known:
            continue  # an operator has silenced all of them
        text = f"{_jobs(row.dead)} dead"
        if row.died:
            text += f"; {row.died:,} died in the last {MINUTES} min"
        if loud:
            text += f". Most often {_named(max(loud, key=lambda one: one.dead))}"
        level = "odd" if row.died == 0 else "bad"  # old news, unless that is not known
        yield Attention(text, row.queue, "errors" if loud else "dead", level, row.dead)


def _named(group: ErrorGroup) -> str:
    text = ": ".join(part for part in (group.type, group.message) if part)
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"


def _schedules(schedules: Iterable[Schedule], now: int) -> Iterator[Attention]:
    late = [one for one in schedules if not one.disabled and one.next_at < now - LATE_MS]
    paused = [one for one in schedules if one.disabled]
    if late:
        has, them = ("has", "it") if len(late) == 1 else ("have", "them")
        waits = _span(now - min(one.next_at for one in late))
        text = f"{_those(late)} {has} been due for {waits}; no scheduler fires {them}"
        yield Attention(text, "", "schedules", "bad", len(late))
    if paused:
        text = f"{_those(paused)} {'is' if len(paused) == 1 else 'are'} paused"
        yield Attention(text, "", "schedules", "odd", len(paused))


def _those(schedules: Sequence[Schedule]) -> str:
    return schedules[0].name if len(schedules) == 1 else f"{len(schedules):,} schedules"


# What is read to find causes ----------------------------------------------------------------------


async def _missing(queue: Calls, groups: Iterable[ErrorGroup]) -> list[Attention]:
    """The tasks that no worker has, as far as the last job of each still waits for one."""
    found: list[Attention] = []
    unknown = [one for one in groups if one.type == UNKNOWN_KIND and not one.muted]
    for group in unknown[:MOST_MISSING]:
        try:
            job = await queue.aget(group.sample)
        except TenureError:  # it was deleted, or its shard is away
            continue
        if job.state is State.PENDING and job.errors and job.errors[-1].type == UNKNOWN_KIND:
            text = f"no worker has the task {group.kind!r}, which {_jobs(group.count)} need"
            found.append(Attention(text, group.queue, "pending", "bad", group.count, group.kind))
    return found


async def _stranded(queue: Calls, rows: Iterable[QueueRow]) -> list[Attention]:
    """The queues in which one of the newest waiting jobs waits for one that failed."""
    found = []
    waiting = sorted((row for row in rows if row.waiting), key=lambda row: -row.waiting)
    for row in waiting[:MOST_EXPLAINED]:
        cause = await _failed_parent(queue, row.queue)
        if cause is not None:
            text = f"{_jobs(row.waiting)} waiting for others. {cause}"
            found.append(Attention(text, row.queue, "waiting", "bad", row.waiting))
    return found


async def _failed_parent(queue: Calls, name: str) -> str | None:
    try:
        page = await queue.asummaries(queue=name, state="waiting", limit=MOST_WAITING)
        for one in page.jobs:
            for reason in (await queue.aexplain(one.id)).reasons:
                if isinstance(reason, WaitsFor) and reason.parents[:1]:
                    first = reason.parents[0]
                    if first.state in (State.DEAD, State.CANCELLED):
                        return f"{one.id} never runs: {first.id} is {first.state.value}"
    except TenureError:  # a bound token must name its tenant; the job has gone; a shard is away
        return None
    return None


async def _causes(
    queue: Calls, rows: Iterable[QueueRow], limited: Collection[str], now: int
) -> dict[str, str]:
    """Why the jobs of some queues wait, where the counts do not say it: who paused a queue, which
    tenant has reached its limit."""
    unclear = [row for row in rows if row.ready and _is_unclear(row, limited, now)]
    unclear.sort(key=lambda row: -row.ready)
    found = {}
    for row in unclear[:MOST_EXPLAINED]:
        cause = await _explained(queue, row, now)
        if cause is not None:
            found[row.queue] = cause
    return found


def _is_unclear(row: QueueRow, limited: Collection[str], now: int) -> bool:
    if row.paused:
        return True
    return row.queue in limited and is_late(row, now) and not _is_full(row) and row.workers != 0


async def _explained(queue: Calls, row: QueueRow, now: int) -> str | None:
    """What holds back one of the newest ready jobs of a queue, which are of several tenants."""
    try:
        page = await queue.asummaries(queue=row.queue, state="pending", limit=MOST_SAMPLED)
        ready = {one.tenant: one.id for one in page.jobs if one.run_at <= now}
        for id in list(ready.values())[:MOST_TENANTS]:
            reasons = (await queue.aexplain(id)).reasons
            if reasons and isinstance(reasons[0], Paused | Limited | RateLimited):
                return str(reasons[0].text)
    except TenureError:  # a bound token must name its tenant; the job has gone; a shard is away
        return None
    return None


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


def _span(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= size:
            return f"{ms // size} {unit}"
    return f"{ms // 1000} s"
