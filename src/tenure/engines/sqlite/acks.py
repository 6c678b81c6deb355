"""Bulk acks, for acks that only finish their job.

The core's `ack` writes one job at a time. For batches of 100, this takes a sixth of the time
(75,000 jobs a second instead of 12,000; in memory, two cores).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from tenure.core import leases
from tenure.core.leases import OK
from tenure.core.moves import PARENTS_DONE, settle
from tenure.engines.sql.rows import CODES, LEASED, result_text
from tenure.engines.sqlite.counters import Place
from tenure.engines.sqlite.db import listed
from tenure.engines.sqlite.transaction import Transaction
from tenure.model import ops, states
from tenure.model.job import NULL, State
from tenure.model.ops import Answer
from tenure.model.tally import tally

# The target state of an acked job: the same for every job.
_ACKED = CODES[states.plain(State.LEASED, states.Acked).target][0]
# Of a place:
_SEQ: Final = 0
_LANE: Final = 1
_TOKEN: Final = 3


def ack(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    plain = [op.keep and not op.then for op in batch]
    if all(plain):
        return _ack_plain(tx, batch)
    answers: list[Answer] = []
    for is_plain, run in groupby(zip(plain, batch, strict=True), key=itemgetter(0)):
        tx.forget()
        answers += (_ack_plain if is_plain else leases.ack)(tx, [op for _, op in run])
    return answers


# path: a plain ack
def _ack_plain(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Answer]:
    known = _known(tx, batch)
    if known:
        _finish(tx, batch, known)
        return [OK] * len(batch)
    held: dict[str, Place] = {
        id: (seq, lane, unique_key, token)
        for seq, id, lane, code, token, unique_key in tx.db.packed(
            "held_by_id", listed([op.id for op in batch])
        )
        if code == LEASED
    }
    done: list[ops.Ack] = []
    found: list[Place] = []
    answers: list[Answer] = []
    for op in batch:
        place = held.get(op.id)
        if place is not None and place[_TOKEN] == op.token and not _hides(tx, op, place):
            done.append(op)
            found.append(held.pop(op.id))
            answers.append(OK)
        else:
            _finish(tx, done, found)  # which may move this job
            done, found = [], []
            answers.append(_why_not(tx, op))
    _finish(tx, done, found)
    return answers


# path: an ack of jobs that the books know
def _known(tx: Transaction, batch: Sequence[ops.Ack]) -> list[Place]:
    """The places of the jobs, if the books show that each of the operations holds a lease;
    otherwise nothing."""
    places = tx.books.places
    ids = [op.id for op in batch]
    try:
        found = [places[job_id] for job_id in ids]
    except KeyError:
        return []
    tokens_match = [place[_TOKEN] for place in found] == [op.token for op in batch]
    unbound = [op.grant for op in batch].count(None) == len(batch)
    return found if tokens_match and unbound and len(set(ids)) == len(ids) else []


def _why_not(tx: Transaction, op: ops.Ack) -> Answer:
    tx.forget()
    (answer,) = leases.ack(tx, [op])
    assert answer != OK
    return answer


def _hides(tx: Transaction, op: ops.Ack, place: Place) -> bool:
    return op.grant is not None and not op.grant.allows(*tx.owner_of(place[_LANE]))


def _finish(tx: Transaction, done: Sequence[ops.Ack], places: Sequence[Place]) -> None:
    """Finish leased jobs. Their places come from the store or from the books; a token that does not
    hold the lease changes nothing, whatever the books say."""
    if not done:
        return
    seqs = [place[_SEQ] for place in places]
    if _mark_done(tx, done, seqs) != len(done):
        raise RuntimeError("the books do not match the leased jobs; nothing was changed: try again")
    lanes = tally([place[_LANE] for place in places])
    tx.books.load(lanes)
    counts = [(tx.books.lane_by_id(lane_id), n) for lane_id, n in lanes.items()]
    tx.books.move_all(counts, LEASED, _ACKED)
    leave = tx.books.places.pop
    for op in done:
        leave(op.id, None)
    for _, lane_id, unique_key, _ in places:
        if unique_key is not None:
            tx.free_key(lane_id, unique_key)
    if tx.db.one("any_deps"):
        tx.news += [(row, PARENTS_DONE) for row in tx.load_seqs(seqs)]
        settle(tx)


def _mark_done(tx: Transaction, done: Sequence[ops.Ack], seqs: Sequence[int]) -> int:
    """Set the state of jobs that are leased under these tokens. Returns how many there were."""
    found, tokens = 0, [op.token for op in done]
    without_result: dict[int, Sequence[int]] = {}  # by token
    if tokens.count(tokens[0]) == [op.result for op in done].count(NULL) == len(done):
        without_result[tokens[0]] = seqs
    else:
        found, without_result = _mark_with_results(tx, done, seqs)
    for token, some in without_result.items():
        first, last = min(some), max(some)
        if last - first + 1 == len(
            some
        ):  # without gaps, as after most claims: saves 0.1 of 3.8 us a job
            found += tx.db.run("finish_run", tx.now, token, first, last)
        else:
            found += tx.db.run("finish_jobs", tx.now, token, listed(some))
    return found


def _mark_with_results(
    tx: Transaction, done: Sequence[ops.Ack], seqs: Sequence[int]
) -> tuple[int, dict[int, Sequence[int]]]:
    """The same for jobs with a result. Returns how many there were, and the others by token."""
    without_result: dict[int, list[int]] = {}
    with_result: list[tuple[str | None, int, int, int]] = []
    for op, seq in zip(done, seqs, strict=True):
        if op.result is not NULL and (result := result_text(op.result)) is not None:
            with_result.append((result, tx.now, seq, op.token))
        elif op.token in without_result:
            without_result[op.token].append(seq)
        else:
            without_result[op.token] = [seq]
    return tx.db.many("finish_job", with_result), {**without_result}
