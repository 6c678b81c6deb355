"""What the holder of a lease does: ack, fail, release, extend, report progress.

Each is fenced: the job must still be leased under the token of the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenure import ops, states
from tenure.engines.sqlite.enqueue import Plan
from tenure.engines.sqlite.rows import LEASED, Row
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import JobNotFound, LeaseLost, TenureError
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
    """Acknowledgements in a row are written together, but for those that enqueue."""
    rows = tx.rows(op.id for op in batch)
    answers: list[Answer] = []
    done: list[tuple[Row, ops.Ack]] = []
    for op in batch:
        row = _held(rows, op.id, op.token)
        if isinstance(row, TenureError):
            answers.append(row)
        elif op.then:
            _finish(tx, done, rows)
            done = []
            answers.append(_ack_and_enqueue(tx, row, op, rows))
        else:
            row.token = 0  # a second ack in this batch finds it taken
            done.append((row, op))
            answers.append(OK)
    _finish(tx, done, rows)
    return answers


def _finish(tx: Transaction, done: list[tuple[Row, ops.Ack]], rows: dict[str, Row]) -> None:
    if not done:
        return
    tx.finish([row for row, _ in done], [_text(op) for _, op in done])
    tx.settle()
    _forget(tx, [row for row, op in done if not op.keep], rows)


def _ack_and_enqueue(tx: Transaction, row: Row, op: ops.Ack, rows: dict[str, Row]) -> Answer:
    plan = Plan(tx, op.then, leaving=op.id)
    answer = plan.add(ops.Enqueue(op.then))
    if isinstance(answer, TenureError):
        return answer
    tx.finish([row], [_text(op)])
    tx.settle()
    plan.carry_out()
    if not op.keep:
        _forget(tx, [row], rows)
    return OK


def _forget(tx: Transaction, ended: list[Row], rows: dict[str, Row]) -> None:
    if ended:
        tx.remove(ended)
    for row in ended:
        del rows[row.id]


def _text(op: ops.Ack) -> str | None:
    return None if op.result is None else bytes(op.result).decode()


def fail(tx: Transaction, batch: Sequence[ops.Fail]) -> list[Answer]:
    return _give_back(
        tx,
        batch,
        lambda op: states.Failed(op.message, op.type, op.traceback, op.retry_in_ms, op.fatal),
    )


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
