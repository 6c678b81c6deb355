"""Lists of jobs over several shards: merged by time, with a cursor that has the place on each.

Each shard's list is in its own order; the one whose next job is the newest comes next. If all jobs
that were read from a shard are used and the shard has more, its next job is not known, but it is no
newer than the time back to which the shard has looked: the page ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.engines.sharded.cluster import Cluster
from tenure.engines.sharded.cursors import Places, cursor_of, places_of
from tenure.engines.sharded.shard import Shard
from tenure.errors import InvalidInput, NotFound, TenureError
from tenure.model import queries
from tenure.model.job import Job
from tenure.model.queries import Filter, Found
from tenure.model.summary import Summary

ListQuery = queries.ListJobs | queries.ListSummaries | queries.FindIds
_TRIES = 5  # to read a page while jobs are added to the lists or leave them


class Source:
    """The page of one shard, and how much of it has been used."""

    def __init__(self, shard: Shard, start: str | None, page: Any) -> None:
        self.shard = shard
        self.start = start
        self.jobs: Sequence[Any] = page.jobs
        self.cursor: str | None = page.cursor
        self.scanned: int = page.scanned
        self.scanned_to: int | None = page.scanned_to
        self.used = 0

    @property
    def next_job(self) -> Any | None:
        return self.jobs[self.used] if self.used < len(self.jobs) else None

    def next_at(self, where: Filter) -> int | None:
        """The time of the next job, or an upper bound of it; None if there is none."""
        if self.next_job is not None:
            return _time_of(self.next_job, where)
        return None if self.cursor is None else self.scanned_to


# path: a list over shards
def read(cluster: Cluster, query: ListQuery, of: Sequence[Shard] | None) -> Found:
    """A page of the merged list. of: the shards that have matching jobs; None for all."""
    among = list(cluster.shards if of is None else of)
    places: Places = {cluster.shards.index(shard): None for shard in among}
    if query.cursor is not None:
        known, places = places, places_of(query.cursor, len(cluster.shards))
        if not places.keys() <= known.keys():
            raise InvalidInput("cursor", "is outdated: the tenant has been moved; begin again")
    for _ in range(_TRIES):
        sources, absent = _read_pages(cluster, query, places)
        if not sources and len(absent) == len(among):
            elsewhere = of is not None and cluster.has_queue(query.filter.queue)
            return _page(query, [], None, []) if elsewhere else absent[0]
        jobs = _merged(query, sources)
        left, lost = _places_after(cluster, query, sources)
        if not lost:
            break
    return _page(query, jobs, cursor_of(left) if left else None, sources)


def _merged(query: ListQuery, sources: Sequence[Source]) -> list[Any]:
    """As many jobs as fit on a page. Notes in each source how many of its jobs are used."""
    size = 0
    jobs: list[Any] = []
    while len(jobs) < query.limit and size < queries.PAGE_BYTES:
        source = _newest(sources, query.filter)
        if source is None or source.next_job is None:
            break
        job = source.next_job
        jobs.append(job)
        size += queries.bytes_of(job) if isinstance(job, Job) else 0
        source.used += 1
    return jobs


def _read_pages(
    cluster: Cluster, query: ListQuery, places: Places
) -> tuple[list[Source], list[TenureError]]:
    starts = {cluster.shards[number].name: start for number, start in places.items()}
    among = [shard for shard in cluster.shards if shard.name in starts]
    pages = cluster.each(
        lambda shard: _page_of(shard, query, starts[shard.name], query.limit), among
    )
    sources: list[Source] = []
    absent: list[TenureError] = []
    for shard, page in zip(among, pages, strict=True):
        if isinstance(page, NotFound):
            absent.append(page)
        elif isinstance(page, TenureError):
            raise page
        else:
            sources.append(Source(shard, starts[shard.name], page))
    return sources, absent


def _page_of(shard: Shard, query: ListQuery, start: str | None, limit: int) -> Any:
    """A page of one shard. Ids come with their times, to be merged."""
    kind = queries.ListJobs if isinstance(query, queries.ListJobs) else queries.ListSummaries
    found = shard.read(kind(query.filter, limit, start))
    if isinstance(found, TenureError):
        raise found
    return found


def _newest(sources: Sequence[Source], where: Filter) -> Source | None:
    """The source whose next job is the newest; of several, one whose job is not known, or the
    first."""
    best: Source | None = None
    best_at = -1
    for source in sources:
        at = source.next_at(where)
        if at is not None and (at > best_at or (at == best_at and source.next_job is None)):
            best, best_at = source, at
    return best


def _time_of(job: Job | Summary, where: Filter) -> int:
    return int((job.finished_at or 0) if where.by_end else job.created_at)


def _places_after(
    cluster: Cluster, query: ListQuery, sources: Sequence[Source]
) -> tuple[Places, bool]:
    """Where the next page begins, and whether it is not known where this one ended on a shard. Then
    the next one begins there where this one did, so that no job is left out."""
    places: Places = {}
    lost = False
    for source in sources:
        number = cluster.shards.index(source.shard)
        end = source if source.used == len(source.jobs) else _used_part(query, source)
        if end is None:
            places[number] = source.start
            lost = lost or source.used > 0
        elif end.cursor is not None:
            places[number] = end.cursor
    return places, lost


def _used_part(query: ListQuery, source: Source) -> Any | None:
    """The page of the jobs that are used. None if there are none, or if it ends with another job
    by now, because jobs were added before it or have left the list."""
    if source.used == 0:
        return None
    part = _page_of(source.shard, query, source.start, source.used)
    last = source.jobs[source.used - 1]
    return part if part.jobs and part.jobs[-1].id == last.id else None


def _page(query: ListQuery, jobs: list[Any], cursor: str | None, sources: list[Source]) -> Found:
    scanned = sum(source.scanned for source in sources)
    left = [source.next_at(query.filter) for source in sources]
    scanned_to = max([at for at in left if at is not None], default=None)
    if isinstance(query, queries.FindIds):
        return queries.Ids([job.id for job in jobs], cursor, scanned)
    if isinstance(query, queries.ListJobs):
        return queries.Page(jobs, cursor, scanned, scanned_to)
    return queries.Summaries(jobs, cursor, scanned, scanned_to)
