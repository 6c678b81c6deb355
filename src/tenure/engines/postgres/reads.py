"""Queries on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tenure.engines.postgres.session import Db
from tenure.engines.sql.job_lists import FoundRow
from tenure.engines.sql.snapshot import Row
from tenure.model import queries

_FEW = 16  # jobs that are read without asking for their sizes first


class Snapshot:
    """Implements tenure.engines.sql.reads.Snapshot. `given` is the time to use instead of the
    server's, if any; `here` is this machine's time."""

    def __init__(self, db: Db, given: int | None, here: int) -> None:
        self.db = db
        self._given = given
        self._here = here

    def listed(self, values: Sequence[int] | Sequence[str]) -> list[int] | list[str]:
        return list(values)  # type: ignore[return-value]

    def now(self) -> int:
        return int(self.db.all("why_now", self._given)[0][0])

    def news(self, queue: int) -> Sequence[Row]:
        return self.db.named("why_news", {"queue": queue})

    def next_due(self, queues: Sequence[str]) -> int | None:
        return self._time_of("next_due", queues)

    def oldest_ready(self, queues: Sequence[str]) -> int | None:
        return self._time_of("oldest_ready", queues)

    def _time_of(self, statement: str, queues: Sequence[str]) -> int | None:
        """By this machine's clock, so that a caller waiting for it need not know the server's."""
        ((due, server),) = self.db.all(statement, self._given, list(queues))
        return None if due is None else int(due - server + self._here)

    def timed(self, statement: str, params: dict[str, Any]) -> Sequence[Row]:
        return self.db.named(statement, params | {"given": self._given})

    def timetable(self) -> tuple[int, Sequence[str]]:
        ((now, texts),) = self.db.all("timetable", self._given)
        return now, texts

    def find_by_end(self, params: dict[str, Any], queues: list[int]) -> list[FoundRow]:
        found: list[FoundRow] = self.db.named("find_by_end", params | {"queues": queues})
        return found

    def floor_by_end(
        self, params: dict[str, Any], queues: list[int], skip: int
    ) -> tuple[int, int] | None:
        found = self.db.named("floor_by_end", params | {"queues": queues, "skip": skip})
        return max([(at, seq) for at, seq in found], default=None)

    def count_by_end(self, params: dict[str, Any], queues: list[int]) -> int:
        ((count,),) = self.db.named("count_by_end", params | {"queues": queues})
        return int(count)

    def read_summaries(self, seqs: Sequence[int]) -> Sequence[Row]:
        return self.db.all("read_summaries", list(seqs))

    def chunks(self, seqs: Sequence[int]) -> Iterator[Sequence[int]]:
        """By their sizes: many statements for a list would be slow."""
        if len(seqs) <= _FEW:
            yield seqs
            return
        sizes: dict[int, int] = dict(self.db.all("job_bytes", list(seqs)))
        start = size = 0
        for n, seq in enumerate(seqs, 1):
            size += sizes.get(seq, 0)
            if size >= queries.PAGE_BYTES or n == len(seqs):
                yield seqs[start:n]
                start, size = n, 0
