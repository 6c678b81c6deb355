"""Bulk acks, for acks that only finish their job.

The core's `ack` writes one job at a time. For batches of 100, this takes a sixth of the time
(75,000 jobs a second instead of 12,000; in memory, two cores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from tenure.core import leases
from tenure.core.leases import OK
from tenure.core.moves import PARENTS_DONE, settle
from tenure.engines.sql.rows import CODES, LEASED, result_text
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import TenureError
from tenure.model import ops, states
from tenure.model.job import State
from tenure.model.ops import Answer

# The target state of an acked job: the same for every job.
_ACKED = CODES[states.plain(State.LEASED, states.Acked).target][0]

Held = tuple[int, str, int, int, int, str | None]  # seq, id, lane, state, token, unique key


def ack(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    answers: list[Answer] = []
    for plain, run in groupby(batch, key=_is_plain):
        tx.forget()
        answers += (_ack_plain if plain else leases.ack)(tx, list(run))
    return answers


def _is_plain(op: ops.Ack) -> bool:
    return op.keep and not op.then


def _ack_plain(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    held = {row[1]: row for row in _find(tx, [op.id for op in batch]) if row[3] == LEASED}
    done: list[tuple[Held, str | None]] = []
    answers: list[Answer] = []
    for op in batch:
        row = held.get(op.id)
        if row is not None and row[4] == op.token and not _hides(tx, op, row):
            del held[op.id]
            done.append((row, result_text(op.result)))
            answers.append(OK)
        else:
            _finish(tx, done)  # which may move this job
            done = []
            answers.append(_why_lost(tx, op))
    _finish(tx, done)
    return answers


def _find(tx: Transaction, ids: list[str]) -> list[Held]:
    places = tx.books.places
    known = [(id, places.pop(id)) for id in ids if id in places]
    if len(known) < len(ids):
        return tx.db.packed("held_by_id", listed(ids))
    rows = tx.db.packed("held_by_seq", listed([seq for _, (seq, _, _) in known]))
    now = {seq: (state, token) for seq, state, token in rows}
    return [
        (seq, id, lane, *now[seq], unique_key)
        for id, (seq, lane, unique_key) in known
        if seq in now
    ]


def _why_lost(tx: Transaction, op: ops.Ack) -> TenureError:
    tx.forget()
    (problem,) = leases.ack(tx, [op])
    assert isinstance(problem, TenureError)
    return problem


def _hides(tx: Transaction, op: ops.Ack, row: Held) -> bool:
    return op.grant is not None and not op.grant.allows(*tx.owner_of(row[2]))


def _finish(tx: Transaction, done: list[tuple[Held, str | None]]) -> None:
    if not done:
        return
    plain = [row[0] for row, result in done if result is None]
    if plain:
        tx.db.run("finish_jobs", _ACKED, tx.now, tx.now, listed(plain))
    if len(plain) < len(done):
        tx.db.many(
            "finish_job",
            [
                (_ACKED, tx.now, tx.now, result, row[0])
                for row, result in done
                if result is not None
            ],
        )
    lanes = Counter([row[2] for row, _ in done])
    tx.books.load(lanes)
    counts = [(tx.books.lane_by_id(lane_id), n) for lane_id, n in lanes.items()]
    tx.books.move_all(counts, LEASED, _ACKED)
    for (_seq, _id, lane_id, _code, _token, unique_key), _ in done:
        if unique_key is not None:
            tx.free_key(lane_id, unique_key)
    if tx.db.one("any_deps"):
        tx.news += [(row, PARENTS_DONE) for row in tx.load_seqs(row[0] for row, _ in done)]
        settle(tx)
