"""Queries over several shards: each reads a snapshot of its own, and the results are merged.

A list that lacks a shard would look complete, so it fails while a shard is away, unless it is of a
tenant on another shard. Counts and the queries of workers use the shards that are there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tenure.engines.sharded import merged_lists
from tenure.engines.sharded.cluster import Cluster, has_any
from tenure.engines.sharded.cursors import Places, cursor_of, places_of
from tenure.engines.sharded.shard import Shard
from tenure.errors import InvalidInput, JobNotFound, NotFound, TenureError
from tenure.features import FINDERS
from tenure.model import ops, queries
from tenure.model.queries import Found, Merge, Query
from tenure.model.record_queries import ListRecords
from tenure.model.records import Record

R = TypeVar("R", bound=msgspec.Struct)
_SHARED = ("worker", "pause")  # spaces of which each shard has the same records


def read(cluster: Cluster, query: Query) -> Found:
    """Run a query."""
    try:
        return _read(cluster, query)
    except TenureError as error:
        return error


def _read(cluster: Cluster, query: Query) -> Found:
    finder = FINDERS.get(type(query))
    if isinstance(query, queries.JobQuery):
        there = _where_it_is(cluster, query)
        missing = finder is not None and isinstance(there, JobNotFound)
        return finder(lambda part: [], query) if finder is not None and missing else there
    if finder is not None:
        lenient = query.partial
        found: Found = finder(lambda part: _list_records(cluster, part, lenient=lenient), query)
        return found
    if isinstance(query, queries.Together):
        return [read(cluster, one) for one in query.queries]
    if query.merge is not None:
        return _merged(cluster, query, query.merge)
    match query:
        case queries.SlotQuery():
            return _slots(cluster, query)
    return _QUERIES[type(query)](cluster, query)


def ask(
    cluster: Cluster,
    query: Query,
    of: Sequence[Shard] | None = None,
    *,
    lenient: bool = False,
    quick: bool = False,
) -> list[tuple[int, Any]]:
    """What each shard found, by its number. A NotFound counts as nothing, unless all shards return
    it. lenient: shards that are away are skipped, unless all are. quick: so is one that does not
    respond soon."""
    among = cluster.shards if of is None else of
    enough = has_any if quick else None
    found = cluster.each(lambda shard: shard.read(query), among, quick=quick, enough=enough)
    good: list[tuple[int, Any]] = []
    absent: TenureError | None = None
    for shard, one in zip(among, found, strict=True):
        if isinstance(one, NotFound):
            absent = one
        elif not isinstance(one, TenureError):
            good.append((cluster.shards.index(shard), one))
        elif not lenient or isinstance(one, InvalidInput):
            raise one
    if not good:
        raise absent or next(one for one in found if isinstance(one, TenureError))
    return good


def _of_tenant(cluster: Cluster, tenant: str | None) -> list[Shard] | None:
    """The shards that have jobs of a tenant; None if all may."""
    place = None if tenant is None else cluster.placing.of_tenant(tenant)
    return None if place is None else [cluster.shards[place]]


def _on_one(
    cluster: Cluster, shard: Shard, query: queries.ListTenants | queries.ListGroups
) -> Found:
    """What the shard of a tenant has; nothing, if only other shards have the queue."""
    found = shard.read(query)
    return [] if isinstance(found, NotFound) and cluster.has_queue(query.queue) else found


# Jobs by id -------------------------------------------------------------------------------------


def _where_it_is(cluster: Cluster, query: queries.JobQuery) -> Found:
    """What a job waits for, and what waits for it, is on its shard."""
    hint = cluster.locator.hints.get(query.id)
    if hint is not None:
        found = cluster.shards[hint].read(query)
        if not isinstance(found, JobNotFound):
            return found
    place = cluster.locator.search([query.id], query.grant)[query.id]
    if isinstance(place, TenureError):
        return place
    return JobNotFound(query.id) if place is None else cluster.shards[place].read(query)


def _get_jobs(cluster: Cluster, query: queries.GetJobs) -> Found:
    pages = ask(cluster, query)
    jobs = {job.id: job for _, page in pages for job in page.jobs}
    stops = [int(page.cursor) for _, page in pages if page.cursor is not None]
    ids = query.ids[: min(stops, default=len(query.ids))]
    page = queries.page_of(query, [jobs[job_id] for job_id in ids if job_id in jobs])
    if page.cursor is None and stops:
        return replace(page, cursor=str(min(stops)))
    return page


def _find_by_prefix(cluster: Cluster, query: queries.FindByPrefix) -> Found:
    ids = {job_id for _, found in ask(cluster, query) for job_id in found.ids}
    return queries.Ids(sorted(ids)[: query.limit])


def _find_by_key(cluster: Cluster, query: queries.FindByKey) -> Found:
    places: Places = dict.fromkeys(range(len(cluster.shards)))
    if query.cursor is not None:
        places = places_of(query.cursor, len(cluster.shards))
    ids: list[str] = []
    left: Places = {}
    for number, start in places.items():
        page = cluster.shards[number].read(replace(query, cursor=start))
        if isinstance(page, TenureError):
            return page
        assert isinstance(page, queries.Ids)
        ids += page.ids
        if page.cursor is not None:
            left[number] = page.cursor
    return queries.Ids(sorted(ids), cursor_of(left) if left else None)


# Counts -----------------------------------------------------------------------------------------


def _next_due(cluster: Cluster, query: queries.NextDue | queries.OldestReady) -> Found:
    found = ask(cluster, query, lenient=True, quick=True)
    times = [due.at for _, due in found if due.at is not None]
    return queries.Due(min(times, default=None))


def _merged(cluster: Cluster, query: Any, merge: Merge) -> Found:
    """Merge the lists of all shards. Each has returned as many rows as requested, so none is
    missing. Everything of a tenant is on one shard, but jobs without one may be on several."""
    of = _of_tenant(cluster, getattr(query, "tenant", None))
    if of is not None:
        return _on_one(cluster, of[0], query)
    rows: dict[tuple[str, ...], Any] = {}
    for _, found in ask(cluster, query, lenient=query.partial):
        for row in found:
            place = tuple([_mark(getattr(row, name)) for name in merge.by])
            known = rows.get(place)
            rows[place] = row if known is None else _one_of(known, row, merge)
    return [rows[place] for place in sorted(rows)][: getattr(query, "limit", None)]


def _mark(name: str | None) -> str:
    """Sort as the stores do: the whole before its parts."""
    return "" if name is None else f"={name}"


def _one_of(known: R, row: R, merge: Merge) -> R:
    """Merge two rows. A queue is paused if it is paused on all shards."""
    if merge.how == "first":
        return known
    combine = max if merge.how == "max" else operator.add
    numbers: dict[str, int] = {}
    for name in known.__struct_fields__:
        one, other = getattr(known, name), getattr(row, name)
        if isinstance(one, bool):
            numbers[name] = one and other
        elif isinstance(one, int):
            numbers[name] = combine(one, other)
    return replace(known, **numbers)


# What is beside the jobs ------------------------------------------------------------------------


def _list_schedules(cluster: Cluster, query: queries.ListSchedules) -> Found:
    found = ask(cluster, query)
    cluster.saw_schedules((number, one) for number, some in found for one in some)
    return sorted((one for _, some in found for one in some), key=lambda one: str(one.name))


def _get_timetable(cluster: Cluster, query: queries.GetTimetable) -> Found:
    """Schedules of the shards that are there, and the earliest of their times: each shard decides
    by its own whether something is due."""
    found = ask(cluster, query, lenient=True, quick=True)
    cluster.saw_schedules((number, one) for number, part in found for one in part.schedules)
    schedules = [one for _, part in found for one in part.schedules]
    return queries.Timetable(
        min(part.now for _, part in found), sorted(schedules, key=lambda one: str(one.name))
    )


def _slots(cluster: Cluster, query: queries.SlotQuery) -> Found:
    shard = cluster.placing.of_slots(query.scope)
    if shard is not None:
        return cluster.shards[shard].read(query)
    found = [slot for _, some in ask(cluster, query, lenient=True) for slot in some]
    by_holder = {slot.holder: slot for slot in found}
    return [by_holder[holder] for holder in sorted(by_holder)]


def _list_records(cluster: Cluster, query: ListRecords, *, lenient: bool = False) -> list[Record]:
    """Records sorted by key. Those of one key are never split between two pages."""
    found = [record for _, some in ask(cluster, query, lenient=lenient) for record in some]
    found.sort(key=lambda record: record.key, reverse=query.newest_first)
    if query.space in _SHARED:
        found = list({record.key: record for record in found}.values())
    end = query.limit
    while 0 < end < len(found) and found[end].key == found[end - 1].key:
        end += 1
    return found[:end]


def _export(cluster: Cluster, query: queries.Export) -> Found:
    """The jobs of one shard after the other, from where the last page of each ended."""
    if query.ids is not None:
        found = {one.job.id: one for _, page in ask(cluster, query) for one in page.entries}
        return queries.Exported([found[id] for id in query.ids if id in found], None)
    places: Places = {}
    if query.cursor is not None:
        places = places_of(query.cursor, len(cluster.shards))
    entries: list[ops.Entry] = []
    for number, shard in enumerate(cluster.shards):
        limit = query.limit - len(entries)
        if limit == 0:
            break
        page = shard.read(queries.Export(limit, places.get(number)))
        if isinstance(page, TenureError):
            return page
        assert isinstance(page, queries.Exported)
        entries += page.entries
        if page.entries:
            places[number] = page.cursor
    return queries.Exported(entries, cursor_of(places) if entries else query.cursor)


def _listed(cluster: Cluster, query: Any) -> Found:
    return merged_lists.read(cluster, query, _of_tenant(cluster, query.filter.tenant))


_QUERIES: dict[type[Query], Callable[[Cluster, Any], Found]] = {
    queries.GetJobs: _get_jobs,
    queries.FindByKey: _find_by_key,
    queries.ListJobs: _listed,
    queries.ListSummaries: _listed,
    queries.FindIds: _listed,
    queries.FindByPrefix: _find_by_prefix,
    queries.NextDue: _next_due,
    queries.OldestReady: _next_due,
    ListRecords: _list_records,
    queries.ListSchedules: _list_schedules,
    queries.GetTimetable: _get_timetable,
    queries.Export: _export,
}
