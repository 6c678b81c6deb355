"""Calls that list jobs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenure.model import queries
from tenure.model.fields import moment_ms, validated
from tenure.model.ops import good
from tenure.model.queries import Filter
from tenure.queue.arguments import states_of
from tenure.queue.sync_async import Caller, Steps, awaiting, both

MOST_SCANS = 100  # queries for one page of jobs, each of which looks at MOST_SCANNED jobs


def filter_by(
    queue: str | None = None,
    state: str | Sequence[str] | None = None,
    tenant: str | None = None,
    group: str | None = None,
    kind: str | None = None,
    worker: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    finished_after: datetime | None = None,
    finished_before: datetime | None = None,
    error: str | None = None,
) -> Filter:
    """The filter that the arguments of a call describe."""

    def ms(field: str, at: datetime | None) -> int | None:
        return None if at is None else moment_ms(field, at)

    return validated(
        Filter(
            queue,
            states_of(state),
            tenant,
            group,
            kind,
            ms("finished_before", finished_before),
            ms("finished_after", finished_after),
            ms("created_before", created_before),
            ms("created_after", created_after),
            worker,
            error,
        )
    )


class Listing(Caller):
    """A part of Calls."""

    def _jobs(
        self,
        *,
        queue: str | None = None,
        state: str | Sequence[str] | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        worker: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        finished_after: datetime | None = None,
        finished_before: datetime | None = None,
        error: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Steps[queries.Page]:
        """Return a page of jobs, newest first; with a single final state, last finished first.
        Pass its `cursor` to get the next page.

        worker: jobs that this worker has, or had when they ended. error: jobs whose last failure
        belongs to this group; these are listed newest first, whatever their state. `scanned` of
        the page says how many jobs were looked at, and `scanned_to` how far back the list goes.
        """
        where = filter_by(
            queue, state, tenant, group, kind, worker, created_after, created_before,
            finished_after, finished_before, error,
        )  # fmt: skip
        return (yield from self._jobs_of(where, limit, cursor))

    def _jobs_of(
        self, where: Filter, limit: int = 50, cursor: str | None = None
    ) -> Steps[queries.Page]:
        """Return a page of jobs that match a filter."""
        page = good((yield validated(queries.ListJobs(where, limit, cursor))), queries.Page)
        for _ in range(MOST_SCANS):
            left = limit - len(page.jobs)
            is_full = left == 0 or sum(map(queries.bytes_of, page.jobs)) >= queries.PAGE_BYTES
            if page.cursor is None or is_full:
                break
            more = good((yield queries.ListJobs(where, left, page.cursor)), queries.Page)
            scanned = page.scanned + more.scanned
            page = queries.Page(page.jobs + more.jobs, more.cursor, scanned, more.scanned_to)
        return page

    def _summaries(
        self,
        *,
        queue: str | None = None,
        state: str | Sequence[str] | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        worker: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        finished_after: datetime | None = None,
        finished_before: datetime | None = None,
        error: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Steps[queries.Summaries]:
        """Return a page of jobs without payloads, results and tracebacks, in the order of `jobs`.

        A call looks at 10,000 jobs at most, so it takes milliseconds in a store of any size. If few
        jobs match, the page may be short, or empty: `scanned_to` says how far back it goes, and its
        `cursor` continues there.
        """
        where = filter_by(
            queue, state, tenant, group, kind, worker, created_after, created_before,
            finished_after, finished_before, error,
        )  # fmt: skip
        return (yield from self._summaries_of(where, limit, cursor))

    def _summaries_of(
        self, where: Filter, limit: int = 50, cursor: str | None = None
    ) -> Steps[queries.Summaries]:
        """Return a page of jobs that match a filter."""
        query = validated(queries.ListSummaries(where, limit, cursor))
        return good((yield query), queries.Summaries)

    jobs, ajobs = both(_jobs)
    summaries, asummaries = both(_summaries)
    _ajobs_of: Final = awaiting(_jobs_of)  # for the service, which parses a Filter
    _asummaries_of: Final = awaiting(_summaries_of)
