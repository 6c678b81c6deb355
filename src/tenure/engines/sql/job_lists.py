"""Lists of jobs: which index serves a filter, and how far a list may look.

Jobs in one final state are found by the index on when they finished, those of an error group by an
index of their own, a few others by the index on states, and the rest by walking through the jobs
from the newest to the oldest. A list looks at MOST_SCANNED jobs, and then says how far it got.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tenure.engines.sql.rows import CODES, READY, STATES, job_of, summary_of_row
from tenure.engines.sql.snapshot import Row, StoreSnapshot
from tenure.errors import InvalidInput, QueueNotFound, TenureError
from tenure.model import queries
from tenure.model.job import FINAL, Job
from tenure.model.ops import BACK_MS
from tenure.model.queries import Filter, Found
from tenure.model.summary import Summary

FoundRow = tuple[int, int, str]  # when it finished or was created, seq, id
ListQuery = queries.ListJobs | queries.ListSummaries | queries.FindIds

LAST = 2**63 - 1
_MANY_LANES = 1_000  # a filter that more lanes match is applied to each job
_ENDED = tuple(code for state in FINAL for code in CODES[state])


class ListSnapshot(StoreSnapshot, Protocol):
    """What lists need of a snapshot."""

    def chunks(self, seqs: Sequence[int]) -> Iterator[Sequence[int]]:
        """These jobs in parts, each small enough to be read at once whatever the sizes are."""

    def read_summaries(self, seqs: Sequence[int]) -> Sequence[Row]:
        """Rows for `summary_of_row`."""

    def find_by_end(self, params: dict[str, Any], queues: list[int]) -> list[FoundRow]:
        """Jobs in one final state, most recently finished first. Of each queue, `most` are looked
        at."""

    def floor_by_end(
        self, params: dict[str, Any], queues: list[int], skip: int
    ) -> tuple[int, int] | None:
        """Where `find_by_end` stopped first, as `at` and seq, after it skipped this many jobs of a
        queue; None if it saw all."""

    def count_by_end(self, params: dict[str, Any], queues: list[int]) -> int:
        """How many jobs there are down to `floor_at` and `floor_seq`."""


class Listed(NamedTuple):
    """A page of a list."""

    rows: list[FoundRow]
    cursor: str | None = None
    scanned: int = 0
    scanned_to: int | None = None


def list_jobs(snapshot: ListSnapshot, query: queries.ListJobs) -> Found:
    page = find(snapshot, query)
    if isinstance(page, TenureError):
        return page
    rows, cursor, scanned, scanned_to = page
    jobs = queries.fitting(read_jobs(snapshot, [seq for _, seq, _ in rows]))
    if len(jobs) < len(rows):
        last = rows[len(jobs) - 1]
        cursor, scanned_to = _cursor_after(query.filter, last), last[0]
    return queries.Page(jobs, cursor, scanned, scanned_to)


def read_jobs(snapshot: ListSnapshot, seqs: list[int]) -> Iterator[Job]:
    for some in snapshot.chunks(seqs):
        rows = {row[0]: row for row in snapshot.db.all("read_jobs", snapshot.listed(some))}
        for seq in some:
            yield job_of(rows[seq])


def list_summaries(snapshot: ListSnapshot, query: queries.ListSummaries) -> Found:
    page = find(snapshot, query)
    if isinstance(page, TenureError):
        return page
    seqs = [seq for _, seq, _ in page.rows]
    return queries.Summaries(read_summaries(snapshot, seqs), *page[1:])


def read_summaries(snapshot: ListSnapshot, seqs: list[int]) -> list[Summary]:
    """The summaries of jobs, in this order."""
    rows = {row[0]: row for row in snapshot.read_summaries(seqs)}
    return [summary_of_row(rows[seq]) for seq in seqs]


def find_ids(snapshot: ListSnapshot, query: queries.FindIds) -> Found:
    page = find(snapshot, query)
    if isinstance(page, TenureError):
        return page
    return queries.Ids([job_id for _, _, job_id in page.rows], page.cursor, page.scanned)


def find(snapshot: ListSnapshot, query: ListQuery) -> Listed | TenureError:
    """A page of jobs that match."""
    where, db = query.filter, snapshot.db
    queue = None if where.queue is None else db.one("queue_id", where.queue)
    if where.queue is not None and queue is None:
        return QueueNotFound(where.queue)
    by_end = where.by_end
    start = [LAST, LAST] if query.cursor is None else queries.parse_cursor(query.cursor, 1 + by_end)
    if isinstance(start, InvalidInput):
        return start
    search = _Search(snapshot, query, None if queue is None else queue[0])
    if not search.can_match:
        return Listed([])
    return search.by_end(start[0], start[1]) if by_end else search.by_seq(start[-1])


def _cursor_after(where: Filter, last: FoundRow) -> str:
    end, seq, _ = last
    return f"{end}.{seq}" if where.by_end else str(seq)


def _looked_up() -> int:
    """How many jobs a list looks at, if each must be looked up by itself, which takes longer."""
    return -(-queries.MOST_SCANNED // 3)


class _Search:
    """The parameters of one list."""

    def __init__(self, snapshot: ListSnapshot, query: ListQuery, queue: int | None) -> None:
        self._snapshot, self._db = snapshot, snapshot.db
        self._where: Filter = query.filter
        self._limit: int = query.limit
        self._queue = queue
        self._codes = self._wanted_codes()
        self._lanes = None if self._needs_no_lanes() else self._matching_lanes()
        where, resolved = self._where, self._lanes is not None
        self._params: dict[str, Any] = {
            "queue": queue,
            "lanes": None if self._lanes is None else snapshot.listed(self._lanes),
            "tenant": None if resolved else where.tenant,
            "grp": None if resolved else where.group,
            "kind": where.kind,
            "worker": where.worker,
            "created_after": where.created_after or 0,
            "created_before": LAST if where.created_before is None else where.created_before,
            "limit": query.limit + 1,
        }

    def _needs_no_lanes(self) -> bool:
        """Whether an index has just the jobs of the queue, whatever their lanes."""
        where = self._where
        if self._queue is None or where.tenant is not None or where.group is not None:
            return False
        if where.by_end:
            return True
        if READY in self._codes or where.error is not None:
            return False
        counts = self._counts(None)
        return sum(counts[code] for code in self._codes) <= queries.MOST_SORTED

    def _matching_lanes(self) -> list[int] | None:
        """The lanes of the queue, tenant and group; None if all match, or too many."""
        where = self._where
        if where.queue is None and where.tenant is None and where.group is None:
            return None
        params = {"queue": self._queue, "tenant": where.tenant, "grp": where.group}
        found = self._db.named("lanes_within", params | {"limit": _MANY_LANES + 1})
        return None if len(found) > _MANY_LANES else [lane for (lane,) in found]

    def _wanted_codes(self) -> list[int]:
        where = self._where
        if where.states:
            return [code for state in where.states for code in CODES[state]]
        if where.finished_after is not None or where.finished_before is not None:
            return list(_ENDED)
        return list(range(len(STATES)))

    @property
    def can_match(self) -> bool:
        """Whether the filter can match any job."""
        return self._lanes is None or bool(self._lanes)

    # Jobs in one final state

    def by_end(self, before_at: int, before_seq: int) -> Listed:
        where, snapshot = self._where, self._snapshot
        if where.finished_before is not None and before_at >= where.finished_before:
            before_at, before_seq = where.finished_before - 1, LAST
        queues = self._queue_ids()
        looked = _looked_up()
        most = max(min(50, looked), looked // max(1, len(queues)))
        params = self._params | {
            "state": self._codes[0],
            "from_at": where.finished_after or 0,
            "before_at": before_at,
            "before_seq": before_seq,
            "most": most,
        }
        rows = snapshot.find_by_end(params, queues)
        is_full = len(queues) == 1 and len(rows) > self._limit
        floor = None if is_full else snapshot.floor_by_end(params, queues, most - 1)
        if floor is not None:  # below it, only a part of the jobs was looked at
            rows = [row for row in rows if row[:2] >= floor]
        page = rows[: self._limit]
        if len(rows) > self._limit:
            floor = page[-1][:2]
        at, seq = (0, 0) if floor is None else floor
        scanned = snapshot.count_by_end(params | {"floor_at": at, "floor_seq": seq}, queues)
        if floor is None:
            return Listed(page, None, scanned)
        return Listed(page, f"{at}.{seq}", scanned, at)

    def _queue_ids(self) -> list[int]:
        if self._queue is not None:
            return [self._queue]
        return [number for number, _ in self._db.all("queues")]

    # Others

    def by_seq(self, before_seq: int) -> Listed:
        where = self._where
        all_codes = len(self._codes) == len(STATES)
        params = self._params | {
            "states": None if all_codes else self._snapshot.listed(self._codes),
            "finished_after": where.finished_after,
            "finished_before": where.finished_before,
            "from_seq": 0,
            "before_seq": before_seq,
            "most": queries.MOST_SCANNED,
        }
        if where.error is not None:
            return self._by_walk(params | {"error": where.error, "most": _looked_up()}, "error")
        few = self._indexed(all_codes)
        if few is not None:
            return self._by_state(params, few)
        return self._by_walk(params | self._seqs_created(before_seq), "seq")

    def _indexed(self, all_codes: bool) -> int | None:
        """How many jobs the index on states has for this filter; None if there are many."""
        if all_codes and self._queue is None and self._lanes is None:
            return None
        counts = self._counts(None)
        of_lanes = READY in self._codes and self._lanes is not None
        ready = self._counts(self._lanes) if of_lanes else counts
        found = sum((ready if code == READY else counts)[code] for code in self._codes)
        return found if found <= queries.MOST_SORTED else None

    def _counts(self, lanes: list[int] | None) -> list[int]:
        """Jobs by state, in these lanes, or in the queue."""
        if lanes is not None:
            (row,) = self._db.all("lane_counts", self._snapshot.listed(lanes))
        elif self._queue is None:
            (row,) = self._db.all("totals")
        else:
            ((_, _, *counts),) = self._db.named("stats", {"queue": self._where.queue})
            row = tuple(counts)
        return [int(count) for count in row]

    def _by_state(self, params: dict[str, Any], candidates: int) -> Listed:
        others = [code for code in self._codes if code != READY]
        params |= {
            "queues": self._snapshot.listed(self._queue_ids()),
            "codes": self._snapshot.listed(others),
            "ready": READY in self._codes,
            "most": LAST,
        }
        rows = list(self._db.named("find_by_state", params))
        page = rows[: self._limit]
        if len(rows) <= self._limit:
            return Listed(page, None, candidates)
        return Listed(page, str(page[-1][1]), candidates, page[-1][0])

    def _by_walk(self, params: dict[str, Any], way: str) -> Listed:
        """Walk through all jobs, or those of an error group, from the newest to the oldest."""
        rows = list(self._db.named(f"find_by_{way}", params))
        page = rows[: self._limit]
        start = {name: params.get(name) for name in ("from_seq", "before_seq", "error")}
        if len(rows) > self._limit:
            at, seq, _ = page[-1]
            ((scanned,),) = self._db.named(f"count_by_{way}", start | {"from_seq": seq})
            return Listed(page, str(seq), scanned, at)
        most = params["most"]
        stopped = self._db.named(f"floor_by_{way}", start | {"skip": most - 1})
        if not stopped:
            ((scanned,),) = self._db.named(f"count_by_{way}", start)
            return Listed(page, None, scanned)
        ((seq, at),) = stopped
        return Listed(page, str(seq), most, at)

    def _seqs_created(self, before_seq: int) -> dict[str, int]:
        """The seqs of jobs that were created between the times of the filter. Seqs grow with time,
        except where a clock was set back, which is expected to be by less than BACK_MS. A store
        that is small enough for one scan is not searched: it may have imported jobs."""
        where = self._where
        ends = [at for at in (where.created_before, where.finished_before) if at is not None]
        if not ends and where.created_after is None:
            return {}
        everything = {"from_seq": 0, "before_seq": LAST, "skip": queries.MOST_SCANNED}
        if not self._db.named("floor_by_seq", everything):
            return {}
        found: dict[str, int] = {}
        if ends:
            found["before_seq"] = min(before_seq, self._first_seq(min(ends) + BACK_MS))
        if where.created_after is not None:
            found["from_seq"] = self._first_seq(where.created_after - BACK_MS)
        return found

    def _first_seq(self, at: int) -> int:
        """The first seq of a job that was created at this time or later, by binary search."""
        low = 0
        last = self._db.one("newest_job")
        if last is None or last[1] < at:
            return LAST
        high: int = last[0]
        while low < high:
            middle = (low + high) // 2
            row = self._db.one("job_from", middle)
            assert row is not None
            if row[1] < at:
                low = row[0] + 1
            else:
                high = middle
        return low
