"""New jobs, and jobs from another store."""

from __future__ import annotations

from tenure.engines.memory.limiting import Limits
from tenure.engines.memory.memory_store import Plan, QueueBook, Record, handles, is_outside
from tenure.errors import (
    DependencyCycle,
    DependencyNotFound,
    Duplicate,
    TenureError,
)
from tenure.model import ops, states
from tenure.model.job import FINAL, Job, JobSpec, State, check_cycles
from tenure.model.ops import Answer
from tenure.model.records import Record as SideRecord


class Enqueuing(Limits):
    """Adds jobs."""

    @handles(ops.Enqueue)
    def _enqueue(self, op: ops.Enqueue, now: int) -> Answer:
        plan = self._plan(op)
        return plan if isinstance(plan, TenureError) else self._carry_out(plan, now)

    def _plan(self, op: ops.Enqueue, leaving: str = "") -> Plan | TenureError:
        """The jobs an Enqueue would add. `leaving` is about to end, so its unique key is free."""
        plan = Plan()
        keys: dict[tuple[str, str, str], str] = {}
        for spec in op.jobs:
            held = self._held(spec, plan.accepted, keys, leaving)
            by_others = held and held.field == "id" and self._is_hidden(op.grant, held.job_id)
            if held is not None and (op.if_exists == "error" or by_others):
                return held
            plan.ids.append(spec.id if held is None else held.job_id)
            plan.created.append(held is None)
            if held is None:
                plan.accepted[spec.id] = spec
                if spec.unique_key is not None:
                    keys[spec.queue, spec.tenant, spec.unique_key] = spec.id
        return self._bad_parents(plan.accepted, op.grant) or plan

    def _carry_out(self, plan: Plan, now: int) -> Answer:
        for spec in plan.accepted.values():
            self._insert(spec, now)
        for spec in plan.accepted.values():
            for parent in spec.after:
                if self._records[parent].job.state in (State.DEAD, State.CANCELLED):
                    self._tell_child(self._records[spec.id], parent, states.ParentFailed(), now)
        return ops.Enqueued(plan.ids, plan.created, now)

    def _held(
        self,
        spec: JobSpec,
        accepted: dict[str, JobSpec],
        keys: dict[tuple[str, str, str], str],
        leaving: str,
    ) -> Duplicate | None:
        if spec.id in self._records or spec.id in accepted:
            return Duplicate("id", spec.id, spec.id)
        if spec.unique_key is not None:
            key = (spec.queue, spec.tenant, spec.unique_key)
            holder = keys.get(key) or self._unique.get(key)
            if holder is not None and holder != leaving:
                return Duplicate("unique_key", spec.unique_key, holder)
        return None

    def _is_hidden(self, grant: ops.Grant | None, job_id: str) -> bool:
        """Whether a job exists that the grant does not allow."""
        record = self._records.get(job_id)
        return record is not None and is_outside(grant, record.job)

    def _bad_parents(
        self, accepted: dict[str, JobSpec], grant: ops.Grant | None
    ) -> TenureError | None:
        for spec in accepted.values():
            for parent in spec.after:
                if parent in accepted:
                    continue
                if parent not in self._records or self._is_hidden(grant, parent):
                    return DependencyNotFound(parent)
        try:
            check_cycles(list(accepted.values()))
        except DependencyCycle as cycle:
            return cycle
        return None

    def _insert(self, spec: JobSpec, now: int) -> None:
        waits_for = {
            parent
            for parent in spec.after
            if parent not in self._records or self._records[parent].job.state is not State.DONE
        }
        job = spec.to_job(State.WAITING if waits_for else State.PENDING, now)
        self._add(job, waits_for)

    def _add(self, job: Job, waits_for: set[str]) -> Record:
        """Add a job at the next place."""
        last = next(reversed(self._records.values()), None)
        seq = 1 if last is None else last.seq + 1
        record = self._records[job.id] = Record(job, seq, waits_for)
        self._of_tenant[job.queue, job.tenant][job.id] = record
        if job.group:
            self._in_group[job.queue, job.group][job.id] = record
        self._queues.setdefault(job.queue, QueueBook())
        self._emptied.pop(job.queue, None)
        self._turns.setdefault((job.queue, job.tenant), 0)
        if job.state not in FINAL:
            self._live[job.id] = record
            if job.unique_key is not None:
                self._unique[job.queue, job.tenant, job.unique_key] = job.id
        return record

    # Moving a store -----------------------------------------------------------------------------

    @handles(ops.Import)
    def _import(self, op: ops.Import, now: int) -> Answer:
        new: dict[str, ops.Entry] = {}
        created: list[bool] = []
        for entry in op.entries:
            created.append(entry.job.id not in self._records and entry.job.id not in new)
            if created[-1]:
                new[entry.job.id] = entry
        problem = self._held_key(new) or self._lost_parent(new)
        if problem is not None:
            return problem
        for entry in new.values():
            self._add(entry.job, set(entry.waits_for)).ready = entry.ready
            for key, text in entry.beside.items():
                self.side["step", key] = SideRecord(key, text.encode())
            self._token = max(self._token, entry.job.token)
        for entry in new.values():
            for parent in entry.waits_for:  # which may have ended here meanwhile
                self._tell_end(self._records[entry.job.id], self._records[parent].job, now)
            if entry.job.state is State.WAITING and not entry.waits_for:  # its parents are gone
                self._move(self._records[entry.job.id], states.ParentsDone(), now)
        return ops.Enqueued([entry.job.id for entry in op.entries], created, now)

    def _held_key(self, new: dict[str, ops.Entry]) -> TenureError | None:
        held = dict(self._unique)
        for job in (entry.job for entry in new.values()):
            if job.unique_key is not None and job.state not in FINAL:
                holder = held.setdefault((job.queue, job.tenant, job.unique_key), job.id)
                if holder != job.id:
                    return Duplicate("unique_key", job.unique_key, holder)
        return None

    def _lost_parent(self, new: dict[str, ops.Entry]) -> TenureError | None:
        for entry in new.values():
            for parent in entry.waits_for:
                if parent not in self._records and parent not in new:
                    return DependencyNotFound(parent)
        return None

    def _tell_end(self, child: Record, parent: Job, now: int) -> None:
        if parent.state in FINAL:
            done = parent.state is State.DONE
            event = states.ParentsDone() if done else states.ParentFailed()
            self._tell_child(child, parent.id, event, now)
