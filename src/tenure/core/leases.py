"""Operations of a lease holder: ack, fail, release, extend, progress.

Each is fenced: the job must still be leased under the token of the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tenure.core.enqueue import Plan
from tenure.core.grants import Owners, load
from tenure.core.moves import move, remove, settle
from tenure.core.transaction import J, Lease, StoredJob, Transaction
from tenure.errors import Busy, JobNotFound, LeaseLost, TenureError
from tenure.model import ops, states
from tenure.model.history import PAST_MS, Past, heard_key
from tenure.model.job import NULL, State
from tenure.model.ops import Answer

OK = ops.Ok()
G = TypeVar("G", ops.Fail, ops.Release)
K = TypeVar("K", bound=ops.LeaseOp)


def lost(job: StoredJob | Lease | None, job_id: str, token: int) -> TenureError | None:
    """The error if this token does not hold the job's lease, or None if it does."""
    if job is None:
        return JobNotFound(job_id)
    if job.state is not State.LEASED or job.token != token:
        return LeaseLost(job_id, job.state.value)
    return None


def refused(
    tx: Transaction[J], job: StoredJob | Lease | None, op: ops.LeaseOp
) -> TenureError | None:
    """The same for an operation. If the job was cancelled, its worker learns of it now."""
    problem = lost(job, op.id, op.token)
    if job is not None and job.state is State.CANCELLED and job.token == op.token:
        _note_heard(tx, op)
    return problem


def not_acked(tx: Transaction[J], job: J | None, op: ops.Ack) -> ops.Moved | TenureError | None:
    """The result of an ack that changes nothing: its token has finished the job before, or it does
    not hold the lease. None if it holds it."""
    if job is not None and job.state is State.DONE and job.token == op.token:
        return ops.Moved(job.state, job.run_at)
    return refused(tx, job, op)


def _seen(tx: Transaction[J], op: ops.LeaseOp, owners: Owners) -> J | None:
    """The job, if it exists and the operation may see it."""
    return tx.job(op.id) if owners.shows(op.grant, op.id) else None


def held_job(tx: Transaction[J], op: ops.LeaseOp, owners: Owners) -> J | TenureError:
    """The job, if the token of the operation holds its lease."""
    job = _seen(tx, op, owners)
    return JobNotFound(op.id) if job is None else refused(tx, job, op) or job


def ack(tx: Transaction[J], batch: Sequence[ops.Ack]) -> list[Answer]:
    """Acknowledge jobs. Engines handle acks that only finish their job in bulk."""
    owners = load(tx, batch)
    return [_ack(tx, op, owners) for op in batch]


# path: an ack by the rules
def _ack(tx: Transaction[J], op: ops.Ack, owners: Owners) -> Answer:
    job = _seen(tx, op, owners)
    ended = not_acked(tx, job, op)
    if job is None or ended is not None:
        return ended or JobNotFound(op.id)
    then = ops.Enqueue(op.then, grant=op.grant)
    plan = Plan(tx, [then], leaving=op.id) if op.then else None
    if plan is not None:
        accepted = plan.add(then)
        if isinstance(accepted, TenureError):
            return accepted
    move(tx, job, states.Acked())
    if op.keep and op.result != NULL:
        tx.put_result(job, op.result)
    settle(tx)
    if plan is not None:
        plan.carry_out()
        owners.add(op.then)
    if not op.keep:
        remove(tx, job)
    return OK


# path: a failure
def fail(tx: Transaction[J], batch: Sequence[ops.Fail]) -> list[Answer]:
    return _give_back(tx, batch, ops.Fail.event)


# path: a release
def release(tx: Transaction[J], batch: Sequence[ops.Release]) -> list[Answer]:
    return _give_back(tx, batch, ops.Release.event)


def _give_back(
    tx: Transaction[J], batch: Sequence[G], event: Callable[[G], states.Event]
) -> list[Answer]:
    """Children are notified at the end: none of them is leased. But an error names their state."""
    owners = load(tx, batch)
    answers: list[Answer] = []
    for op in batch:
        job = held_job(tx, op, owners)
        if isinstance(job, TenureError) and tx.news:
            settle(tx)
            job = held_job(tx, op, owners)
        if isinstance(job, TenureError):
            answers.append(job)
        else:
            move(tx, job, event(op))
            answers.append(ops.Moved(job.state, job.run_at))
    settle(tx)
    return answers


# path: a renewal
def extend(tx: Transaction[J], batch: Sequence[ops.Extend]) -> list[Answer]:
    answers, held = keep(tx, batch)
    if held:
        tx.extend({op.id: op.lease_ms for op in held})
    return answers


def progress(tx: Transaction[J], batch: Sequence[ops.Progress]) -> list[Answer]:
    answers, held = keep(tx, batch)
    if held:
        tx.report({op.id: (op.percent, op.note) for op in held})
    return answers


def keep(tx: Transaction[J], batch: Sequence[K]) -> tuple[list[Answer], list[K]]:
    """The results, and the operations whose lease is held. Of several for one job, the last counts.
    A job locked by another transaction is skipped without delaying the others."""
    owners = Owners(tx, [(op.grant, op.id) for op in batch])
    leases = [(op.id, op.token) for op in batch if owners.shows(op.grant, op.id)]
    found = tx.hold(leases) if leases else {}
    owners.look_up()
    answers: list[Answer] = []
    held: list[K] = []
    for op in batch:
        job = found.get(op.id) if owners.shows(op.grant, op.id) else None
        problem = refused(tx, job, op)
        if problem is None and job is not None and job.busy:
            problem = Busy(f"job {op.id}: locked by another transaction; try again")
        if problem is None:
            held.append(op)
        answers.append(problem or OK)
    return answers, held


def _note_heard(tx: Transaction[J], op: ops.LeaseOp) -> None:
    """Note when a worker is first told that its job was cancelled."""
    key = heard_key(op.id, op.token)
    if tx.record("past", key) is None:
        past = Past(tx.now, "cancel_heard")
        tx.put_record("past", key, msgspec.json.encode(past), tx.now + PAST_MS)
