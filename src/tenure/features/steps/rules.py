"""Steps, suspensions and signals in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.core import operator
from tenure.core.enqueue import enqueue
from tenure.core.features import Rules
from tenure.core.grants import Owners, load
from tenure.core.leases import OK, held_job, keep
from tenure.core.moves import move
from tenure.core.transaction import J, StoredJob, Transaction
from tenure.errors import Busy, Conflict, InvalidInput, TenureError
from tenure.features.steps import data
from tenure.features.steps.data import (
    Checkpoint,
    Head,
    Recall,
    ReplayFrom,
    SentSignal,
    Signal,
    Step,
    Suspend,
    Suspension,
)
from tenure.model import ops, states
from tenure.model.job import FINAL, JobSpec, State
from tenure.model.ops import Answer

SPACE: Any = "step"


class Desk:
    """The heads, steps and signals that a batch needs: read together, and written together."""

    def __init__(self, tx: Transaction[J], keys: Sequence[str], job_ids: Sequence[str]) -> None:
        self._tx = tx
        ids = list(dict.fromkeys(job_ids))
        wanted = dict.fromkeys([*map(data.head_key, ids), *keys])
        self._stored: dict[str, bytes] = dict(tx.records(SPACE, list(wanted))) if wanted else {}
        self._heads: dict[str, Head] = {}
        self._dirty: dict[str, bytes] = {}
        self.read: int = 0  # bytes of results
        new = [one for one in ids if data.head_key(one) not in self._stored]
        owners = tx.owners(new) if new else {}
        self._new = {one: Head(*owners[one]) for one in new if one in owners}

    def head(self, job_id: str) -> Head:
        known = self._heads.get(job_id) or self._new.get(job_id)
        if known is None:
            known = self._heads[job_id] = data.decode_head(self._stored[data.head_key(job_id)])
        return known

    def put_head(self, job_id: str, head: Head) -> None:
        self._heads[job_id] = head

    def value(self, key: str) -> bytes | None:
        """The value of a key that was asked for."""
        known = self._dirty.get(key)
        return self._stored.get(key) if known is None else known

    def put(self, rows: data.Rows) -> None:
        self._dirty.update(rows)

    def step(self, op: Checkpoint | Suspend) -> Step | None:
        found = self.value(data.step_key(op.id, op.name, op.key))
        return None if found is None else data.decode_step(found)

    def result(self, op: Checkpoint, step: Step) -> msgspec.Raw | Busy:
        """The result of a step, which may be stored in parts, or not written yet."""
        if not step.parts:
            return step.result
        self.read += step.size
        if self.read > data.MAX_READ_BYTES:
            return _too_much_to_read()
        keys = data.keys_of_parts(op.id, step)
        written = self._tx.records(SPACE, keys)
        return msgspec.Raw(b"".join(self._dirty.get(key) or written[key] for key in keys))

    def write(self) -> None:
        """Store what has changed, and mark the jobs that have steps now."""
        new = [job_id for job_id in self._heads if job_id in self._new]
        if new:
            self._tx.note_steps(new)
        self._dirty.update(
            (data.head_key(job_id), data.encode(head)) for job_id, head in self._heads.items()
        )
        if self._dirty:
            self._tx.put_records(SPACE, self._dirty)


# The holder of a lease ----------------------------------------------------------------------------


# path: a checkpoint
def checkpoint(tx: Transaction[J], batch: Sequence[Checkpoint]) -> list[Answer]:
    answers, held = keep(tx, batch)
    if not held:
        return answers
    keys = [key for op in held for key in _keys_of(op)]
    desk = Desk(tx, keys, [op.id for op in held])
    for n, op in enumerate(batch):
        if answers[n] is OK:
            answers[n] = _checkpoint(tx, desk, op)
    renewed = {op.id: op.lease_ms for op in held if op.lease_ms is not None}
    if renewed:
        tx.extend(renewed)
    desk.write()
    return answers


def _keys_of(op: Checkpoint | Suspend) -> list[str]:
    """The records of its step, and of the signal that it waits for."""
    step = data.step_key(op.id, op.name, op.key)
    return [step, data.signal_key(op.id, op.name)] if op.kind == "wait" else [step]


def _checkpoint(tx: Transaction[J], desk: Desk, op: Checkpoint) -> Answer:
    known = desk.step(op)
    if known is not None and known.kind != op.kind:
        return _other_kind(known, op)
    if known is not None and known.ended_at is not None:
        result = desk.result(op, known)
        return result if isinstance(result, Busy) else ops.Recorded(result, created=False)
    if op.kind == "gather" and known is None:
        return Conflict(f"the job {op.id!r} has no step {op.name!r} that waits for other jobs")
    if op.kind == "wait":
        sent = desk.value(data.signal_key(op.id, op.name))
        if sent is not None:  # it came before the end was recorded
            return ops.Recorded(data.decode_signal(sent).value, created=False, signalled=True)
    head = desk.head(op.id)
    return _record(tx, desk, head, op, known)


def _record(
    tx: Transaction[J], desk: Desk, head: Head, op: Checkpoint, known: Step | None
) -> Answer:
    undo = op.then[0] if op.then else None
    step = known or Step(head.last + 1, op.name, tx.now, op.key, op.kind)
    step = replace(
        step, ended_at=tx.now, took_ms=op.took_ms, token=op.token, result=op.result,
        children=step.children if undo is None else (undo.id,),
    )  # fmt: skip
    grown = data.size_of(step, undo) - step.size
    problem = data.too_many(head, grown, new=known is None, undo=undo is not None)
    if problem is not None:
        return problem
    step = replace(step, size=step.size + grown)
    desk.put(data.rows_of_step(op.id, step))
    if undo is not None:
        desk.put(data.rows_of_undo(op.id, step.number, undo))
    desk.put_head(op.id, _with_step(head, grown, new=known is None, undo=undo))
    return ops.Recorded(op.result, created=True)


def _with_step(head: Head, grown: int, *, new: bool, undo: JobSpec | None = None) -> Head:
    return replace(
        head,
        steps=head.steps + new,
        last=head.last + new,
        bytes=head.bytes + grown,
        undos=head.undos + (undo is not None),
    )


def _other_kind(known: Step, op: Checkpoint | Suspend) -> InvalidInput:
    return InvalidInput(
        "name", f"{op.name!r} is the name of a step of the kind {known.kind!r}, not {op.kind!r}"
    )


def recall(tx: Transaction[J], batch: Sequence[Recall]) -> list[Answer]:
    answers, _ = keep(tx, batch)
    read = 0
    for n, op in enumerate(batch):
        if answers[n] is OK and read < data.MAX_READ_BYTES:
            rows = tx.list_records(SPACE, *data.keys_of(op.id))
            read += sum(len(value) for _, value in rows)
            page = data.Found(op.id, rows).page(op.after)
            answers[n] = ops.Recalled(msgspec.Raw(data.encode(page)))
        elif answers[n] is OK:
            answers[n] = _too_much_to_read()
    return answers


def _too_much_to_read() -> Busy:
    return Busy("many steps are being read at once; try again")


# path: a suspension
def suspend(tx: Transaction[J], batch: Sequence[Suspend]) -> list[Answer]:
    owners = load(tx, batch)
    answers: list[Answer] = []
    for op in batch:  # one by one: each may enqueue jobs
        job = held_job(tx, op, owners)
        answers.append(job if isinstance(job, TenureError) else _suspend(tx, op, job, owners))
    return answers


def _suspend(tx: Transaction[J], op: Suspend, job: J, owners: Owners) -> Answer:
    desk = Desk(tx, _keys_of(op), [op.id])
    known, head = desk.step(op), desk.head(op.id)
    if known is not None and known.kind != op.kind:
        return _other_kind(known, op)
    step = known or _opened(tx, op, head)
    if known is None:
        too_many = data.too_many(head, step.size, new=True)
        problem = too_many or _add_children(tx, op, owners)
        if problem is not None:
            return problem
        desk.put(data.rows_of_step(op.id, step))
        head = _with_step(head, step.size, new=True)
    left = _unfinished(tx, step) if op.kind == "gather" else []
    run_at = _resumes_at(tx, desk, op, step)
    kept = Suspension(op.name, op.kind, tx.now, op.token, op.key, step.until)
    desk.put_head(op.id, replace(head, suspended=kept))
    move(tx, job, states.Suspended(run_at, waits=bool(left)))
    if left:
        tx.await_jobs(job, left)
    desk.write()
    return ops.Moved(job.state, job.run_at)


def _opened(tx: Transaction[J], op: Suspend, head: Head) -> Step:
    until = None if op.delay_ms is None else tx.now + op.delay_ms
    step = Step(
        head.last + 1, op.name, tx.now, op.key, op.kind, until=until, token=op.token,
        ended_at=tx.now if op.kind == "sleep" else None,
        children=tuple(spec.id for spec in op.then),
    )  # fmt: skip
    return replace(step, size=data.size_of(step))


def _add_children(tx: Transaction[J], op: Suspend, owners: Owners) -> TenureError | None:
    if not op.then:
        return None
    (answer,) = enqueue(tx, [ops.Enqueue(op.then, grant=op.grant)])
    owners.add(op.then)
    return answer if isinstance(answer, TenureError) else None


def _unfinished(tx: Transaction[J], step: Step) -> list[str]:
    """The children that have not ended. One that was deleted has."""
    known = tx.existing([], [], step.children).parents
    return [one for one in step.children if known.get(one, State.DONE) not in FINAL]


def _resumes_at(tx: Transaction[J], desk: Desk, op: Suspend, step: Step) -> int:
    if op.kind == "gather" or (op.kind == "wait" and step.ended_at is not None):
        return tx.now
    if op.kind == "wait" and desk.value(data.signal_key(op.id, op.name)) is not None:
        return tx.now
    return tx.now + data.FOREVER_MS if step.until is None else max(tx.now, step.until)


# Others -------------------------------------------------------------------------------------------


# path: a signal
def signal(tx: Transaction[J], batch: Sequence[Signal]) -> list[Answer]:
    owners = load(tx, batch)
    answers: list[Answer] = []
    for op in batch:
        ids = [one for one in op.ids if owners.shows(op.grant, one) and tx.job(one) is not None]
        desk = Desk(tx, [data.signal_key(one, op.name) for one in ids], ids)

        def send(job: J, op: Signal = op, desk: Desk = desk) -> bool:
            return _send(tx, desk, op, job)

        answers.append(operator.change_each(tx, op, owners, send))
        desk.write()
    return answers


def _send(tx: Transaction[J], desk: Desk, op: Signal, job: J) -> bool:
    key, head = data.signal_key(job.id, op.name), desk.head(job.id)
    if job.state in FINAL or desk.value(key) is not None or data.too_many_signals(head):
        return False
    sent = SentSignal(op.name, tx.now, op.value, "" if op.note is None else op.note.by)
    desk.put(data.rows_of_signal(job.id, sent))
    desk.put_head(job.id, replace(head, signals=head.signals + 1))
    kept = head.suspended
    waits = kept is not None and (kept.kind, kept.name, kept.token) == ("wait", op.name, job.token)
    if waits and job.state is State.PENDING and job.run_at > tx.now:
        move(tx, job, states.Hurried())
    return True


# path: a replay from a step
def replay_from(tx: Transaction[J], batch: Sequence[ReplayFrom]) -> list[Answer]:
    owners = load(tx, batch)
    answers: list[Answer] = []
    for op in batch:
        refused: dict[str, str] = {}

        def one(job: J, op: ReplayFrom = op, refused: dict[str, str] = refused) -> bool:
            found = _stored(tx, job)
            first = data.by_key(found.steps).get((op.name, op.key))
            if first is None or found.head is None or found.head.undone:
                return False
            if not operator.replay_one(tx, op, job, refused):
                return False
            _forget_from(tx, job.id, found, first.number)
            return True

        answers.append(replace(operator.change_each(tx, op, owners, one), refused=refused))
    return answers


def _stored(tx: Transaction[J], job: StoredJob) -> data.Found:
    rows = tx.list_records(SPACE, *data.keys_of(job.id)) if job.has_steps else []
    return data.Found(job.id, rows)


def _forget_from(tx: Transaction[J], job_id: str, found: data.Found, number: int) -> None:
    """Delete a step, all later ones, what undoes them, and the signals that came after it began."""
    (first,) = [step for step in found.steps if step.number == number]
    kept = [step for step in found.steps if step.number < number]
    gone = [step for step in found.steps if step.number >= number]
    signals = [sent for sent in found.signals if sent.at < first.at]
    undos = {n: spec for n, spec in found.undos.items() if n < number}
    assert found.head is not None
    head = replace(
        found.head,
        steps=len(kept),
        last=number - 1,
        bytes=sum(step.size for step in kept),
        signals=len(signals),
        undos=len(undos),
        suspended=None,
    )
    for step in gone:
        tx.drop_records(SPACE, *[data.step_key(job_id, step.name, step.key)] * 2)
        tx.drop_records(SPACE, *data.part_keys(job_id, step.name, step.key))
        tx.drop_records(SPACE, *data.undo_keys(job_id, step.number))
    for sent in found.signals:
        if sent not in signals:
            tx.drop_records(SPACE, *[data.signal_key(job_id, sent.name)] * 2)
    tx.put_records(SPACE, {data.head_key(job_id): data.encode(head)})


# What happens to jobs that have steps -------------------------------------------------------------


# path: steps undone
def undo(tx: Transaction[J], job: J) -> None:
    """Enqueue what undoes the steps of a job that is dead or cancelled: one after the other, the
    last first."""
    head = _head(tx, job)
    if head is None or not head.undos:
        return
    rows = tx.list_records(SPACE, *data.undo_keys(job.id))
    enqueue(tx, [ops.Enqueue(data.chained(data.Found(job.id, rows).undos), "skip")])
    tx.drop_records(SPACE, *data.undo_keys(job.id))
    head = replace(head, undos=0, undone=True)
    tx.put_records(SPACE, {data.head_key(job.id): data.encode(head)})


def _head(tx: Transaction[J], job: J) -> Head | None:
    """What is stored once for a job; nothing if it came from another store without it."""
    key = data.head_key(job.id)
    stored = tx.records(SPACE, [key]).get(key)
    return None if stored is None else data.decode_head(stored)


def replayed(tx: Transaction[J], job: J) -> None:
    """A job whose steps were undone starts over."""
    head = _head(tx, job)
    if head is not None and head.undone:
        tx.drop_records(SPACE, *data.keys_of(job.id))
        fresh = Head(head.queue, head.tenant)
        tx.put_records(SPACE, {data.head_key(job.id): data.encode(fresh)})


def removed(tx: Transaction[J], job: J) -> None:
    """The steps of a job go with it."""
    tx.drop_records(SPACE, *data.keys_of(job.id))


RULES = Rules(
    operations={
        Checkpoint: checkpoint,
        Recall: recall,
        Suspend: suspend,
        Signal: signal,
        ReplayFrom: replay_from,
    },
    given_up=undo,
    replayed=replayed,
    removed=removed,
)
