"""What the holder of a lease does: ack, fail, release, extend, report progress.

Each is fenced: the job must still be leased under the token of the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenure import ops, states
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.enqueue import Plan
from tenure.engines.sqlite.rows import LEASED, Row
from tenure.engines.sqlite.transaction import Held, Transaction
from tenure.errors import JobNotFound, LeaseLost, TenureError
from tenure.job import NULL
from tenure.ops import Answer

OK = ops.Ok()


def _held(rows: dict[str, Row], job_id: str, token: int) -> Row | TenureError:
    """The row, if the token still holds its lease."""
    row = rows.get(job_id)
    if row is None:
        return JobNotFound(job_id)
    if row.code != LEASED or row.token != token:
        return LeaseLost(job_id, row.state.value)
    return row


def ack(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    """Acknowledgements in a row are written together, but for those that enqueue or delete."""
    found: list[Held] = tx.db.packed("held_by_id", listed([op.id for op in batch]))
    rows = {row[1]: row for row in found}
    answers: list[Answer] = []
    done: list[Held] = []
    results: list[str | None] = []
    for op in batch:
        row = rows.get(op.id)
        if row is None or row[3] != LEASED or row[4] != op.token:
            tx.finish(done, results)
            done, results = [], []
            answers.append(_lost(tx, op.id))
        elif op.then or not op.keep:
            tx.finish(done, results)
            done, results = [], []
            answers.append(_ack_alone(tx, row, op))
            if answers[-1] is OK:
                del rows[op.id]
        else:
            done.append(row)
            results.append(_text(op))
            answers.append(OK)
            del rows[op.id]
    tx.finish(done, results)
    return answers


def _lost(tx: Transaction, job_id: str) -> TenureError:
    """Why a job cannot be acknowledged; the acknowledgements before may have moved it."""
    row = tx.rows([job_id]).get(job_id)
    return JobNotFound(job_id) if row is None else LeaseLost(job_id, row.state.value)


def _ack_alone(tx: Transaction, row: Held, op: ops.Ack) -> Answer:
    """An acknowledgement that enqueues other jobs, or removes its own."""
    plan = Plan(tx, op.then, leaving=op.id)
    answer = plan.add(ops.Enqueue(op.then))
    if isinstance(answer, TenureError):
        return answer
    tx.finish([row], [_text(op)])
    plan.carry_out()
    if not op.keep:
        tx.remove(list(tx.rows([op.id]).values()))
    return OK


def _text(op: ops.Ack) -> str | None:
    return None if op.result is NULL or op.result == NULL else str(op.result, "utf-8")


def fail(tx: Transaction, batch: Sequence[ops.Fail]) -> list[Answer]:
    return _give_back(tx, batch, ops.Fail.event)


def release(tx: Transaction, batch: Sequence[ops.Release]) -> list[Answer]:
    return _give_back(tx, batch, lambda op: states.Released(op.delay_ms))


def _give_back(
    tx: Transaction, batch: Sequence[Any], event: Callable[[Any], states.Event]
) -> list[Answer]:
    rows = tx.rows(op.id for op in batch)
    answers: list[Answer] = []
    for op in batch:
        row = _held(rows, op.id, op.token)
        if isinstance(row, TenureError):
            answers.append(row)
        else:
            tx.move(row, event(op))
            tx.settle()
            answers.append(ops.Moved(row.state, row.run_at))
    return answers


def extend(tx: Transaction, batch: Sequence[ops.Extend]) -> list[Answer]:
    return _keep(tx, batch, "extend_job", lambda op: (tx.now + op.lease_ms,))


def progress(tx: Transaction, batch: Sequence[ops.Progress]) -> list[Answer]:
    return _keep(tx, batch, "note_progress", lambda op: (op.percent, op.note))


def _keep(
    tx: Transaction,
    batch: Sequence[Any],
    statement: str,
    values: Callable[[Any], tuple[Any, ...]],
) -> list[Answer]:
    rows = tx.rows(op.id for op in batch)
    held = [_held(rows, op.id, op.token) for op in batch]
    tx.db.many(
        statement,
        [
            (*values(op), tx.now, row.seq)
            for op, row in zip(batch, held, strict=True)
            if isinstance(row, Row)
        ],
    )
    return [OK if isinstance(row, Row) else row for row in held]
