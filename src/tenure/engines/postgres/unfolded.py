"""News of new jobs that nobody has folded in.

An enqueue adds a row to `news` for each of its lanes. Claims and maintenance fold the news into the
books. Reads add up both, so they take long if there is much news. Where nobody claims, a producer
has its news folded in itself, after every MOST rows.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence

from tenure.engines.postgres.insert import lane_of
from tenure.model import ops
from tenure.model.job import Job, JobSpec
from tenure.model.ops import Op

MOST = 2_000  # rows that this process adds to a queue before it has them folded in

_OF_NEW_JOBS = {ops.Enqueue, ops.Import, ops.Once}


class Unfolded:
    """How many rows of news this process has added to each queue. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: Counter[str] = Counter()

    def add(self, batch: Sequence[Op]) -> list[str]:
        """Count the lanes of a batch that was committed. Returns the queues whose news should be
        folded in now."""
        if _OF_NEW_JOBS.isdisjoint(map(type, batch)):
            return []
        lanes = {lane_of(job) for job in _new_jobs(batch)}
        with self._lock:
            self._rows.update(queue for queue, _, _ in lanes)
            full = [queue for queue, rows in self._rows.items() if rows >= MOST]
            for queue in full:
                del self._rows[queue]
        return full


def _new_jobs(batch: Sequence[Op]) -> Iterator[JobSpec | Job]:
    for op in ops.flat(batch):
        if isinstance(op, ops.Enqueue):
            yield from op.jobs
        elif isinstance(op, ops.Import):
            yield from (entry.job for entry in op.entries)
