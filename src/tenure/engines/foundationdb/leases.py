"""What the holder of a lease does: ack, fail, release, extend, report."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tenure import ops, states
from tenure.engines.foundationdb import enqueue
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.tx import Held, Tx
from tenure.errors import JobNotFound, LeaseLost, TenureError
from tenure.job import NULL, State
from tenure.ops import Answer


def _leased(tx: Tx, job_id: str, token: int) -> Held | TenureError:
    held = tx.job(job_id)
    if held is None:
        return JobNotFound(job_id)
    if held.record.state is not State.LEASED or held.record.token != token:
        return LeaseLost(job_id, held.record.state.value)
    return held


def ack(tx: Tx, op: ops.Ack) -> Answer:
    held = _leased(tx, op.id, op.token)
    if isinstance(held, TenureError):
        return held
    planned = enqueue.plan(tx, ops.Enqueue(op.then), leaving=op.id) if op.then else None
    if isinstance(planned, TenureError):
        return planned
    tx.move(held, states.Acked())
    if op.keep and op.result != NULL:
        tx.put_parts(bytes(op.result), k.RESULT, op.id)
        tx.put(held, replace(held.record, has_result=True))
    if planned is not None:
        enqueue.carry_out(tx, planned)
    if not op.keep:
        tx.remove(held)
    return ops.Ok()


def fail(tx: Tx, op: ops.Fail) -> Answer:
    return _give_back(tx, op.id, op.token, op.event())


def release(tx: Tx, op: ops.Release) -> Answer:
    return _give_back(tx, op.id, op.token, states.Released(op.delay_ms))


def _give_back(tx: Tx, job_id: str, token: int, event: states.Event) -> Answer:
    held = _leased(tx, job_id, token)
    if isinstance(held, TenureError):
        return held
    tx.move(held, event)
    tx.tells = True
    return ops.Moved(held.record.state, held.record.run_at)


def extend(tx: Tx, op: ops.Extend) -> Answer:
    return _keep(
        tx,
        op.id,
        op.token,
        lease_until=tx.now + op.lease_ms,
        lease_ms=op.lease_ms,
        lease_version=tx.version,
    )


def progress(tx: Tx, op: ops.Progress) -> Answer:
    return _keep(tx, op.id, op.token, progress=op.percent, note=op.note)


def _keep(tx: Tx, job_id: str, token: int, **fields: Any) -> Answer:
    held = _leased(tx, job_id, token)
    if isinstance(held, TenureError):
        return held
    tx.move(held, states.Kept())
    tx.put(held, replace(held.record, **fields))
    return ops.Ok()
