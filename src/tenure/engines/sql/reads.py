"""Queries, each a read of one snapshot. The engines use the same statement names and columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from tenure.engines.sql import job_lists
from tenure.engines.sql.explain import SqlFacts
from tenure.engines.sql.job_lists import ListSnapshot
from tenure.engines.sql.limit_names import unmark
from tenure.engines.sql.rows import WAITING, entry_of, job_of
from tenure.engines.sql.snapshot import Row
from tenure.errors import InvalidInput, JobNotFound, QueueNotFound
from tenure.features import FINDERS
from tenure.features.why.data import Explain
from tenure.features.why.dry_run import explain
from tenure.model import ops, queries
from tenure.model.fields import MAX_NAME
from tenure.model.job import Job
from tenure.model.queries import Found, Query
from tenure.model.record_queries import FindAnswers, ListRecords
from tenure.model.records import Record

_LAST_NAME = "\U0010ffff" * MAX_NAME
_MOST_KEYED = 10_000  # tenants in which one query looks for a unique key
_COUNTS = [field.name for field in msgspec.structs.fields(queries.Counts)]
_decode_schedule = msgspec.json.Decoder(ops.Schedule).decode


class Snapshot(ListSnapshot, Protocol):
    """The parts that differ between the databases."""

    def next_due(self, queues: Sequence[str]) -> int | None:
        """By this machine's clock."""

    def oldest_ready(self, queues: Sequence[str]) -> int | None:
        """By this machine's clock."""

    def timed(self, statement: str, params: dict[str, Any]) -> Sequence[Row]:
        """The rows of a statement of shared.sql that compares with `:now`."""

    def timetable(self) -> tuple[int, Sequence[str]]:
        """The store's time, and the schedules."""


def read(snapshot: Snapshot, query: Query) -> Found:
    """Run a query."""
    finder = FINDERS.get(type(query))
    if finder is not None:
        found: Found = finder(partial(_list_records, snapshot), query)
        return found
    if isinstance(query, queries.Together):
        return [read(snapshot, one) for one in query.queries]
    return _QUERIES[type(query)](snapshot, query)


def _get_job(snapshot: Snapshot, query: queries.GetJob) -> Found:
    if query.grant is not None and not _seqs_of(snapshot, [query.id], query.grant):
        return JobNotFound(query.id)
    row = snapshot.db.one("read_job", query.id)
    return JobNotFound(query.id) if row is None else job_of(row)


def _seqs_of(snapshot: Snapshot, ids: Sequence[str], grant: ops.Grant | None) -> dict[str, int]:
    """Which of these jobs exist and may be seen, by their ids."""
    listed = snapshot.listed(ids)
    if grant is None:
        return dict(snapshot.db.all("seqs_by_id", listed))
    rows = snapshot.db.all("owned_by_id", listed)
    return {id: seq for id, seq, queue, tenant in rows if grant.allows(queue, tenant)}


def _get_jobs(snapshot: Snapshot, query: queries.GetJobs) -> Found:
    seqs = _seqs_of(snapshot, query.ids, query.grant)
    there = [seqs[id] for id in query.ids if id in seqs]
    return queries.page_of(query, job_lists.read_jobs(snapshot, there))


def _explain(snapshot: Snapshot, query: Explain) -> Any:
    job = _get_job(snapshot, queries.GetJob(query.id, grant=query.grant))
    if not isinstance(job, Job):
        return job
    return explain(SqlFacts(snapshot, job, partial(_list_records, snapshot)), query.grant)


def _find_by_prefix(snapshot: Snapshot, query: queries.FindByPrefix) -> Found:
    last = query.prefix + _LAST_NAME[len(query.prefix) :]
    params = {"first": query.prefix, "last": last, "limit": query.limit}
    return queries.Ids([job_id for (job_id,) in snapshot.db.named("ids_between", params)])


def _find_by_key(snapshot: Snapshot, query: queries.FindByKey) -> Found:
    start = [-1] if query.cursor is None else queries.parse_cursor(query.cursor, 1)
    if isinstance(start, InvalidInput):
        return start
    params = {"after": start[0], "most": _MOST_KEYED, "key": query.unique_key}
    found = [
        job_id
        for job_id, queue, tenant in snapshot.db.named("jobs_by_key", params)
        if query.grant is None or query.grant.allows(queue, tenant)
    ]
    last = snapshot.db.named("tenant_after", {"after": start[0], "skip": _MOST_KEYED - 1})
    return queries.Ids(sorted(found), str(last[0][0]) if last else None)


