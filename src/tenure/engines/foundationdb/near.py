"""Reads the rows of many jobs at once.

Jobs that were enqueued one after the other have adjacent ids. So one range read often finds what
would take a read for each of them, at a fraction of the cost. If the ids turn out to be scattered
among those of many other jobs, they are read one by one for a while.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenure.engines.foundationdb import keys as k

if TYPE_CHECKING:
    from tenure.engines.foundationdb.tx import Tx

NEAR_FROM = 8  # fewer jobs are read one by one
_SPARE = 8  # rows besides two for each job
_MOST_PER_JOB = 2.5  # rows read for each job that is wanted
_FORGET = 0.97
_MOST_BYTES = 200_000  # of rows that nobody wants

# A UUIDv7, which begins with the time, and how much of it two must share: 16 ms. Nobody can make
# up one of that time later, unlike other ids.
_MADE_UP = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_SAME_TIME = 12  # characters
_NEVER = "\0"  # no id that is read by a range has a zero

Rows = list[tuple[bytes, bytes]]
_NO_ROWS: Rows = []


class Scatter:
    """How many rows a range read returned for each job that it was for, by kind of key."""

    def __init__(self) -> None:
        self._per_job: dict[int, float] = {}

    def is_worth_a_try(self, kind: int) -> bool:
        """Whether one range read is likely to be cheaper. If it was not, it is tried again after
        some time."""
        per_job = self._per_job.get(kind, 0.0)
        if per_job <= _MOST_PER_JOB:
            return True
        self._per_job[kind] = per_job * _FORGET
        return False

    def note(self, kind: int, per_job: float) -> None:
        self._per_job[kind] = min(per_job, 2 * _MOST_PER_JOB)


class Near:
    """The rows that some jobs have under one kind of key, by snapshot reads. They are requested at
    once and awaited later."""

    def __init__(self, tx: Tx, kind: int, ids: Sequence[str], *, limit: int = 0) -> None:
        """limit: how many rows of each job are wanted; 0 for all."""
        self._tx, self._kind, self._limit = tx, kind, limit
        start, own = tx.keys.kind(kind), tx.keys.own
        self._of = {start + own(job_id): job_id for job_id in ids}
        self._most_rows = 2 * len(ids) + _SPARE
        self._found: dict[str, Rows] | None = None
        self._runs: list[list[str]] = []
        self._asked: Any = None
        self._singly: dict[str, Any] = {}
        plain = "\0" not in "".join(ids)  # so that each ends at the first zero
        readable = kind != k.CLAIM or not tx.has_claimed  # a range may include own claims
        together = len(ids) >= tx.store.near_from and plain and readable
        if together and tx.store.scatter.is_worth_a_try(kind):
            self._asked = tx.tr.snapshot.get_range(
                min(self._of),
                max(self._of) + b"\xff",
                limit=self._most_rows,
                streaming_mode=tx.store.handle.StreamingMode.want_all,
            )
        else:
            self._ask_singly(self._of)

    def of(self, job_id: str) -> Rows:
        """The keys and values of the rows of a job, in order. Call it once for each."""
        if self._found is None:
            self._found = {} if self._asked is None else self._read()
        if self._singly and job_id in self._singly:
            self._found[job_id] = self._rows_of(self._singly.pop(job_id))
        return self._found.get(job_id, _NO_ROWS)

    def runs(self) -> list[list[str]]:
        """All ids of JOB keys, in runs of neighbours: no other job was stored between them, and
        since they were made up at almost the same time, hardly any can be added."""
        if self._found is None:
            self._found = {} if self._asked is None else self._read()
        joined = {job_id for run in self._runs for job_id in run}
        return self._runs + [[job_id] for job_id in self._of.values() if job_id not in joined]

    def _ask_singly(self, prefixes: Iterable[bytes]) -> None:
        snapshot, singly, of = self._tx.tr.snapshot, self._singly, self._of
        for prefix in prefixes:
            if self._kind == k.JOB:
                singly[of[prefix]] = snapshot.get(prefix)
            else:
                singly[of[prefix]] = snapshot.get_range(prefix, prefix + b"\xff", limit=self._limit)

    def _rows_of(self, asked: Any) -> Rows:
        if self._kind == k.JOB:
            value = asked.value
            return [] if value is None else [(b"", bytes(value))]
        return [(bytes(row.key), bytes(row.value)) for row in asked]

    def _read(self) -> dict[str, Rows]:
        """Sort the rows of the range. Jobs behind its end, if it was cut off, are read singly."""
        of, start, most = self._of, len(self._tx.keys.kind(self._kind)), self._limit
        found: dict[str, Rows] = {}
        ids: list[str | None] = []  # of the rows
        others = 0
        last = b""
        for row in self._asked:
            last = key = bytes(row.key)
            job_id = of.get(key[: key.find(b"\x00", start) + 1])
            ids.append(job_id)
            if job_id is None:
                others += len(key) + len(row.value)
                if others > _MOST_BYTES:
                    break
            elif job_id not in found:
                found[job_id] = [(key, bytes(row.value))]
            elif not most or len(found[job_id]) < most:
                found[job_id].append((key, bytes(row.value)))
        else:
            if len(ids) < self._most_rows:
                last = b"\xff"
        if last != b"\xff":
            # The last job that was read may have more rows.
            self._ask_singly([prefix for prefix in of if prefix + b"\xff" > last])
        if self._kind == k.JOB:
            self._runs = _runs(ids)
        self._tx.store.scatter.note(self._kind, len(ids) / max(1, len(found)))
        return found


def _runs(ids: Iterable[str | None]) -> list[list[str]]:
    """Join the ids of jobs that are stored one after the other and were made up at almost the same
    time. None: another job."""
    runs: list[list[str]] = []
    begin = _NEVER
    for job_id in ids:
        if job_id is None:
            begin = _NEVER
        elif job_id.startswith(begin):
            runs[-1].append(job_id)
        else:
            runs.append([job_id])
            begin = job_id[:_SAME_TIME] if _MADE_UP(job_id) else _NEVER
    return runs
