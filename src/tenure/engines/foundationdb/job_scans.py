"""Lists of jobs. A list looks at MOST_SCANNED jobs, and then says how far it got."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.cursor import cursor_of, place_of
from tenure.engines.foundationdb.jobs import jobs_of, summaries_of
from tenure.engines.foundationdb.record import Held
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import InvalidInput, QueueNotFound, TenureError
from tenure.model import queries
from tenure.model.job import Job, State
from tenure.model.ops import BACK_MS
from tenure.model.queries import Filter, Found

Place = tuple[int, ...]  # a position in a list: seq, or finished_at and seq
ListQuery = queries.ListJobs | queries.ListSummaries | queries.FindIds

_AT_ONCE = 100  # jobs that are requested together


class Listed(NamedTuple):
    """A page of a list, with the place of each job."""

    found: list[tuple[Place, Held]]
    cursor: str | None = None
    scanned: int = 0
    scanned_to: int | None = None

    @property
    def jobs(self) -> list[Held]:
        return [held for _, held in self.found]


def list_jobs(tx: Tx, query: queries.ListJobs) -> Found:
    page = find(tx, query)
    if isinstance(page, TenureError):
        return page
    jobs = queries.fitting(read_jobs(tx, page.jobs))
    if len(jobs) < len(page.found):
        place, held = page.found[len(jobs) - 1]
        return queries.Page(jobs, cursor_of(place), page.scanned, _time_of(query.filter, held))
    return queries.Page(jobs, *page[1:])


def list_summaries(tx: Tx, query: queries.ListSummaries) -> Found:
    page = find(tx, query)
    if isinstance(page, TenureError):
        return page
    return queries.Summaries(summaries_of(tx, page.jobs), *page[1:])


def find_ids(tx: Tx, query: queries.FindIds) -> Found:
    page = find(tx, query)
    if isinstance(page, TenureError):
        return page
    return queries.Ids([held.id for held in page.jobs], page.cursor, page.scanned)


def read_jobs(tx: Tx, found: list[Held]) -> Iterator[Job]:
    for at in range(0, len(found), queries.JOBS_AT_ONCE):
        yield from jobs_of(tx, found[at : at + queries.JOBS_AT_ONCE])


def find(tx: Tx, query: ListQuery) -> Listed | TenureError:
    """A page of jobs that match."""
    where = query.filter
    if where.queue is not None and not tx.knows(where.queue):
        return QueueNotFound(where.queue)
    by_end = where.by_end
    start = None if query.cursor is None else place_of(query.cursor, 3 + by_end)
    if isinstance(start, InvalidInput):
        return start
    if where.error is not None:
        return _walked_page(tx, query, [_failed(tx, where.error, start)])
    names = tx.queues() if where.queue is None else [where.queue]
    few = _indexed(tx, where, names)
    if few is not None:
        return _sorted_page(tx, query, few, start)
    walk = _ended if by_end else _created
    return _walked_page(tx, query, [walk(tx, where, name, start) for name in names])


def _time_of(where: Filter, held: Held) -> int | None:
    return held.record.finished_at if where.by_end else held.record.created_at


def _walked_page(tx: Tx, query: ListQuery, walks: list[Iterator[tuple[Place, str]]]) -> Listed:
    """The first matching jobs of several scans, merged."""
    scanned = 0
    last: tuple[Place, str] | None = None

    def counted() -> Iterator[tuple[Place, str]]:
        nonlocal scanned, last
        for last in islice(heapq.merge(*walks, reverse=True), queries.MOST_SCANNED):
            scanned += 1
            yield last

    found = list(islice(_matching(tx, query.filter, counted()), query.limit + 1))
    page = found[: query.limit]
    if len(found) > query.limit:
        place, held = page[-1]
        return Listed(page, cursor_of(place), scanned, _time_of(query.filter, held))
    if last is None or scanned < queries.MOST_SCANNED:
        return Listed(page, None, scanned)
    (held_last,) = tx.peek([last[1]])
    to = None if held_last is None else _time_of(query.filter, held_last)
    return Listed(page, cursor_of(last[0]), scanned, to)


def _sorted_page(tx: Tx, query: ListQuery, ids: list[str], start: Place | None) -> Listed:
    """The newest of a few jobs that match."""
    jobs = [
        (held.record.seq, held)
        for at in range(0, len(ids), _AT_ONCE)
        for held in tx.peek(ids[at : at + _AT_ONCE])
        if held is not None and _matches(query.filter, held)
    ]
    places: list[tuple[Place, Held]] = [
        (place, held) for place, held in jobs if start is None or place < start
    ]
    places.sort(key=lambda one: one[0], reverse=True)
    page = places[: query.limit]
    if len(places) <= query.limit:
        return Listed(page, None, len(ids))
    place, held = page[-1]
    return Listed(page, cursor_of(place), len(ids), held.record.created_at)


def _indexed(tx: Tx, where: Filter, queues: list[str]) -> list[str] | None:
    """The ids of the jobs that indexes have for this filter; None if there are many."""
    if not where.states or not set(where.states) <= {State.LEASED, State.PENDING}:
        return None
    lane = [] if where.tenant is None else [where.tenant]
    lane += [where.group] if lane and where.group is not None else []
    spans: list[tuple[Any, ...]] = []
    for queue in queues:
        if State.LEASED in where.states:
            spans.append((k.LEASE, queue, *lane))
        if State.PENDING in where.states:
            spans += [(k.READY, queue, *lane), (k.DELAYED, queue)]
    found: dict[str, None] = {}
    for span in spans:
        left = queries.MOST_SORTED + 1 - len(found)
        found |= dict.fromkeys(key[-1] for key in tx.scan(*tx.keys.span(*span), limit=left))
        if len(found) > queries.MOST_SORTED:
            return None
    return list(found)


def _failed(tx: Tx, error: str, start: Place | None) -> Iterator[tuple[Place, str]]:
    """The jobs of an error group, from the newest to the oldest."""
    within = (k.ERROR, error)
    begin, end = tx.keys.span(*within)
    if start is not None:
        end = min(end, tx.keys.pack(*within, *start))
    return _places(tx, within, begin, end)


def _ended(tx: Tx, where: Filter, queue: str, start: Place | None) -> Iterator[tuple[Place, str]]:
    """The finished jobs of a queue, from the last to the first."""
    within = (k.ENDED, queue, where.states[0].value)
    begin, end = tx.keys.span(*within)
    if where.finished_after is not None:
        begin = max(begin, tx.keys.pack(*within, where.finished_after))
    if where.finished_before is not None:
        end = min(end, tx.keys.pack(*within, where.finished_before))
    if start is not None:
        end = min(end, tx.keys.pack(*within, *start))
    return _places(tx, within, begin, end)


def _created(tx: Tx, where: Filter, queue: str, start: Place | None) -> Iterator[tuple[Place, str]]:
    """The jobs of a queue, from the newest to the oldest."""
    within = (k.LISTED, queue)
    begin, end = tx.keys.span(*within)
    ends = [at for at in (where.created_before, where.finished_before) if at is not None]
    if (ends or where.created_after is not None) and _is_large(tx, queue):
        if ends:
            end = min(end, _first_created(tx, queue, min(ends) + BACK_MS))
        if where.created_after is not None:
            begin = max(begin, _first_created(tx, queue, where.created_after - BACK_MS))
    if start is not None:
        end = min(end, tx.keys.pack(*within, *start))
    return _places(tx, within, begin, end)


def _places(
    tx: Tx, within: tuple[Any, ...], begin: bytes, end: bytes
) -> Iterator[tuple[Place, str]]:
    """Positions in a list of a queue, from last to first, with the jobs there."""
    if begin >= end:
        return
    for row in tx.tr.snapshot.get_range(begin, end, reverse=True):
        *place, job_id = tx.keys.unpack(bytes(row.key))[len(within) - 1 :]
        yield tuple(place), job_id


def _is_large(tx: Tx, queue: str) -> bool:
    """Whether the queue is too large for one scan. Only then is the place of a time searched for: a
    small store may have imported jobs, whose places do not grow with time."""
    counts = tx.tr.snapshot.get_range(*tx.keys.span(k.QUEUE_COUNT, queue))
    numbers = [int.from_bytes(bytes(row.value), "little", signed=True) for row in counts]
    return sum(numbers) > queries.MOST_SCANNED


def _first_created(tx: Tx, queue: str, at: int) -> bytes:
    """The key of the first job of a queue that was created at this time or later, by binary search
    for the version of its transaction. Versions grow with time, except where a clock was set back,
    which is expected to be by less than BACK_MS."""
    _, end = tx.keys.span(k.LISTED, queue)
    low, high = 0, tx.version + 1
    while low < high:
        middle = (low + high) // 2
        key = next(tx.scan(tx.keys.pack(k.LISTED, queue, middle), end, limit=1), None)
        held = None if key is None else tx.peek([key[-1]])[0]
        if key is None or held is None or held.record.created_at >= at:
            high = middle
        else:
            low = key[1] + 1
    return tx.keys.pack(k.LISTED, queue, low)


def _matching(
    tx: Tx, where: Filter, places: Iterator[tuple[Place, str]]
) -> Iterator[tuple[Place, Held]]:
    while some := list(islice(places, _AT_ONCE)):
        for (place, _), held in zip(some, tx.peek(job_id for _, job_id in some), strict=True):
            if held is not None and _matches(where, held):
                yield place, held


def _matches(where: Filter, held: Held) -> bool:
    job = held.record
    return (
        (not where.states or job.state in where.states)
        and where.queue in (None, job.queue)
        and where.error in (None, job.error)
        and where.tenant in (None, job.tenant)
        and where.group in (None, job.group)
        and where.kind in (None, job.kind)
        and where.worker in (None, job.worker)
        and (where.created_after or 0) <= job.created_at
        and (where.created_before is None or job.created_at < where.created_before)
        and _finished_between(job.finished_at, where)
    )


def _finished_between(at: int | None, where: Filter) -> bool:
    if where.finished_after is None and where.finished_before is None:
        return True
    return (
        at is not None
        and (where.finished_after or 0) <= at
        and (where.finished_before is None or at < where.finished_before)
    )
