"""Queries: each a read of one snapshot, on a connection that only reads."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from tenure import ops
from tenure.engines.sql.limits import unmark
from tenure.engines.sql.rows import CODES, entry_of, job_of
from tenure.engines.sqlite.db import Db, listed
from tenure.errors import InvalidInput, JobNotFound, QueueNotFound, TenureError
from tenure.job import FINAL
from tenure.ops import Found, Query

_LAST = 2**63 - 1
_COUNTS = [field.name for field in msgspec.structs.fields(ops.Counts)]
_decode_schedule = msgspec.json.Decoder(ops.Schedule).decode


def read(db: Db, query: Query, now: int) -> Found:
    """The answer to a query."""
    return _QUERIES[type(query)](db, query, now)


def _get_job(db: Db, query: ops.GetJob, now: int) -> Found:
    row = db.one("read_job", query.id)
    return JobNotFound(query.id) if row is None else job_of(row)


def _list_jobs(db: Db, query: ops.ListJobs, now: int) -> Found:
    found = _find(db, query)
    if isinstance(found, TenureError):
        return found
    rows, cursor = found
    jobs = {row[0]: job_of(row) for row in db.all("read_jobs", listed(seq for _, seq, _ in rows))}
    return ops.Page([jobs[seq] for _, seq, _ in rows], cursor)


def _find_ids(db: Db, query: ops.FindIds, now: int) -> Found:
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
    queues = {name: number for number, name, *_ in db.all("queues")}
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
    if by_end:
        named = list(queues.values()) if where.queue is None else [params["queue"]]
        rows = _by_end(db, params, named, CODES[where.states[0]][0])
    else:
        rows = _by_seq(db, params, where, list(queues.values()))
    page = rows[: query.limit]
    if len(rows) <= query.limit:
        return page, None
    end, seq, _ = page[-1]
    return page, f"{end}.{seq}" if by_end else str(seq)


def _by_end(db: Db, params: dict[str, Any], queues: list[int], code: int) -> list[Any]:
    """Jobs of one final state, the last to finish first, merged over the queues."""
    found = [db.named("find_by_end", params | {"queue": queue, "state": code}) for queue in queues]
    newest = heapq.merge(*found, key=lambda row: (row[0], row[1]), reverse=True)
    return list(newest)[: params["limit"]]


def _by_seq(db: Db, params: dict[str, Any], where: ops.Filter, queues: list[int]) -> list[Any]:
    """Jobs, newest first: by walking all of them, or from an index where few are wanted."""
    codes = [code for state in where.states for code in CODES[state]]
    if codes:
        params["states"] = listed(codes)
        (counts,) = db.all("totals")
        if sum(counts[code] for code in codes) * 10 < sum(counts):
            wanted = queues if where.queue is None else [params["queue"]]
            return db.named("find_by_state", params | {"queues": listed(wanted)})
    return db.named("find_by_scan", params | {"states": params.get("states")})


def _next_due(db: Db, query: ops.NextDue, now: int) -> Found:
    return ops.Due(*db.all("next_due", listed(query.queues))[0])


def _oldest_ready(db: Db, query: ops.OldestReady, now: int) -> Found:
    return ops.Due(*db.all("oldest_ready", listed(query.queues))[0])


def _get_stats(db: Db, query: ops.GetStats, now: int) -> Found:
    rows = db.all("stats", query.queue)
    if query.queue is not None and not rows:
        return QueueNotFound(query.queue)
    return [
        ops.QueueStats(queue=queue, paused=bool(paused), **_counts(counts))
        for queue, paused, *counts in rows
    ]


def _counts(counts: list[int]) -> dict[str, int]:
    return dict(zip(_COUNTS, counts, strict=True))


def _queue(db: Db, name: str) -> int | None:
    row = db.one("queue_by_name", name)
    return None if row is None else int(row[0])


def _list_tenants(db: Db, query: ops.ListTenants, now: int) -> Found:
    queue = _queue(db, query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    return [
        ops.TenantStats(queue=query.queue, tenant=tenant, **_counts(counts))
        for tenant, *counts in db.all("tenants", queue, query.after, query.limit, query.tenant)
    ]


def _list_groups(db: Db, query: ops.ListGroups, now: int) -> Found:
    queue = _queue(db, query.queue)
    if queue is None:
        return QueueNotFound(query.queue)
    return [
        ops.GroupStats(queue=query.queue, tenant=query.tenant, group=group, **_counts(counts))
        for group, *counts in db.all("groups", queue, query.tenant, query.after, query.limit)
    ]


def _list_limits(db: Db, query: ops.ListLimits, now: int) -> Found:
    return [
        ops.Limit(queue, unmark(t), unmark(g), concurrency, rate, per_ms, weight, bool(paused))
        for queue, t, g, concurrency, rate, per_ms, weight, paused in db.all("limits", query.queue)
    ]


def _list_slots(db: Db, query: ops.ListSlots, now: int) -> Found:
    return [ops.Slot(*row) for row in db.all("slots", query.scope, query.key, now)]


def _list_schedules(db: Db, query: ops.ListSchedules, now: int) -> Found:
    return _schedules(db)


def _get_timetable(db: Db, query: ops.GetTimetable, now: int) -> Found:
    return ops.Timetable(now, _schedules(db))


def _schedules(db: Db) -> list[ops.Schedule]:
    return [_decode_schedule(text) for (text,) in db.all("schedules")]


def _export(db: Db, query: ops.Export, now: int) -> Found:
    start = [-1] if query.cursor is None else ops.parse_cursor(query.cursor, 1)
    if isinstance(start, InvalidInput):
        return start
    seqs = [seq for (seq,) in db.all("seqs_after", start[0], query.limit)]
    waits: dict[int, set[str]] = defaultdict(set)
    for child, parent in db.all("parents_of", listed(seqs)):
        waits[child].add(parent)
    rows = sorted(db.all("read_jobs", listed(seqs)), key=lambda row: int(row[0]))
    entries = [entry_of(row, waits[row[0]]) for row in rows]
    return ops.Exported(entries, str(seqs[-1]) if seqs else query.cursor)


_QUERIES: dict[type[Query], Callable[[Db, Any, int], Found]] = {
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
