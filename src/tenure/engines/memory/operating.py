"""Operations of operators on jobs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.leasing import Leases
from tenure.engines.memory.memory_store import Record, handles
from tenure.errors import Conflict, JobNotFound
from tenure.model import ops, states
from tenure.model.history import PAST_MS, Past, PastMove, past_key
from tenure.model.job import FINAL, State
from tenure.model.ops import Answer
from tenure.model.records import Record as SideRecord


class Operator(Leases):
    """Changes jobs by their ids."""

    @handles(ops.Cancel)
    def _cancel(self, op: ops.Cancel, now: int) -> Answer:
        return self.change(op, lambda r: self.moved(op, r, states.Cancelled(), "cancelled", now))

    @handles(ops.Replay)
    def _replay(self, op: ops.Replay, now: int) -> Answer:
        refused: dict[str, str] = {}

        changed = self.change(op, lambda record: self.replay(op, record, refused, now))
        return replace(changed, refused=refused)

    def replay(self, op: ops.JobsOp, record: Record, refused: dict[str, str], now: int) -> bool:
        """Replay a job, unless another one holds its unique key."""
        job = record.job
        if not states.allowed(job.state, states.Replayed):
            return False
        if job.unique_key is not None:
            key = (job.queue, job.tenant, job.unique_key)
            if key in self._unique:
                refused[job.id] = self._unique[key]
                return False
            self._unique[key] = job.id
        for part in self._parts:
            part.replayed(record)
        return self.moved(op, record, states.Replayed(), "replayed", now)

    @handles(ops.Delete)
    def _delete(self, op: ops.Delete, now: int) -> Answer:
        def delete(record: Record) -> bool:
            if op.states and record.job.state not in op.states:
                return False
            self._remove(record, now)
            return True

        return self.change(op, delete)

    def moved(
        self, op: ops.JobsOp, record: Record, event: states.Event, what: PastMove, now: int
    ) -> bool:
        """Move a job, and add that to its history."""
        moved = self._move(record, event, now)
        if moved:
            self._remember(op, record, what, now)
        return moved

    def _remember(self, op: ops.JobsOp, record: Record, what: PastMove, now: int) -> None:
        past = Past(now, what, op.note.by if op.note else "")
        key = past_key(record.job.id, past)
        self.side["past", key] = SideRecord(key, msgspec.json.encode(past), now + PAST_MS)

    def change(self, op: ops.JobsOp, change: Callable[[Record], bool]) -> ops.Changed:
        """Change the jobs that an operation names, one by one."""
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

    # Editing ------------------------------------------------------------------------------------

    @handles(ops.Update)
    def _update(self, op: ops.Update, now: int) -> Answer:
        def update(record: Record) -> bool:
            job = record.job
            if job.state not in (State.WAITING, State.PENDING):
                return False
            run_at = job.run_at
            if op.run_at is not None or op.delay_ms is not None:
                run_at = op.run_at if op.run_at is not None else now + (op.delay_ms or 0)
                record.ready = job.state is State.PENDING and run_at <= now
            unset = isinstance(op.payload, msgspec.UnsetType)
            record.job = replace(
                job,
                priority=job.priority if op.priority is None else op.priority,
                run_at=run_at,
                raw_payload=job.raw_payload if unset else op.payload,
                updated_at=now,
            )
            self._remember(op, record, "updated", now)
            return True

        return self.change(op, update)

    @handles(ops.ReplayEdited)
    def _replay_edited(self, op: ops.ReplayEdited, now: int) -> Answer:
        record = self._records.get(op.id)
        if record is None or self._is_hidden(op.grant, op.id):
            return JobNotFound(op.id)
        if record.job.state not in FINAL:
            state = record.job.state.value
            return Conflict(f"the job {op.id!r} is {state}; only finished jobs are replayed")
        return self._enqueue(ops.Enqueue((op.spec_of(record.job),), grant=op.grant), now)
