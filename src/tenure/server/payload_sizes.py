"""The largest payload that was seen in each queue.

A claim leases only as many jobs as fit into a response. How large jobs are is not known before
they are claimed, so this is remembered; few jobs are claimed at once from a queue whose payloads
have not been seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec import Raw

from tenure.features import RESULTS
from tenure.model import ops
from tenure.model.fields import MAX_CLAIM
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.model.queries import PAGE_BYTES, GetJob, ListJobs, Query, Together
from tenure.server.redaction import holds
from tenure.server.traffic import SMALL

UNKNOWN_CLAIM = 64  # jobs claimed at once from a queue whose payloads have not been seen
UNKNOWN_BYTES = 131_072  # assumed for each of them
UNKNOWN_JOB = 524_288  # bytes assumed for a job that is looked up by its id
MOST_QUEUES = 10_000  # whose payloads are remembered


class PayloadSizes:
    """The largest payload that was seen in each queue."""

    def __init__(self) -> None:
        self._largest: OrderedDict[str, int] = OrderedDict()

    def note(self, queue: str, size: int) -> None:
        if size > self._largest.get(queue, -1):
            self._largest[queue] = size
            if len(self._largest) > MOST_QUEUES:
                self._largest.popitem(last=False)

    def note_jobs(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        largest, size = self._largest, max([len(job.raw_payload) for job in jobs])
        for queue in set(map(_queue_of, jobs)):
            if size > largest.get(queue, -1):
                self._note_each(jobs)
                return

    def _note_each(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.note(job.queue, len(job.raw_payload))

    def may_grow(self, batch: Sequence[Op]) -> bool:
        """Whether `note_added` may have something to note about these operations."""
        largest = self._largest
        for op in batch:
            for spec in op.adds:
                if len(spec.payload) > largest.get(spec.queue, -1):
                    return True
        return False

    def note_added(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        """Note the jobs that operations have added. Not before: a request that is rejected must
        not make the claims of others smaller."""
        for op, answer in ops.answered(batch, answers):
            for spec in op.added(answer):
                if len(spec.payload) > self._largest.get(spec.queue, -1):
                    self.note(spec.queue, len(spec.payload))

    def are_small(self, op: ops.Claim) -> bool:
        """Whether all jobs that a claim can find are known to fit into a small response."""
        largest = self._largest
        return all(largest.get(one, UNKNOWN_BYTES) * op.limit < SMALL for one in op.queues)

    def of_result(self, query: Query) -> int:
        """The size to expect of the result of a query."""
        if isinstance(query, Together):
            return sum(map(self.of_result, query.queries))
        if isinstance(query, GetJob):
            return UNKNOWN_JOB
        if not isinstance(query, ListJobs):
            return PAGE_BYTES if holds(RESULTS[type(query)], (Raw,)) else 0
        largest = self._largest.get(query.filter.queue or "")
        return PAGE_BYTES if largest is None else min(PAGE_BYTES, query.limit * largest)

    def expected(self, queues: Iterable[str]) -> int:
        """The size to expect of a job of these queues."""
        return max(self._largest.get(queue, UNKNOWN_BYTES) for queue in queues)

    def fitting(self, queues: Iterable[str], size: int) -> int:
        """How many jobs of these queues fit into this many bytes; at least one."""
        known = [self._largest.get(queue) for queue in queues]
        largest = max((one for one in known if one is not None), default=0)
        most = MAX_CLAIM if None not in known else UNKNOWN_CLAIM
        return max(1, min(most, size // max(1, largest)))


_queue_of = attrgetter("queue")
