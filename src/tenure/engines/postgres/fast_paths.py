"""Batches that run as one statement, which is its own transaction and takes one round trip.

Most batches qualify: jobs without an id, unique key or dependency; acks that enqueue nothing;
claims of one queue that has one lane and no limits, or in which each tenant is served once; and
such acks followed by such claims. If the server finds that a batch does not qualify after all,
nothing changes and it takes the slow path. For 100 jobs at once, compared to the slow path: 9.5 ms
to enqueue (11 ms), 7.6 ms to claim (12.6 ms), 2.4 ms to ack (7.1 ms), on a server without fsync and
two busy cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from tenure.core.enqueue import needs_no_lookup
from tenure.core.leases import OK
from tenure.engines.postgres import insert, plain_acks
from tenure.engines.postgres.claimed_places import Places
from tenure.engines.postgres.session import Db
from tenure.engines.sql.rows import CODES, STATES, job_of, leased_job
from tenure.errors import JobNotFound, LeaseLost
from tenure.model import ops, states
from tenure.model.job import State
from tenure.model.ops import Answer, Op

_CLAIMED = states.plain(State.PENDING, states.Claimed)
_REFUSED = "TN003"  # raised by the server if it takes more than one statement
_SEQ, _TENANT = 0, 17  # columns of a claimed row

Way = Callable[[Db, str, Any, int | None, Places], list[Answer] | None]


def fast_path_of(batch: Sequence[Op]) -> Way | None:
    """The function that runs the batch in one statement, or None."""
    kinds = tuple(kind for kind, _ in groupby(batch, type))
    fits, way = _WAYS.get(kinds, (_never, _ack))
    return way if fits(batch) else None


def _never(batch: Sequence[Op]) -> bool:
    return False


def _enqueue_fits(batch: Sequence[ops.Enqueue]) -> bool:
    specs = [spec for op in batch for spec in op.jobs]
    return bool(specs) and needs_no_lookup(specs)


# path: an enqueue in one statement
def _enqueue(
    db: Db, mark: str, batch: Sequence[ops.Enqueue], given: int | None, places: Places
) -> list[Answer]:
    specs = [spec for op in batch for spec in op.jobs]
    columns = insert.columns_of(specs)
    now = db.value("enqueue_alone", mark, given, *columns)
    return [ops.Enqueued([spec.id for spec in op.jobs], [True] * len(op.jobs), now) for op in batch]


# path: an ack in one statement
def _ack(
    db: Db, mark: str, batch: Sequence[ops.Ack], given: int | None, places: Places
) -> list[Answer] | None:
    _, columns = plain_acks.columns_of(batch, places)
    try:
        done = db.value("ack_alone", mark, given, *columns)
    except psycopg.Error as error:
        if error.sqlstate == _REFUSED:
            return None
        raise
    return [OK for _ in batch] if done else None


def _claim_fits(batch: Sequence[ops.Claim]) -> bool:
    queues = batch[0].queues
    return len(queues) == 1 and all(
        op.queues == queues and op.tenant is None and not op.not_groups for op in batch
    )


# path: a claim in one statement
def _claim(
    db: Db, mark: str, batch: Sequence[ops.Claim], given: int | None, places: Places
) -> list[Answer] | None:
    calls = _calls_of(batch)
    moved = CODES[_CLAIMED.target][0], _CLAIMED.attempts
    rows = db.all("claim_alone", mark, given, *calls, *moved)
    if rows and rows[0][_SEQ] is None:
        return None
    return _answers_to_claims(batch, rows, places)


def _calls_of(batch: Sequence[ops.Claim]) -> tuple[Any, ...]:
    """The parameters of claims: the queue, the call that each job goes to, workers and leases."""
    return (
        batch[0].queues[0],
        [n for n, op in enumerate(batch, 1) for _ in range(op.limit)],
        [op.worker for op in batch],
        [op.lease_ms for op in batch],
    )


def _answers_to_claims(
    batch: Sequence[ops.Claim], rows: list[TupleRow], places: Places
) -> list[Answer]:
    (queue,) = batch[0].queues
    found = [leased_job(row[:_TENANT], queue, *row[_TENANT:]) for row in rows]
    places.note(
        (job.id, row[_SEQ]) for job, row in zip(found, rows, strict=True) if job.unique_key is None
    )
    jobs = iter(found)
    return [ops.Leased(list(islice(jobs, op.limit))) for op in batch]


def _split(batch: Sequence[Op]) -> tuple[list[ops.Ack], list[ops.Claim]]:
    acks = [op for op in batch if isinstance(op, ops.Ack)]
    return acks, [op for op in batch if isinstance(op, ops.Claim)]


def _both_fit(batch: Sequence[Op]) -> bool:
    acks, claims = _split(batch)
    return plain_acks.is_plain(acks) and _claim_fits(claims)


# path: acks and a claim in one statement
def _ack_and_claim(
    db: Db, mark: str, batch: Sequence[Op], given: int | None, places: Places
) -> list[Answer] | None:
    """If a lease was lost, the claim may change the state that the ack must report: such a batch is
    rejected."""
    acks, claims = _split(batch)
    _, columns = plain_acks.columns_of(acks, places)
    try:
        rows = db.all("ack_and_claim", mark, given, *columns, *_calls_of(claims), _CLAIMED.attempts)
    except psycopg.Error as error:
        if error.sqlstate == _REFUSED:
            return None
        raise
    if rows and rows[0][_SEQ] is None:
        return None
    return [*(OK for _ in acks), *_answers_to_claims(claims, rows, places)]


# Results that were lost --------------------------------------------------------------------------


def recover(db: Db, mark: str, batch: Sequence[Op]) -> list[Answer]:
    """The results of a batch that was committed in one statement, from what it left in the
    tables."""
    return [
        answer
        for kind, run in groupby(batch, type)
        for answer in _RECOVERIES[kind](db, mark, list(run))
    ]


def _enqueued(db: Db, mark: str, batch: Sequence[ops.Enqueue]) -> list[Answer]:
    ids = [spec.id for op in batch for spec in op.jobs]
    created = [row[3] for row in db.all("states_of", ids)]
    return [
        ops.Enqueued([spec.id for spec in op.jobs], [True] * len(op.jobs), max(created, default=0))
        for op in batch
    ]


def _acked(db: Db, mark: str, batch: Sequence[ops.Ack]) -> list[Answer]:
    """A job that is done under the token was acked, no matter by which call."""
    found = {row[0]: row for row in db.all("states_of", [op.id for op in batch])}
    answers: list[Answer] = []
    for op in batch:
        _, code, token, _ = found.get(op.id, (None, None, None, None))
        if code is None:
            answers.append(JobNotFound(op.id))
        elif STATES[code] is State.DONE and token == op.token:
            answers.append(OK)
        else:
            answers.append(LeaseLost(op.id, STATES[code].value))
    return answers


def _claimed(db: Db, mark: str, batch: Sequence[ops.Claim]) -> list[Answer]:
    """The jobs that are still leased, for the calls they were given to."""
    tokens: list[int] = db.value("marked_tokens", mark) or []
    seqs = [seq for (seq,) in db.all("leased_under", batch[0].queues[0], mark)]
    jobs = {row[0]: job_of(row) for row in db.all("read_jobs", seqs)}
    mine = [jobs[seq] for seq in seqs]
    tokens += [0] * (len(batch) - len(tokens))
    return [ops.Leased([job for job in mine if job.token == token]) for token in tokens]


_RECOVERIES: dict[type[Op], Callable[[Db, str, Any], list[Answer]]] = {
    ops.Enqueue: _enqueued,
    ops.Ack: _acked,
    ops.Claim: _claimed,
}
_WAYS: dict[tuple[type[Op], ...], tuple[Callable[[Any], bool], Way]] = {
    (ops.Enqueue,): (_enqueue_fits, _enqueue),
    (ops.Ack,): (plain_acks.is_plain, _ack),
    (ops.Claim,): (_claim_fits, _claim),
    (ops.Ack, ops.Claim): (_both_fit, _ack_and_claim),
}
