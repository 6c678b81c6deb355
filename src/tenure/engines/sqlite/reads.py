"""Queries on SQLite, on a read-only connection."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from tenure.engines.sql.job_lists import FoundRow
from tenure.engines.sql.snapshot import Row
from tenure.engines.sqlite.db import Db, listed
from tenure.engines.sqlite.oldest import OldestReady
from tenure.model import queries
from tenure.model.summary import PREVIEW_BYTES, preview_of


class Snapshot:
    """Implements tenure.engines.sql.reads.Snapshot."""

    def __init__(self, db: Db, now: int, oldest: OldestReady) -> None:
        self.db = db
        self._now = now
        self._oldest = oldest

    def listed(self, values: Sequence[int] | Sequence[str]) -> str:
        return listed(values)

    def now(self) -> int:
        return self._now

    def news(self, queue: int) -> Sequence[Row]:
        return []  # the books are always up to date

    def next_due(self, queues: Sequence[str]) -> int | None:
        ((due,),) = self.db.named("next_due", {"queues": listed(queues), "now": self._now})
        return None if due is None else int(due)

    def oldest_ready(self, queues: Sequence[str]) -> int | None:
        ids = [row[0] for queue in queues if (row := self.db.one("queue_id", queue)) is not None]
        found = [self._oldest.find(self.db, queue, self._now) for queue in ids]
        return min([since for since in found if since is not None], default=None)

    def timed(self, statement: str, params: dict[str, Any]) -> Sequence[Row]:
        return self.db.named(statement, params | {"now": self._now})

    def timetable(self) -> tuple[int, Sequence[str]]:
        return self._now, [text for (text,) in self.db.all("schedules")]

    def find_by_end(self, params: dict[str, Any], queues: list[int]) -> list[FoundRow]:
        """Merge the results of all queues."""
        found = [self.db.named("find_by_end", params | {"queue": queue}) for queue in queues]
        newest = heapq.merge(*found, key=lambda row: (row[0], row[1]), reverse=True)
        return list(newest)[: params["limit"]]

    def floor_by_end(
        self, params: dict[str, Any], queues: list[int], skip: int
    ) -> tuple[int, int] | None:
        params = params | {"skip": skip}
        found = [self.db.named("floor_by_end", params | {"queue": queue}) for queue in queues]
        return max([(row[0], row[1]) for rows in found for row in rows], default=None)

    def count_by_end(self, params: dict[str, Any], queues: list[int]) -> int:
        counted = [self.db.named("count_by_end", params | {"queue": queue}) for queue in queues]
        return sum(count for ((count,),) in counted)

    def read_summaries(self, seqs: Sequence[int]) -> Sequence[Row]:
        """Only the start of each payload is read."""
        rows = []
        for *columns, _, _, has_result, error in self.db.all("read_summaries", listed(seqs)):
            start, size = self.db.start_of("tenure_jobs", "payload", columns[0], PREVIEW_BYTES)
            rows.append((*columns, preview_of(start), size, has_result, error))
        return rows

    def chunks(self, seqs: Sequence[int]) -> Iterator[Sequence[int]]:
        at, size = 0, min(4, queries.JOBS_AT_ONCE)  # a page of large jobs needs few
        while at < len(seqs):
            yield seqs[at : at + size]
            at, size = at + size, min(2 * size, queries.JOBS_AT_ONCE)
