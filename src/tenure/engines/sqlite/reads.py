"""Queries on SQLite, on a read-only connection."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from tenure.engines.sql.reads import FoundRow, QueueIds, are_few
from tenure.engines.sql.snapshot import Row
from tenure.engines.sqlite.db import Db, listed
from tenure.model import queries


class Snapshot:
    """Implements tenure.engines.sql.reads.Snapshot."""

    def __init__(self, db: Db, now: int) -> None:
        self.db = db
        self._now = now

    def listed(self, values: Sequence[int] | Sequence[str]) -> str:
        return listed(values)

    def now(self) -> int:
        return self._now

    def news(self, queue: int) -> Sequence[Row]:
        return []  # the books are always up to date

    def due(self, statement: str, queues: Sequence[str]) -> int | None:
        ((due,),) = self.db.all(statement, listed(queues))
        return None if due is None else int(due)

    def slots(self, scope: str, key: str) -> Sequence[Row]:
        return self.db.all("slots", scope, key, self._now)

    def records(self, statement: str, params: dict[str, Any]) -> Sequence[Row]:
        return self.db.named(statement, params | {"now": self._now})

    def timetable(self) -> tuple[int, Sequence[str]]:
        return self._now, [text for (text,) in self.db.all("schedules")]

    def find_by_end(self, params: dict[str, Any], queues: QueueIds, code: int) -> list[FoundRow]:
        """Merge the results of all queues."""
        found = [
            self.db.named("find_by_end", params | {"queue": queue, "state": code})
            for queue in queues()
        ]
        newest = heapq.merge(*found, key=lambda row: (row[0], row[1]), reverse=True)
        return list(newest)[: params["limit"]]

    def find_by_seq(
        self, params: dict[str, Any], queues: QueueIds, codes: list[int]
    ) -> tuple[list[FoundRow], bool]:
        """Walk all jobs, or use an index if few match."""
        if codes:
            params = params | {"states": listed(codes)}
            if are_few(self.db, codes):
                return self.db.named("find_by_state", params | {"queues": listed(queues())}), False
        return self.db.named("find_by_scan", {"states": None} | params), True

    def chunks(self, seqs: Sequence[int]) -> Iterator[Sequence[int]]:
        at, size = 0, min(4, queries.JOBS_AT_ONCE)  # a page of large jobs needs few
        while at < len(seqs):
            yield seqs[at : at + size]
            at, size = at + size, min(2 * size, queries.JOBS_AT_ONCE)

    def jobs_after(self, seq: int, limit: int) -> Sequence[Row]:
        seqs = [seq for (seq,) in self.db.all("seqs_after", seq, limit)]
        return sorted(self.db.all("read_jobs", listed(seqs)), key=lambda row: int(row[0]))
