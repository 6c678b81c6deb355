"""Operations of the holder of a lease."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.claiming import Claiming
from tenure.engines.memory.memory_store import Record, handles
from tenure.errors import (
    JobNotFound,
    LeaseLost,
    TenureError,
)
from tenure.model import ops, states
from tenure.model.history import PAST_MS, Past, heard_key
from tenure.model.job import Job, State
from tenure.model.ops import Answer
from tenure.model.records import Record as SideRecord


class Leases(Claiming):
    """Ends, returns and renews leases."""

    def _leased(self, op: ops.LeaseOp, now: int) -> Record | TenureError:
        record = self._records.get(op.id)
        if record is None or self._is_hidden(op.grant, op.id):
            return JobNotFound(op.id)
        if record.job.state is not State.LEASED or record.job.token != op.token:
            self._hear(record.job, op, now)
            return LeaseLost(op.id, record.job.state.value)
        return record

    def _hear(self, job: Job, op: ops.LeaseOp, now: int) -> None:
        """Note when a worker first learns that its job was cancelled."""
        if job.state is State.CANCELLED and job.token == op.token:
            key = heard_key(op.id, op.token)
            value = msgspec.json.encode(Past(now, "cancel_heard"))
            self.side.setdefault(("past", key), SideRecord(key, value, now + PAST_MS))

    @handles(ops.Ack)
    def _ack(self, op: ops.Ack, now: int) -> Answer:
        known = self._records.get(op.id)
        if known is not None and not self._is_hidden(op.grant, op.id):
            job = known.job
            if job.state is State.DONE and job.token == op.token:  # this was acked before
                return ops.Moved(job.state, job.run_at)
        record = self._leased(op, now)
        if isinstance(record, TenureError):
            return record
        plan = self._plan(ops.Enqueue(op.then, grant=op.grant), leaving=op.id)
        if isinstance(plan, TenureError):
            return plan
        self._move(record, states.Acked(), now)
        record.job = replace(record.job, raw_result=op.result)
        self._carry_out(plan, now)
        if not op.keep:
            self._forget(op.id)
        return ops.Ok()

    @handles(ops.Fail)
    def _fail(self, op: ops.Fail, now: int) -> Answer:
        return self._give_back(op, op.event(), now)

    @handles(ops.Release)
    def _release(self, op: ops.Release, now: int) -> Answer:
        return self._give_back(op, op.event(), now)

    def _give_back(self, op: ops.LeaseOp, event: states.Event, now: int) -> Answer:
        record = self._leased(op, now)
        if isinstance(record, TenureError):
            return record
        self._move(record, event, now)
        return ops.Moved(record.job.state, record.job.run_at)

    @handles(ops.Extend)
    def _extend(self, op: ops.Extend, now: int) -> Answer:
        return self._keep(op, now, lease_until=now + op.lease_ms)

    @handles(ops.Progress)
    def _progress(self, op: ops.Progress, now: int) -> Answer:
        return self._keep(op, now, progress=op.percent, note=op.note)

    def _keep(self, op: ops.LeaseOp, now: int, **fields: Any) -> Answer:
        record = self._leased(op, now)
        if isinstance(record, TenureError):
            return record
        self._move(record, states.Kept(), now)
        record.job = replace(record.job, **fields)
        return ops.Ok()
