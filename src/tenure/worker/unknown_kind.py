"""Jobs of a kind that this worker has no task for.

Another worker may have one: a newer release that is just being deployed, or another service on the
same queue. So the job is released without using up an attempt, with a delay that grows with the
time it has waited. It grows slowly, because with two services on a queue, about every second claim
of a job is by the wrong one. The job is dead once no worker has known its kind for as long as the
settings allow.
"""

from __future__ import annotations

import logging

from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import UNKNOWN_KIND, Op
from tenure.observe.logs import about
from tenure.queue.arguments import failure_text
from tenure.worker.job_log import Ended, JobLog

log = logging.getLogger("tenure.worker")

NEVER_KNOWN = "NeverKnownKind"  # not UNKNOWN_KIND: after a replay, the job waits again
FIRST_DELAY_MS, LONGEST_DELAY_MS = 200, 300_000
MOST_KINDS = 1_000  # remembered, so that each is logged once


def leave_for_others(job: Job, keep_seconds: float | None) -> Op:
    """The operation to submit for a job whose kind this worker does not know."""
    waited_ms = _waited_ms(job)
    if keep_seconds is not None and waited_ms >= keep_seconds * 1000:
        reason = f"no worker has had a {task_of(job)} for {keep_seconds:g} s"
        return ops.Fail(job.id, job.token, failure_text(reason), NEVER_KNOWN, fatal=True)
    delay_ms = min(max(waited_ms // 4, FIRST_DELAY_MS), LONGEST_DELAY_MS)
    reason = f"no worker has a {task_of(job)} yet"
    return ops.Release(job.id, job.token, delay_ms, failure_text(reason), UNKNOWN_KIND)


def task_of(job: Job) -> str:
    """The task that a job needs, in words."""
    return f"task named {job.kind!r}" if job.kind else "task for jobs without a kind"


def _waited_ms(job: Job) -> int:
    """How long ago a worker first claimed the job without knowing its kind, by the store's clock.
    Not the job's age, because it may have been delayed, or may have waited in a long queue."""
    if not job.errors or job.errors[-1].type != UNKNOWN_KIND:
        return 0
    return max(0, (job.started_at or job.updated_at) - job.errors[-1].at)


class KnownUnknowns:
    """Leaves jobs of unknown kinds for others, and logs each kind once."""

    def __init__(self, keep_seconds: float | None) -> None:
        self._keep_seconds = keep_seconds
        self._kinds: set[str] = set()

    def leave(self, job: Job, job_log: JobLog) -> Op:
        """The operation to submit for a job whose kind this worker does not know."""
        if self._is_new(job.kind):
            log.warning(
                "this worker has no %s: jobs of this kind are left for other workers",
                task_of(job),
                extra=about(job),
            )
        op = leave_for_others(job, self._keep_seconds)
        if isinstance(op, ops.Fail):
            job_log.expect(Ended(job, job.kind))
        return op

    def _is_new(self, kind: str) -> bool:
        if kind in self._kinds:
            return False
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.clear()
        self._kinds.add(kind)
        return True
