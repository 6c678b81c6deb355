"""What the holder of a lease does: ack, fail, release, extend, report progress.

Each is fenced: the job must still be leased under the token of the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tenure import ops, states
from tenure.engines.postgres.enqueue import Plan
from tenure.engines.postgres.places import Places
from tenure.engines.postgres.rows import CODES, LEASED, STATES, Row
from tenure.engines.postgres.transaction import Transaction
from tenure.errors import Busy, JobNotFound, LeaseLost, TenureError
from tenure.job import NULL, State
from tenure.ops import Answer

OK = ops.Ok()
# Where the table leads a leased job that is acknowledged: the same for every job.
_ACKED = CODES[states.plain(State.LEASED, states.Acked).target][0]


def _held(rows: dict[str, Row], job_id: str, token: int) -> Row | TenureError:
    """The row, if the token still holds its lease."""
    row = rows.get(job_id)
    if row is None:
        return JobNotFound(job_id)
    if row.code != LEASED or row.token != token:
        return LeaseLost(job_id, row.state.value)
    return row


def ack(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    """Acknowledgements in a row are one statement, unless one enqueues or deletes."""
    tx.forget()
    plain = not any(op.then or not op.keep for op in batch)
    if plain and len({op.id for op in batch}) == len(batch):
        return _ack_together(tx, batch)
    rows = tx.load(op.id for op in batch)
    answers = [_ack_alone(tx, rows, op) for op in batch]
    tx.settle()
    tx.flush()
    return answers


def _ack_together(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    order, columns = columns_of(batch, None)
    row = tx.db.one("ack", None, tx.given, *columns)
    assert row is not None
    missing, parents = row
    if parents:
        tx.read_clock()
        tx.acked(parents)
    if not missing:
        return [OK] * len(batch)
    lost = {order[n - 1].id for n in missing}
    rows = tx.load(lost)
    return [_lost(rows, op) if op.id in lost else OK for op in batch]


def columns_of(
    batch: Sequence[ops.Ack], places: Places | None
) -> tuple[list[ops.Ack], tuple[Any, ...]]:
    """What the server needs to know. It goes in the order of the ids, in which others ack, too, so
    that no two wait for each other."""
    order = sorted(batch, key=lambda op: op.id)
    ids, tokens = [op.id for op in order], [op.token for op in order]
    known = None if places is None else places.take(ids)
    results = [_text(op) for op in order]
    return order, (
        ids if known is None else None,
        known,
        tokens,
        None if all(result is None for result in results) else results,
        LEASED,
        _ACKED,
    )


def _lost(rows: dict[str, Row], op: ops.Ack) -> TenureError:
    """Why an acknowledgement was too late."""
    row = rows.get(op.id)
    return JobNotFound(op.id) if row is None else LeaseLost(op.id, row.state.value)


def _ack_alone(tx: Transaction, rows: dict[str, Row], op: ops.Ack) -> Answer:
    """An acknowledgement that may enqueue other jobs, or remove its own."""
    row = _held(rows, op.id, op.token)
    if isinstance(row, TenureError):
        return row
    plan = None
    if op.then:
        tx.flush()
        plan = Plan(tx, op.then, leaving=op.id)
        answer = plan.add(ops.Enqueue(op.then))
        if isinstance(answer, TenureError):
            return answer
    tx.move(row, states.Acked())
    tx.finished(row, _text(op))
    tx.settle()
    if not op.keep:
        tx.remove(row)
    if plan is not None:
        tx.flush()
        plan.carry_out()
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
    """What ends of it moves none that is leased: those who wait are told at the end."""
    tx.forget()
    rows = tx.load(op.id for op in batch)
    answers: list[Answer] = []
    for op in batch:
        row = _held(rows, op.id, op.token)
        if isinstance(row, TenureError):
            answers.append(row)
        else:
            tx.move(row, event(op))
            answers.append(ops.Moved(row.state, row.run_at))
    tx.settle()
    tx.flush()
    return answers


def extend(tx: Transaction, batch: Sequence[ops.Extend]) -> list[Answer]:
    answers, held = _keep(tx, batch)
    until = {seq: tx.now + op.lease_ms for seq, op in held}
    if until:
        tx.db.send("extend", tx.now, list(until), list(until.values()))
    return answers


def progress(tx: Transaction, batch: Sequence[ops.Progress]) -> list[Answer]:
    answers, held = _keep(tx, batch)
    last = dict(held)
    if last:
        percents, notes = [op.percent for op in last.values()], [op.note for op in last.values()]
        tx.db.send("note_progress", tx.now, list(last), percents, notes)
    return answers


def _keep(tx: Transaction, batch: Sequence[Any]) -> tuple[list[Answer], list[tuple[int, Any]]]:
    """The answers, and the places of the leases that are held; of one job, what comes last
    counts. A job that another transaction keeps locked is left as it is, and costs the others
    nothing."""
    tx.forget()
    wanted = list(dict.fromkeys((op.id, op.token) for op in batch))
    ids, tokens = map(list, zip(*wanted, strict=True))
    found = {row[0]: row for row in tx.db.all("hold", tx.given, ids, tokens, LEASED)}
    answers: list[Answer] = []
    held: list[tuple[int, Any]] = []
    for op in batch:
        _, seq, code, token, mine, tx.now = found.get(op.id, (None, 0, 0, 0, False, tx.now))
        if op.id not in found:
            answers.append(JobNotFound(op.id))
        elif code != LEASED or token != op.token:
            answers.append(LeaseLost(op.id, STATES[code].value))
        elif not mine:
            answers.append(Busy(f"job {op.id}: another transaction holds it; try again"))
        else:
            answers.append(OK)
            held.append((seq, op))
    return answers, held
