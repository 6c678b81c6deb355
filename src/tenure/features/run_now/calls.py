"""The call."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.features.run_now.data import RunNow
from tenure.model.job import Job, State
from tenure.queue.arguments import filter_of, some_jobs
from tenure.queue.job_changes import JobChanges
from tenure.queue.sync_async import Steps, both


class RunsNow(JobChanges):
    """A part of FeatureCalls."""

    def _run_now(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
    ) -> Steps[int]:
        """Make delayed jobs, and those that wait for their next attempt, ready now: one, several,
        or all that match. Their attempts stay as they are. Returns how many."""
        where = filter_of(queue, (State.PENDING,), tenant, group, kind)
        some_jobs("run_now", jobs, queue, tenant, group, kind)
        return (yield from self._change(jobs, where, RunNow))

    run_now, arun_now = both(_run_now)


CALLS = RunsNow
