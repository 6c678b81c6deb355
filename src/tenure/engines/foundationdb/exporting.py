"""Export: jobs with everything another store needs to take them over."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.cursor import cursor_of, place_of
from tenure.engines.foundationdb.jobs import jobs_of
from tenure.engines.foundationdb.record import Held
from tenure.engines.foundationdb.tx import Tx
from tenure.errors import InvalidInput
from tenure.model import queries
from tenure.model.job import State
from tenure.model.ops import Entry, in_order
from tenure.model.queries import Found

_Place = tuple[tuple[int, ...], str]


def export(tx: Tx, query: queries.Export) -> Found:
    if query.ids is not None:
        return queries.Exported(_entries(tx, query.ids), None)
    start = None if query.cursor is None else place_of(query.cursor, 3)
    if isinstance(start, InvalidInput):
        return start
    places = heapq.merge(*(_listed(tx, queue, start) for queue in tx.queues()))
    page = list(islice(places, query.limit))
    cursor = cursor_of(page[-1][0]) if page else query.cursor
    return queries.Exported(_entries(tx, (job_id for _, job_id in page)), cursor)


def _entries(tx: Tx, ids: Iterable[str]) -> list[Entry]:
    found = [held for held in tx.peek(ids) if held is not None]
    waits = [_ask_waits(tx, held) for held in found]
    return [
        Entry(job, held.record.ready, in_order(job, waits_for))
        for held, job, waits_for in zip(found, jobs_of(tx, found), waits, strict=True)
    ]


def _listed(tx: Tx, queue: str, start: tuple[int, ...] | None) -> Iterator[_Place]:
    begin, end = tx.keys.span(k.LISTED, queue)
    if start is not None:
        begin = tx.keys.pack(k.LISTED, queue, *start) + b"\xff"
    for _, *place, job_id in tx.scan(begin, end):
        yield tuple(place), job_id


def _ask_waits(tx: Tx, held: Held) -> set[str]:
    if held.record.state is not State.WAITING:
        return set()
    return {parent for _, parent in tx.scan(*tx.keys.span(k.WAITS, held.id))}
