"""Lists of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tenure.engines.memory.keeping import Records
from tenure.engines.memory.memory_store import Record, handles
from tenure.errors import InvalidInput, QueueNotFound, TenureError
from tenure.model import queries
from tenure.model.job import FINAL, Job
from tenure.model.queries import Filter, Found
from tenure.model.summary import summary_of


class Listed(NamedTuple):
    """A page, and how far the model looked for it."""

    jobs: list[Job]
    cursor: str | None
    scanned: int
    scanned_to: int | None


class Lists(Records):
    """Looks through all jobs for those that match."""

    @handles(queries.ListJobs)
    def _list_jobs(self, query: queries.ListJobs, now: int) -> Found:
        page = self._page(query, queries.fitting)
        return page if isinstance(page, TenureError) else queries.Page(*page)

    @handles(queries.ListSummaries)
    def _list_summaries(self, query: queries.ListSummaries, now: int) -> Found:
        page = self._page(query)
        if isinstance(page, TenureError):
            return page
        return queries.Summaries(list(map(summary_of, page.jobs)), *page[1:])

    @handles(queries.FindIds)
    def _find_ids(self, query: queries.FindIds, now: int) -> Found:
        page = self._page(query)
        if isinstance(page, TenureError):
            return page
        return queries.Ids([job.id for job in page.jobs], page.cursor, page.scanned)

    def _page(
        self,
        query: queries.ListJobs | queries.ListSummaries | queries.FindIds,
        fitting: Callable[[list[Job]], list[Job]] = list,
    ) -> Listed | TenureError:
        where = query.filter
        if where.queue is not None and where.queue not in self._queues:
            return QueueNotFound(where.queue)
        by_end = len(where.states) == 1 and where.states[0] in FINAL and where.error is None
        start = None if query.cursor is None else queries.parse_cursor(query.cursor, 1 + by_end)
        if isinstance(start, InvalidInput):
            return start

        def place(record: Record) -> list[int]:
            return [record.job.finished_at or 0, record.seq] if by_end else [record.seq]

        found = sorted(self._matching(where), key=place, reverse=True)
        if start is not None:
            found = [record for record in found if place(record) < start]
        page = fitting([record.job for record in found[: query.limit]])
        if len(found) <= len(page):
            return Listed(page, None, len(self._records), None)
        last = page[-1]
        cursor = ".".join(str(part) for part in place(found[len(page) - 1]))
        scanned_to = last.finished_at if by_end else last.created_at
        return Listed(page, cursor, len(self._records), scanned_to)

    def _matching(self, where: Filter) -> Iterator[Record]:
        for record in self._records.values():
            job = record.job
            if (
                where.queue in (None, job.queue)
                and (not where.states or job.state in where.states)
                and where.tenant in (None, job.tenant)
                and where.group in (None, job.group)
                and where.kind in (None, job.kind)
                and where.worker in (None, job.worker)
                and (where.error is None or _failed_in(job, where.error))
                and _is_between(job.created_at, where.created_after, where.created_before)
                and _is_between(job.finished_at, where.finished_after, where.finished_before)
            ):
                yield record


def _failed_in(job: Job, group: str) -> bool:
    """Whether the last failure is in a group. Imported failures may be in none."""
    return group != "" and bool(job.errors) and job.errors[-1].group == group


def _is_between(at: int | None, after: int | None, before: int | None) -> bool:
    if after is None and before is None:
        return True
    return at is not None and (after or 0) <= at and (before is None or at < before)
