"""Bulk acks, for acks that only finish their job.

The core's `ack` writes one job at a time. For batches of 100, this takes a sixth of the time
(75,000 jobs a second instead of 12,000; in memory, two cores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from tenure.core import leases
from tenure.core.leases import OK
from tenure.core.moves import PARENTS_DONE, settle
from tenure.engines.sql.rows import CODES, LEASED, result_text
from tenure.engines.sqlite.counters import Place
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import TenureError
from tenure.model import ops, states
from tenure.model.job import NULL, State
from tenure.model.ops import Answer

# The target state of an acked job: the same for every job.
_ACKED = CODES[states.plain(State.LEASED, states.Acked).target][0]
# Of a place:
_SEQ: Final = 0
_LANE: Final = 1
_TOKEN: Final = 3


def ack(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    answers: list[Answer] = []
    for plain, run in groupby(batch, key=_is_plain):
        tx.forget()
        answers += (_ack_plain if plain else leases.ack)(tx, list(run))
    return answers


def _is_plain(op: ops.Ack) -> bool:
    return op.keep and not op.then


def _ack_plain(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    known = _known(tx, batch)
    if known:
        _finish(tx, known)
        return [OK] * len(batch)
    held: dict[str, Place] = {
        id: (seq, lane, unique_key, token)
        for seq, id, lane, code, token, unique_key in tx.db.packed(
            "held_by_id", listed([op.id for op in batch])
        )
        if code == LEASED
    }
    done: list[tuple[ops.Ack, Place]] = []
    answers: list[Answer] = []
    for op in batch:
        place = held.get(op.id)
        if place is not None and place[_TOKEN] == op.token and not _hides(tx, op, place):
            done.append((op, held.pop(op.id)))
            answers.append(OK)
        else:
            _finish(tx, done)  # which may move this job
            done = []
            answers.append(_why_lost(tx, op))
    _finish(tx, done)
    return answers


def _known(tx: Transaction, batch: Sequence[ops.Ack]) -> list[tuple[ops.Ack, Place]]:
    """The operations with the places of their jobs, if the books show that each of them holds a
    lease; otherwise nothing."""
    places = tx.books.places
    ids = [op.id for op in batch]
    try:
        found = [places[job_id] for job_id in ids]
    except KeyError:
        return []
    tokens_match = [place[_TOKEN] for place in found] == [op.token for op in batch]
    unbound = [op.grant for op in batch].count(None) == len(batch)
    if tokens_match and unbound and len(set(ids)) == len(ids):
        return [*zip(batch, found, strict=True)]
    return []


def _why_lost(tx: Transaction, op: ops.Ack) -> TenureError:
    tx.forget()
    (problem,) = leases.ack(tx, [op])
    assert isinstance(problem, TenureError)
    return problem


def _hides(tx: Transaction, op: ops.Ack, place: Place) -> bool:
    return op.grant is not None and not op.grant.allows(*tx.owner_of(place[_LANE]))


def _finish(tx: Transaction, done: Sequence[tuple[ops.Ack, Place]]) -> None:
    """Finish leased jobs. Their places come from the store or from the books; a token that does not
    hold the lease changes nothing, whatever the books say."""
    if not done:
        return
    if _mark_done(tx, done) != len(done):
        raise RuntimeError("the books do not match the leased jobs; nothing was changed: try again")
    lanes = Counter([place[_LANE] for _, place in done])
    tx.books.load(lanes)
    counts = [(tx.books.lane_by_id(lane_id), n) for lane_id, n in lanes.items()]
    tx.books.move_all(counts, LEASED, _ACKED)
    for op, (_, lane_id, unique_key, _) in done:
        tx.books.places.pop(op.id, None)
        if unique_key is not None:
            tx.free_key(lane_id, unique_key)
    if tx.db.one("any_deps"):
        tx.news += [(row, PARENTS_DONE) for row in tx.load_seqs(place[_SEQ] for _, place in done)]
        settle(tx)


def _mark_done(tx: Transaction, done: Sequence[tuple[ops.Ack, Place]]) -> int:
    """Set the state of jobs that are leased under these tokens. Returns how many there were."""
    without_result: dict[int, list[int]] = {}  # by token
    with_result: list[tuple[str | None, int, int, int]] = []
    for op, place in done:
        if op.result is not NULL and (result := result_text(op.result)) is not None:
            with_result.append((result, tx.now, place[_SEQ], op.token))
        elif op.token in without_result:
            without_result[op.token].append(place[_SEQ])
        else:
            without_result[op.token] = [place[_SEQ]]
    found = tx.db.many("finish_job", with_result)
    for token, seqs in without_result.items():
        first, last = min(seqs), max(seqs)
        if last - first + 1 == len(seqs):  # as after most claims: without gaps
            found += tx.db.run("finish_run", tx.now, token, first, last)
        else:
            found += tx.db.run("finish_jobs", tx.now, token, listed(seqs))
    return found
