"""Operations that edit a job or replay it with changes, and the history of jobs."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.operator import Operator
from tenure.engines.memory.store import Record, handles
from tenure.errors import Conflict, JobNotFound
from tenure.model import ops
from tenure.model.job import FINAL, State
from tenure.model.ops import Answer


class Editing(Operator):
    """Edits waiting jobs, and replays finished ones with changes."""

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

        return self._change(op, update)

    @handles(ops.ReplayEdited)
    def _replay_edited(self, op: ops.ReplayEdited, now: int) -> Answer:
        record = self._records.get(op.id)
        if record is None or self._is_hidden(op.grant, op.id):
            return JobNotFound(op.id)
        if record.job.state not in FINAL:
            state = record.job.state.value
            return Conflict(f"the job {op.id!r} is {state}; only finished jobs are replayed")
        return self._enqueue(ops.Enqueue((op.spec_of(record.job),), grant=op.grant), now)
