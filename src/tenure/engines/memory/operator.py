"""What an operator does with jobs."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tenure.engines.memory.leases import Leases
from tenure.engines.memory.store import Record, handles
from tenure.model import ops, states
from tenure.model.ops import Answer


class Operator(Leases):
    """Changes jobs by their ids."""

    @handles(ops.Cancel)
    def _cancel(self, op: ops.Cancel, now: int) -> Answer:
        return self._change(op, lambda record: self._move(record, states.Cancelled(), now))

    @handles(ops.Replay)
    def _replay(self, op: ops.Replay, now: int) -> Answer:
        refused: dict[str, str] = {}

        def replay(record: Record) -> bool:
            job = record.job
            if job.unique_key is not None and states.allowed(job.state, states.Replayed):
                key = (job.queue, job.tenant, job.unique_key)
                if key in self._unique:
                    refused[job.id] = self._unique[key]
                    return False
                self._unique[key] = job.id
            return self._move(record, states.Replayed(), now)

        changed = self._change(op, replay)
        return replace(changed, refused=refused)

    @handles(ops.RunNow)
    def _run_now(self, op: ops.RunNow, now: int) -> Answer:
        def hurry(record: Record) -> bool:
            return record.job.run_at > now and self._move(record, states.Hurried(), now)

        return self._change(op, hurry)

    @handles(ops.Delete)
    def _delete(self, op: ops.Delete, now: int) -> Answer:
        def delete(record: Record) -> bool:
            if op.states and record.job.state not in op.states:
                return False
            self._remove(record, now)
            return True

        return self._change(op, delete)

    def _change(self, op: ops.JobsOp, change: Callable[[Record], bool]) -> ops.Changed:
        count, missing = 0, []
        for job_id in dict.fromkeys(op.ids):
            if job_id in self._records and not self._is_hidden(op.grant, job_id):
                count += change(self._records[job_id])
            else:
                missing.append(job_id)
        return ops.Changed(count, tuple(missing))

    def _remove(self, record: Record, now: int) -> None:
        job = self._forget(record.job.id)
        if self._live.pop(job.id, None) is not None and job.unique_key is not None:
            self._unique.pop((job.queue, job.tenant, job.unique_key), None)
        self._tell_children(job.id, states.ParentDeleted(job.id), now)
