"""Steps, suspensions and signals in the reference model.

For each change it reads everything that a job has, changes it, and stores everything again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.memory_store import Part, Record, Store, handles
from tenure.errors import Conflict, InvalidInput, TenureError
from tenure.features.steps import data
from tenure.features.steps.data import (
    Checkpoint,
    Head,
    JobSteps,
    ListSteps,
    Recall,
    ReplayFrom,
    SentSignal,
    Signal,
    Step,
    Suspend,
    Suspension,
)
from tenure.model import ops, states
from tenure.model.job import FINAL, Job, JobSpec, State
from tenure.model.ops import Answer
from tenure.model.records import Record as SideRecord


class Kept:
    """All that a job has."""

    def __init__(self, job: Job, found: data.Found) -> None:
        self.head = found.head or Head(job.queue, job.tenant)
        self.steps: list[Step] = found.steps
        self.signals: dict[str, SentSignal] = {sent.name: sent for sent in found.signals}
        self.undos: dict[int, JobSpec] = found.undos

    def step(self, op: Checkpoint | Suspend) -> Step | None:
        return next((one for one in self.steps if (one.name, one.key) == (op.name, op.key)), None)

    def put(self, step: Step, undo: JobSpec | None = None) -> InvalidInput | None:
        """Add a step, or replace it; the error if there is too much."""
        others = [one for one in self.steps if one.number != step.number]
        step = replace(step, size=data.size_of(step, undo))
        problem = data.too_many(
            replace(
                self.head,
                steps=len(others),
                bytes=sum(one.size for one in others),
                undos=len(self.undos),
            ),
            step.size,
            new=len(others) == len(self.steps),
            undo=undo is not None,
        )
        if problem is None:
            self.steps = sorted([*others, step], key=lambda one: one.number)
            if undo is not None:
                self.undos[step.number] = undo
        return problem

    @property
    def next(self) -> int:
        return self.steps[-1].number + 1 if self.steps else 1

    def rows(self, job_id: str) -> Iterable[tuple[str, bytes]]:
        head = replace(
            self.head,
            steps=len(self.steps),
            last=self.next - 1,
            bytes=sum(one.size for one in self.steps),
            signals=len(self.signals),
            undos=len(self.undos),
        )
        yield data.head_key(job_id), data.encode(head)
        for step in self.steps:
            yield from data.rows_of_step(job_id, step)
        for sent in self.signals.values():
            yield from data.rows_of_signal(job_id, sent)
        for number, spec in self.undos.items():
            yield from data.rows_of_undo(job_id, number, spec)


class Oracle(Part):
    """Records steps, suspends jobs and wakes them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._engine: Any = store  # with its operations

    def _load(self, job: Job) -> Kept:
        return Kept(job, data.Found(job.id, self._rows(job.id)))

    def _rows(self, job_id: str) -> list[tuple[str, bytes]]:
        first, last = data.keys_of(job_id)
        return sorted(
            (key, one.value)
            for (space, key), one in self.store.side.items()
            if space == "step" and first < key < last
        )

    def _store(self, record: Record, kept: Kept) -> None:
        self.removed(record.job)
        for key, value in kept.rows(record.job.id):
            self.store.side["step", key] = SideRecord(key, value)
        record.job = replace(record.job, has_steps=True)

    # The holder of a lease ----------------------------------------------------------------------

    @handles(Checkpoint)
    def _checkpoint(self, op: Checkpoint, now: int) -> Answer:
        record = self._engine._leased(op, now)
        if isinstance(record, TenureError):
            return record
        answer = self._recorded(op, record, now)
        if op.lease_ms is not None:
            self._engine._move(record, states.Kept(), now)
            record.job = replace(record.job, lease_until=now + op.lease_ms)
        return answer

    def _recorded(self, op: Checkpoint, record: Record, now: int) -> Answer:
        kept = self._load(record.job)
        known = kept.step(op)
        if known is not None and known.kind != op.kind:
            return InvalidInput(
                "name", f"{op.name!r} is the name of a step of the kind {known.kind!r}, "
                f"not {op.kind!r}",
            )  # fmt: skip
        if known is not None and known.ended_at is not None:
            return ops.Recorded(known.result, created=False)
        if known is None and op.kind == "gather":
            return Conflict(f"the job {op.id!r} has no step {op.name!r} that waits for other jobs")
        if op.kind == "wait" and op.name in kept.signals:
            return ops.Recorded(kept.signals[op.name].value, created=False, signalled=True)
        step = known or Step(kept.next, op.name, now, op.key, op.kind)
        undo = op.then[0] if op.then else None
        step = replace(step, ended_at=now, took_ms=op.took_ms, token=op.token, result=op.result)
        if undo is not None:
            step = replace(step, children=(undo.id,))
        problem = kept.put(step, undo)
        if problem is not None:
            return problem
        self._store(record, kept)
        return ops.Recorded(op.result, created=True)

    @handles(Recall)
    def _recall(self, op: Recall, now: int) -> Answer:
        record = self._engine._leased(op, now)
        if isinstance(record, TenureError):
            return record
        page = data.Found(op.id, self._rows(op.id)).page(op.after)
        return ops.Recalled(msgspec.Raw(data.encode(page)))

    @handles(Suspend)
    def _suspend(self, op: Suspend, now: int) -> Answer:
        record = self._engine._leased(op, now)
        if isinstance(record, TenureError):
            return record
        kept = self._load(record.job)
        step = kept.step(op)
        if step is not None and step.kind != op.kind:
            return InvalidInput(
                "name", f"{op.name!r} is the name of a step of the kind {step.kind!r}, "
                f"not {op.kind!r}",
            )  # fmt: skip
        if step is None:
            until = None if op.delay_ms is None else now + op.delay_ms
            children = tuple(spec.id for spec in op.then)
            step = Step(
                kept.next, op.name, now, op.key, op.kind, until=until, token=op.token,
                children=children, ended_at=now if op.kind == "sleep" else None,
            )  # fmt: skip
            problem = kept.put(step) or self._add(op, now)
            if problem is not None:
                return problem
        run_at = now if step.until is None else max(now, step.until)
        if op.kind == "wait" and step.until is None:
            run_at = now + data.FOREVER_MS
        if op.kind == "wait" and (step.ended_at is not None or op.name in kept.signals):
            run_at = now
        kept.head = replace(
            kept.head, suspended=Suspension(op.name, op.kind, now, op.token, op.key, step.until)
        )
        self._store(record, kept)
        left = {one for one in step.children if op.kind == "gather" and self._is_live(one)}
        self._engine._move(record, states.Suspended(run_at, waits=bool(left)), now)
        record.waits_for |= left
        return ops.Moved(record.job.state, record.job.run_at)

    def _add(self, op: Suspend, now: int) -> TenureError | None:
        answer = self._engine._enqueue(ops.Enqueue(op.then, grant=op.grant), now)
        return answer if isinstance(answer, TenureError) else None

    def _is_live(self, job_id: str) -> bool:
        return job_id in self._engine._live

    # Others -------------------------------------------------------------------------------------

    @handles(Signal)
    def _signal(self, op: Signal, now: int) -> Answer:
        def send(record: Record) -> bool:
            job, kept = record.job, self._load(record.job)
            if job.state in FINAL or op.name in kept.signals:
                return False
            if len(kept.signals) >= data.MAX_SIGNALS:
                return False
            by = "" if op.note is None else op.note.by
            kept.signals[op.name] = SentSignal(op.name, now, op.value, by)
            self._store(record, kept)
            why = kept.head.suspended
            waits = why is not None and (why.kind, why.name, why.token) == (
                "wait",
                op.name,
                job.token,
            )
            if waits and job.state is State.PENDING and job.run_at > now:
                self._engine._move(record, states.Hurried(), now)
            return True

        answer: Answer = self._engine.change(op, send)
        return answer

    @handles(ReplayFrom)
    def _replay_from(self, op: ReplayFrom, now: int) -> Answer:
        refused: dict[str, str] = {}

        def one(record: Record) -> bool:
            kept = self._load(record.job)
            begun = [(s.number, s.at) for s in kept.steps if (s.name, s.key) == (op.name, op.key)]
            if not begun or kept.head.undone:
                return False
            if not self._engine.replay(op, record, refused, now):
                return False
            ((number, at),) = begun
            kept.steps = [s for s in kept.steps if s.number < number]
            kept.undos = {n: spec for n, spec in kept.undos.items() if n < number}
            kept.signals = {n: sent for n, sent in kept.signals.items() if sent.at < at}
            kept.head = replace(kept.head, suspended=None)
            self._store(record, kept)
            return True

        changed: ops.Changed = self._engine.change(op, one)
        return replace(changed, refused=refused)

    @handles(ListSteps)
    def _list(self, query: ListSteps, now: int) -> JobSteps | TenureError:
        record = self._engine._records.get(query.id)
        if record is None or self._engine._is_hidden(query.grant, query.id):
            return JobSteps()
        return data.Found(query.id, self._rows(query.id)).page(query.after)

    # What happens to jobs -----------------------------------------------------------------------

    def given_up(self, record: Record, now: int) -> None:
        kept = self._load(record.job)
        if record.job.has_steps and kept.undos:
            chain, kept.undos = data.chained(kept.undos), {}
            kept.head = replace(kept.head, undone=True)
            self._store(record, kept)
            self._engine._enqueue(ops.Enqueue(chain, "skip"), now)

    def replayed(self, record: Record) -> None:
        kept = self._load(record.job)
        if kept.head.undone:
            kept.steps, kept.signals = [], {}
            kept.head = Head(kept.head.queue, kept.head.tenant)
            self._store(record, kept)

    def removed(self, job: Job) -> None:
        for key, _ in self._rows(job.id):
            del self.store.side["step", key]
