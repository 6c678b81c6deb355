"""Queries."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from heapq import nsmallest
from typing import Any

from tenure.engines.memory.memory_store import Record, handles, is_outside
from tenure.engines.memory.paging import Lists
from tenure.errors import (
    InvalidInput,
    JobNotFound,
    QueueNotFound,
)
from tenure.model import queries
from tenure.model.job import FINAL, Job
from tenure.model.queries import Found


class Reads(Lists):
    """Reads jobs and counts."""

    @handles(queries.GetJob)
    def _get_job(self, query: queries.GetJob, now: int) -> Found:
        record = self._records.get(query.id)
        if record is None or is_outside(query.grant, record.job):
            return JobNotFound(query.id)
        return record.job

    @handles(queries.GetJobs)
    def _get_jobs(self, query: queries.GetJobs, now: int) -> Found:
        there = [self._records[id].job for id in query.ids if id in self._records]
        return queries.page_of(query, there)

    @handles(queries.FindByPrefix)
    def _find_by_prefix(self, query: queries.FindByPrefix, now: int) -> Found:
        found = sorted(job_id for job_id in self._records if job_id.startswith(query.prefix))
        return queries.Ids(found[: query.limit])

    @handles(queries.FindByKey)
    def _find_by_key(self, query: queries.FindByKey, now: int) -> Found:
        if query.cursor is not None:
            return InvalidInput("cursor", f"{query.cursor!r} is not a cursor returned by a search")
        holders = [
            self._records[id] for (*_, key), id in self._unique.items() if key == query.unique_key
        ]
        return queries.Ids(sorted(r.job.id for r in holders if not is_outside(query.grant, r.job)))

    @handles(queries.ListRelated)
    def _list_related(self, query: queries.ListRelated, now: int) -> Found:
        record = self._records.get(query.id)
        if record is None or is_outside(query.grant, record.job):
            return JobNotFound(query.id)
        after = [id for id in record.job.after[: query.limit] if id in self._records]
        before = [one.job for one in self._live.values() if query.id in one.waits_for]
        return queries.related_of(query, [self._records[id].job for id in after], before)

    @handles(queries.LongestWaits)
    def _longest_waits(self, query: queries.LongestWaits, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        found = []
        for tenant in sorted(set(query.tenants)):
            oldest = self._oldest(partial(_is_of, query.queue, tenant))
            if oldest is not None:
                found.append(queries.TenantWait(tenant, max(0, now - oldest)))
        return found

    @handles(queries.NextDue)
    def _next_due(self, query: queries.NextDue, now: int) -> Found:
        theirs = [r for r in self._live.values() if r.job.queue in query.queues]
        due = [r.job.run_at for r in theirs if r.count_as == "delayed"]
        due += [r.job.lease_until for r in theirs if r.job.lease_until is not None]
        for queue in {r.job.queue for r in theirs if r.count_as == "ready"}:
            if self._rate_room(queue, now) <= 0:
                due.append(self._rate_allows_at(queue, now))
        return queries.Due(min(due, default=None))

    @handles(queries.OldestReady)
    def _oldest_ready(self, query: queries.OldestReady, now: int) -> Found:
        return queries.Due(self._oldest(lambda job: job.queue in query.queues))

    def _oldest(self, matches: Callable[[Job], bool]) -> int | None:
        """When the longest-waiting of the next jobs in line became ready."""
        heads: dict[tuple[str, str, str, int], Record] = {}
        for record in self._live.values():
            job = record.job
            if matches(job) and record.count_as == "ready":
                line = (job.queue, job.tenant, job.group, job.priority)
                if line not in heads or record.order < heads[line].order:
                    heads[line] = record
        return min([record.job.run_at for record in heads.values()], default=None)

    @handles(queries.GetStats)
    def _get_stats(self, query: queries.GetStats, now: int) -> Found:
        if query.queue is not None and query.queue not in self._queues:
            return QueueNotFound(query.queue)
        counts = self._count(
            lambda job: job.queue if query.tenants is None or job.tenant in query.tenants else None
        )
        return [
            queries.QueueStats(queue=queue, paused=self._limit(queue).paused, **counts[queue])
            for queue in sorted(self._queues)
            if query.queue in (None, queue)
        ]

    @handles(queries.ListTenants)
    def _list_tenants(self, query: queries.ListTenants, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        found = []
        for tenant in _names(self._of_tenant, query.queue, query.tenant, query.after, query.limit):
            jobs = self._of_tenant[query.queue, tenant].values()
            counts = Counter(record.count_as for record in jobs)
            found.append(queries.TenantStats(queue=query.queue, tenant=tenant, **counts))
        return found

    @handles(queries.ListGroups)
    def _list_groups(self, query: queries.ListGroups, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        counts = self._count(lambda job: (job.queue, job.tenant, job.group))
        return [
            queries.GroupStats(
                queue=queue, tenant=tenant, group=group, **counts[queue, tenant, group]
            )
            for queue, tenant, group in sorted(counts)
            if (queue, tenant) == (query.queue, query.tenant)
            and group
            and (query.after is None or group > query.after)
        ][: query.limit]

    @handles(queries.ListGroupTotals)
    def _list_group_totals(self, query: queries.ListGroupTotals, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        found = []
        for group in _names(self._in_group, query.queue, query.group, query.after, query.limit):
            jobs = self._in_group[query.queue, group].values()
            finished = sum(record.job.state in FINAL for record in jobs)
            found.append(queries.GroupTotal(query.queue, group, len(jobs) - finished, finished))
        return found

    def _count(self, key: Callable[[Job], Any]) -> dict[Any, Counter[str]]:
        counts: dict[Any, Counter[str]] = defaultdict(Counter)
        for record in self._records.values():
            counts[key(record.job)][record.count_as] += 1
        return counts

    @handles(queries.ListLimits)
    def _list_limits(self, query: queries.ListLimits, now: int) -> Found:
        return sorted(
            (x for x in self._limits.values() if query.queue in (None, x.queue)),
            key=lambda x: (x.queue, x.tenant is not None, x.tenant, x.group is not None, x.group),
        )

    @handles(queries.ListSlots)
    def _list_slots(self, query: queries.ListSlots, now: int) -> Found:
        slots = self._slots.get((query.scope, query.key), {})
        return [queries.Slot(h, slots[h]) for h in sorted(slots) if slots[h] > now]

    @handles(queries.ListSchedules)
    def _list_schedules(self, query: queries.ListSchedules, now: int) -> Found:
        return [self._schedules[name] for name in sorted(self._schedules)]

    @handles(queries.GetTimetable)
    def _get_timetable(self, query: queries.GetTimetable, now: int) -> Found:
        return queries.Timetable(now, [self._schedules[name] for name in sorted(self._schedules)])

    @handles(queries.Export)
    def _export(self, query: queries.Export, now: int) -> Found:
        if query.ids is not None:
            there = [self._records[id].entry for id in query.ids if id in self._records]
            return queries.Exported(there, None)
        start = [0] if query.cursor is None else queries.parse_cursor(query.cursor, 1)
        if isinstance(start, InvalidInput):
            return start
        later = [record for record in self._records.values() if record.seq > start[0]]
        page = later[: query.limit]
        cursor = str(page[-1].seq) if page else query.cursor
        return queries.Exported([record.entry for record in page], cursor)


def _is_of(queue: str, tenant: str, job: Job) -> bool:
    return (job.queue, job.tenant) == (queue, tenant)


def _names(
    jobs: dict[tuple[str, str], dict[str, Record]],
    queue: str,
    only: str | None,
    after: str | None,
    limit: int,
) -> list[str]:
    """The first names in a queue that have jobs, starting after a name, or a single one."""
    keys = jobs if only is None else [(queue, only)] if (queue, only) in jobs else []
    names = (name for of, name in keys if of == queue and (after is None or name > after))
    return nsmallest(limit, names)