def _list_related(snapshot: Snapshot, query: queries.ListRelated) -> Found:
    if query.grant is not None and not _seqs_of(snapshot, [query.id], query.grant):
        return JobNotFound(query.id)
    row = snapshot.db.one("read_job", query.id)
    job = None if row is None else job_of(row)
    if row is None or job is None:
        return JobNotFound(query.id)
    ids = job.after[: query.limit]
    seqs: dict[str, int] = dict(snapshot.db.all("seqs_by_id", snapshot.listed(ids)))
    looked_at = max(query.most, queries.MOST_RELATED)
    params = {"seq": row[0], "most": looked_at, "limit": query.most}
    before = [seq for (seq,) in snapshot.db.named("dependents", params)]
    return queries.related_of(
        query,
        job_lists.read_summaries(snapshot, [seqs[id] for id in ids if id in seqs]),
        job_lists.read_summaries(snapshot, before),
    )


def _longest_waits(snapshot: Snapshot, query: queries.LongestWaits) -> Found:
    queue = snapshot.db.one("queue_id", query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    tenants = sorted(set(query.tenants))
    params = {"queue": queue[0], "tenants": snapshot.listed(tenants), "most": queries.MOST_HEADS}
    now = snapshot.now()
    return [
        queries.TenantWait(tenant, max(0, now - since))
        for tenant, since in sorted(snapshot.db.named("longest_waits", params))
    ]


def _next_due(snapshot: Snapshot, query: queries.NextDue) -> Found:
    return queries.Due(snapshot.next_due(query.queues))


def _oldest_ready(snapshot: Snapshot, query: queries.OldestReady) -> Found:
    return queries.Due(snapshot.oldest_ready(query.queues))


def _get_stats(snapshot: Snapshot, query: queries.GetStats) -> Found:
    if query.tenants is None:
        rows = snapshot.db.named("stats", {"queue": query.queue})
    else:
        tenants = snapshot.listed(query.tenants)
        rows = snapshot.db.named("stats_of_tenants", {"queue": query.queue, "tenants": tenants})
    if query.queue is not None and not rows:
        return QueueNotFound(query.queue)
    return [
        queries.QueueStats(queue=queue, paused=bool(paused), **_counts(counts))
        for queue, paused, *counts in rows
    ]


def _counts(counts: Sequence[Any]) -> dict[str, int]:
    return dict(zip(_COUNTS, map(int, counts), strict=True))


def _list_tenants(snapshot: Snapshot, query: queries.ListTenants) -> Found:
    queue = snapshot.db.one("queue_id", query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    first, last = _names_between(query.after, query.tenant)
    params = {"queue": queue[0], "first": first, "last": last, "limit": query.limit}
    return [
        queries.TenantStats(queue=query.queue, tenant=tenant, **_counts(counts))
        for tenant, *counts in snapshot.db.named("tenants", params)
    ]


def _list_groups(snapshot: Snapshot, query: queries.ListGroups) -> Found:
    queue = snapshot.db.one("queue_id", query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    params = {
        "queue": queue[0],
        "tenant": query.tenant,
        "after": query.after,
        "limit": query.limit,
    }
    return [
        queries.GroupStats(queue=query.queue, tenant=query.tenant, group=group, **_counts(counts))
        for group, *counts in snapshot.db.named("groups", params)
    ]


def _list_group_totals(snapshot: Snapshot, query: queries.ListGroupTotals) -> Found:
    queue = snapshot.db.one("queue_id", query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    first, last = _names_between(query.after or "", query.group)
    found: list[queries.GroupTotal] = []
    while True:
        params = {"queue": queue[0], "first": first, "last": last, "limit": query.limit}
        rows = snapshot.db.named("group_totals", params)
        found += [
            queries.GroupTotal(query.queue, group, int(unfinished), int(finished))
            for group, unfinished, finished in rows
            if unfinished or finished  # a group stays known for a while after its last job
        ]
        if len(rows) < query.limit or len(found) >= query.limit:
            return found[: query.limit]
        first, _ = _names_between(rows[-1][0], None)


def _names_between(after: str | None, only: str | None) -> tuple[str, str]:
    """The first and the last name of a list that starts after a name, or has a single one. As
    bounds of a range, they let an index find them; an empty range if there is none."""
    first = "" if after is None else after + "\x01"  # no name has a NUL
    return (first, _LAST_NAME) if only is None else (max(first, only), only)


def _list_limits(snapshot: Snapshot, query: queries.ListLimits) -> Found:
    return [
        ops.Limit(queue, unmark(t), unmark(g), concurrency, rate, per_ms, weight, bool(paused))
        for queue, t, g, concurrency, rate, per_ms, weight, paused in snapshot.db.named(
            "limits", {"queue": query.queue}
        )
    ]


def _list_slots(snapshot: Snapshot, query: queries.ListSlots) -> Found:
    rows = snapshot.timed("slots", {"scope": query.scope, "key": query.key})
    return [queries.Slot(*row) for row in rows]


def _list_records(snapshot: Snapshot, query: ListRecords) -> list[Record]:
    statement = "records_backwards" if query.newest_first else "records"
    params = {"space": query.space, "first": query.first, "last": query.last, "limit": query.limit}
    rows = snapshot.timed(statement, params)
    return [Record(key, value.encode(), expires_at) for key, value, expires_at in rows]


def _list_schedules(snapshot: Snapshot, query: queries.ListSchedules) -> Found:
    return [_decode_schedule(text) for (text,) in snapshot.db.all("schedules")]


def _get_timetable(snapshot: Snapshot, query: queries.GetTimetable) -> Found:
    now, texts = snapshot.timetable()
    return queries.Timetable(now, list(map(_decode_schedule, texts)))


def _export(snapshot: Snapshot, query: queries.Export) -> Found:
    if query.ids is not None:
        seqs: dict[str, int] = dict(snapshot.db.all("seqs_by_id", snapshot.listed(query.ids)))
        there = [seqs[id] for id in query.ids if id in seqs]
        found = {row[0]: row for row in snapshot.db.all("read_jobs", snapshot.listed(there))}
        return queries.Exported(_entries(snapshot, [found[seq] for seq in there]), None)
    start = [-1] if query.cursor is None else queries.parse_cursor(query.cursor, 1)
    if isinstance(start, InvalidInput):
        return start
    rows = snapshot.db.all("export", start[0], query.limit)
    cursor = str(rows[-1][0]) if rows else query.cursor
    return queries.Exported(_entries(snapshot, rows), cursor)


def _entries(snapshot: Snapshot, rows: Sequence[Row]) -> list[ops.Entry]:
    waiting = [row[0] for row in rows if row[3] == WAITING]
    waits: dict[int, set[str]] = defaultdict(set)
    for child, parent in snapshot.db.all("parents_of", snapshot.listed(waiting)):
        waits[child].add(parent)
    return [entry_of(row, waits[row[0]]) for row in rows]


def _find_answers(snapshot: Snapshot, query: FindAnswers) -> Any:
    return [text for (text,) in snapshot.db.all("once", query.key) if text is not None]


_QUERIES: dict[type[Query], Callable[[Snapshot, Any], Found]] = {
    queries.GetJob: _get_job,
    queries.GetJobs: _get_jobs,
    Explain: _explain,
    queries.ListJobs: job_lists.list_jobs,
    queries.ListSummaries: job_lists.list_summaries,
    queries.FindIds: job_lists.find_ids,
    queries.FindByPrefix: _find_by_prefix,
    queries.FindByKey: _find_by_key,
    queries.ListRelated: _list_related,
    queries.NextDue: _next_due,
    queries.OldestReady: _oldest_ready,
    queries.LongestWaits: _longest_waits,
    queries.GetStats: _get_stats,
    queries.ListTenants: _list_tenants,
    queries.ListGroups: _list_groups,
    queries.ListGroupTotals: _list_group_totals,
    queries.ListLimits: _list_limits,
    queries.ListSlots: _list_slots,
    ListRecords: _list_records,
    FindAnswers: _find_answers,
    queries.ListSchedules: _list_schedules,
    queries.GetTimetable: _get_timetable,
    queries.Export: _export,
}
