"""Queries: each a read of one snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tenure import ops
from tenure.engines.postgres.db import Db
from tenure.engines.sql.limits import unmark
from tenure.engines.sql.rows import CODES, WAITING, entry_of, job_of
from tenure.errors import InvalidInput, JobNotFound, QueueNotFound, TenureError
from tenure.job import FINAL
from tenure.ops import Found, Query

_LAST = 2**63 - 1
_COUNTS = [field.name for field in msgspec.structs.fields(ops.Counts)]
_decode_schedule = msgspec.json.Decoder(ops.Schedule).decode


class Now(NamedTuple):
    """The time that is given, if the server's does not count, and this machine's."""

    given: int | None
    here: int


def read(db: Db, query: Query, now: Now) -> Found:
    """The answer to a query."""
    return _QUERIES[type(query)](db, query, now)


def _get_job(db: Db, query: ops.GetJob, now: Now) -> Found:
    row = db.one("read_job", query.id)
    return JobNotFound(query.id) if row is None else job_of(row)


def _list_jobs(db: Db, query: ops.ListJobs, now: Now) -> Found:
    found = _find(db, query)
    if isinstance(found, TenureError):
        return found
    rows, cursor = found
    jobs = {row[0]: job_of(row) for row in db.all("read_jobs", [seq for _, seq, _ in rows])}
    return ops.Page([jobs[seq] for _, seq, _ in rows], cursor)


def _find_ids(db: Db, query: ops.FindIds, now: Now) -> Found:
    found = _find(db, query)
    if isinstance(found, TenureError):
        return found
    rows, cursor = found
    return ops.Ids([job_id for _, _, job_id in rows], cursor)


def _find(
    db: Db, query: ops.ListJobs | ops.FindIds
) -> tuple[list[tuple[int, int, str]], str | None] | TenureError:
    """The (end, seq, id) of a page of jobs, and the cursor that continues after it."""
    where = query.filter
    queues = {name: number for number, name in db.all("all_queues")}
    if where.queue is not None and where.queue not in queues:
        return QueueNotFound(where.queue)
    by_end = len(where.states) == 1 and where.states[0] in FINAL
    start = [_LAST, _LAST] if query.cursor is None else ops.parse_cursor(query.cursor, 1 + by_end)
    if isinstance(start, InvalidInput):
        return start
    params: dict[str, Any] = {
        "queue": None if where.queue is None else queues[where.queue],
        "tenant": where.tenant,
        "grp": where.group,
        "kind": where.kind,
        "finished_before": where.finished_before,
        "before_at": start[0],
        "before_seq": start[-1],
        "limit": query.limit + 1,
    }
    codes = [code for state in where.states for code in CODES[state]]
    if by_end:
        named = list(queues.values()) if where.queue is None else [params["queue"]]
        rows = db.named("find_by_end", params | {"queues": named, "state": codes[0]})
    else:
        rows = db.named("find_by_seq", params | {"states": codes or None})
    page = rows[: query.limit]
    if len(rows) <= query.limit:
        return page, None
    end, seq, _ = page[-1]
    return page, f"{end}.{seq}" if by_end else str(seq)


def _next_due(db: Db, query: ops.NextDue, now: Now) -> Found:
    """By the clock of this machine, so that whoever waits for it need not know the server's."""
    ((due, server),) = db.all("next_due", now.given, list(query.queues))
    return ops.Due(None if due is None else due - server + now.here)


def _oldest_ready(db: Db, query: ops.OldestReady, now: Now) -> Found:
    """By the clock of this machine, too."""
    ((since, server),) = db.named("oldest_ready", {"now": now.given, "queues": list(query.queues)})
    return ops.Due(None if since is None else since - server + now.here)


def _get_stats(db: Db, query: ops.GetStats, now: Now) -> Found:
    rows = db.named("stats", {"queue": query.queue})
    if query.queue is not None and not rows:
        return QueueNotFound(query.queue)
    return [
        ops.QueueStats(queue=queue, paused=paused, **_counts(counts))
        for queue, paused, *counts in rows
    ]


def _counts(counts: list[Any]) -> dict[str, int]:
    return dict(zip(_COUNTS, map(int, counts), strict=True))


def _queue(db: Db, name: str) -> int | None:
    row = db.one("queue_id", name)
    return None if row is None else int(row[0])


def _list_tenants(db: Db, query: ops.ListTenants, now: Now) -> Found:
    queue = _queue(db, query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    params = {
        "queue": queue,
        "after": query.after,
        "tenant": query.tenant,
        "limit": query.limit,
    }
    return [
        ops.TenantStats(queue=query.queue, tenant=tenant, **_counts(counts))
        for tenant, *counts in db.named("tenants", params)
    ]


def _list_groups(db: Db, query: ops.ListGroups, now: Now) -> Found:
    queue = _queue(db, query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    params = {"queue": queue, "tenant": query.tenant, "after": query.after, "limit": query.limit}
    return [
        ops.GroupStats(queue=query.queue, tenant=query.tenant, group=group, **_counts(counts))
        for group, *counts in db.named("groups", params)
    ]


def _list_limits(db: Db, query: ops.ListLimits, now: Now) -> Found:
    return [
        ops.Limit(queue, unmark(tenant), unmark(group), *bounds)
        for queue, tenant, group, *bounds in db.named("limits", {"queue": query.queue})
    ]


def _list_slots(db: Db, query: ops.ListSlots, now: Now) -> Found:
    return [ops.Slot(*row) for row in db.all("slots", query.scope, query.key, now.given)]


def _list_schedules(db: Db, query: ops.ListSchedules, now: Now) -> Found:
    return [_decode_schedule(text) for (text,) in db.all("schedules")]


def _get_timetable(db: Db, query: ops.GetTimetable, now: Now) -> Found:
    ((server, texts),) = db.all("timetable", now.given)
    return ops.Timetable(int(server), [_decode_schedule(text) for text in texts])


def _export(db: Db, query: ops.Export, now: Now) -> Found:
    start = [-1] if query.cursor is None else ops.parse_cursor(query.cursor, 1)
    if isinstance(start, InvalidInput):
        return start
    rows = db.all("export", start[0], query.limit)
    waits: dict[int, set[str]] = defaultdict(set)
    for child, parent in db.all("parents_of", [row[0] for row in rows if row[3] == WAITING]):
        waits[child].add(parent)
    entries = [entry_of(row, waits[row[0]]) for row in rows]
    return ops.Exported(entries, str(rows[-1][0]) if rows else query.cursor)


_QUERIES: dict[type[Query], Callable[[Db, Any, Now], Found]] = {
    ops.GetJob: _get_job,
    ops.ListJobs: _list_jobs,
    ops.FindIds: _find_ids,
    ops.NextDue: _next_due,
    ops.OldestReady: _oldest_ready,
    ops.GetStats: _get_stats,
    ops.ListTenants: _list_tenants,
    ops.ListGroups: _list_groups,
    ops.ListLimits: _list_limits,
    ops.ListSlots: _list_slots,
    ops.ListSchedules: _list_schedules,
    ops.GetTimetable: _get_timetable,
    ops.Export: _export,
}
