"""Calls on the steps of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tenure.errors import Conflict, JobNotFound
from tenure.features.steps.data import JobSteps, ListSteps, ReplayFrom, Signal
from tenure.model import queries
from tenure.model.fields import validated
from tenure.model.job import Job, encode_json
from tenure.model.ops import Changed, good
from tenure.queue.arguments import ids_of
from tenure.queue.job_changes import JobChanges
from tenure.queue.sync_async import Steps, both


class HasSteps(JobChanges):
    """A part of FeatureCalls."""

    def _steps(self, job: str | Job) -> Steps[JobSteps]:
        """Return the steps and signals of a job, in the order in which they were recorded. Raises
        JobNotFound."""
        (job_id,) = ids_of([job], "job")
        good((yield validated(queries.GetJob(job_id))), Job)
        found = page = good((yield ListSteps(job_id)), JobSteps)
        steps = list(found.steps)
        while page.after is not None:
            page = good((yield ListSteps(job_id, after=page.after)), JobSteps)
            steps += page.steps
        return replace(found, steps=steps, after=None)

    def _signal(
        self, jobs: str | Job | Sequence[str | Job], name: str, value: Any = None
    ) -> Steps[int]:
        """Send a signal to one job, or several, and wake those that wait for it. Of several signals
        of one name the first counts. Returns how many have got it. Finished jobs get none. Raises
        JobNotFound if a single job does not exist."""
        raw = encode_json("value", value, self._store.settings.payload_limit)
        validated(Signal(("a",), name=name, value=raw))
        where = queries.Filter()
        return (yield from self._change(jobs, where, lambda ids: Signal(ids, name=name, value=raw)))

    def _replay_from(self, job: str | Job, step: str, key: str = "") -> Steps[None]:
        """Run a dead or cancelled job again from a step: it and all later ones are forgotten.
        Raises JobNotFound, or Conflict if the job is not dead or cancelled, does not have the step,
        or if what undoes its steps was enqueued."""
        (job_id,) = ids_of([job], "job")
        op = validated(ReplayFrom((job_id,), name=step, key=key))
        (answer,) = yield [op]
        changed = good(answer, Changed)
        if changed.missing:
            raise JobNotFound(job_id)
        if not changed.count:
            now = good((yield queries.GetJob(job_id)), Job)
            found = good((yield ListSteps(job_id)), JobSteps)
            raise Conflict(_why_not(now, op, found, changed))

    steps, asteps = both(_steps)
    signal, asignal = both(_signal)
    replay_from, areplay_from = both(_replay_from)


def _why_not(job: Job, op: ReplayFrom, found: JobSteps, changed: Changed) -> str:
    """Why a job is not replayed from a step."""
    if job.id in changed.refused:
        return f"the unique key of job {job.id!r} is held by job {changed.refused[job.id]!r}"
    if found.undone:
        return f"the steps of job {job.id!r} were undone: a plain replay starts it over"
    if job.state in ("dead", "cancelled"):
        key = f" with the key {op.key!r}" if op.key else ""
        return f"job {job.id!r} has no step {op.name!r}{key}: `tenure steps {job.id}` lists them"
    return f"job {job.id!r} is {job.state.value}: only dead and cancelled jobs are replayed"


CALLS = HasSteps
