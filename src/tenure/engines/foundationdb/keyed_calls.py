"""Keyed operations: run once per key, and return the stored results when repeated.

Most run in one transaction, which also stores their results. Claims at the end of such a call
cannot: who gets the jobs is known only after the commit. They leave notes on the way, so that a
repeated call with the same key can continue where another process stopped:

1. what comes before the claims is done, and its results are stored as BEGUN;
2. the claims are committed together with a list of the jobs that they want, WANTED, which has the
   versionstamp of that commit; this may take several rounds;
3. a last transaction checks who got the jobs, and replaces the notes by the results.

If the lowest CLAIM key of a job does not have this versionstamp, the job was lost, or has been
taken back since: the lease was not returned to anyone before the results were stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.jobs import jobs_of, read_jobs
from tenure.engines.foundationdb.near import Near
from tenure.engines.foundationdb.record import PART_BYTES, encode
from tenure.engines.foundationdb.tx import Tx
from tenure.model import ops, wire
from tenure.model.job import Job
from tenure.model.ops import Answer, Op

_BEGUN, _WANTED = -2, -1  # in place of the part number of a result
_STAMP_BYTES = 10

_decode_begun = msgspec.msgpack.Decoder(tuple[str, str, bytes]).decode
_decode_wanted = msgspec.msgpack.Decoder(tuple[str, int, list[str]]).decode


class Begin(Op, frozen=True):
    """What a keyed call does before its claims."""

    once: ops.Once


class Wanted(NamedTuple):
    """Jobs that a claim of a keyed call wrote CLAIM keys for."""

    stamp: bytes
    number: int  # index of the claim among the operations
    ids: list[str]


class Stored(NamedTuple):
    """What is stored under a key. Conflicts if another transaction changes it."""

    answer: Answer | None
    begun: list[Answer]
    wanted: list[Wanted]
    did: str = ""  # the fingerprint of the operations that were begun, if any
    kept: str = ""  # what the call that began keeps with its results


def ask(tx: Tx, op: ops.Once) -> None:
    """Start reading what is stored under a key."""
    tx.prefetch_span(k.ONCE, op.key)


def claims_come_last(op: ops.Once) -> bool:
    """Whether it ends with claims and has no others."""
    kinds = [isinstance(one, ops.Claim) for one in op.ops]
    return any(kinds) and kinds == sorted(kinds)


def claims_of(op: ops.Once) -> list[tuple[int, ops.Claim]]:
    return [(n, one) for n, one in enumerate(op.ops) if isinstance(one, ops.Claim)]


def begins(op: ops.Once) -> bool:
    """Whether something is stored before its claims."""
    return bool(op.kept) or not all(isinstance(one, ops.Claim) for one in op.ops)


def before_claims(op: ops.Once) -> list[Op]:
    return [one for one in op.ops if not isinstance(one, ops.Claim)]


class _Notes(NamedTuple):
    """The rows under a key."""

    final: bytes  # the results, if everything was done
    begun: list[Answer]
    wanted: list[Wanted]
    did: str
    kept: str


def _notes(tx: Tx, key: str) -> _Notes:
    """What is stored under a key, read now unless it was requested before."""
    final: list[bytes] = []
    begun: list[bytes] = []
    wanted: list[Wanted] = []
    did = kept = ""
    for row in tx.span(k.ONCE, key):
        _, part, *_ = tx.keys.unpack(bytes(row.key))
        value = bytes(row.value)
        if part >= 0:
            final.append(value)
        elif part == _BEGUN:
            begun.append(value)
        else:
            did, number, ids = _decode_wanted(value[_STAMP_BYTES:])
            wanted.append(Wanted(value[:_STAMP_BYTES], number, ids))
    done: list[Answer] = []
    if begun:
        did, kept, text = _decode_begun(b"".join(begun))
        done = wire.decode_answers(text)
    return _Notes(b"".join(final), done, wanted, did, kept)


def stored(tx: Tx, op: ops.Once) -> Stored:
    """What is stored under the key of a call."""
    final, begun, wanted, did, kept = _notes(tx, op.key)
    answer = wire.decode_once(op, final, partial(read_jobs, tx)) if final else None
    return Stored(answer, begun, wanted, did, kept)


# In one transaction -----------------------------------------------------------------------------


def answers_of(tx: Tx, key: str) -> bytes | None:
    """The results stored under a key, for a call that does not end with claims. If a call that does
    has begun under it, returns only its mark, which shows that the key is taken."""
    found = _notes(tx, key)
    if found.did and not found.final:
        return wire.begun(found.did)
    return found.final or None


def put_answers(tx: Tx, key: str, answers: bytes) -> None:
    _remember(tx, key)
    tx.put_parts(answers, k.ONCE, key)


def _remember(tx: Tx, key: str) -> None:
    """Add the key to the index by which it is deleted later."""
    tx.set(tx.keys.pack(k.ONCE_AT, tx.now, key))


# In several -------------------------------------------------------------------------------------


def begin(tx: Tx, op: Begin, operate: Callable[[Sequence[Op]], list[Answer]]) -> Answer:
    """Run what comes before the claims, unless that was done before."""
    found = stored(tx, op.once)
    if not found.did and found.answer is None:
        answers = operate(before_claims(op.once))
        _remember(tx, op.once.key)
        note = encode((wire.did(op.once), op.once.kept, wire.encode(answers)))
        tx.put_parts(note, k.ONCE, op.once.key, _BEGUN)
    return ops.Ok()


def want(tx: Tx, op: ops.Once, found: Stored, wanted: Iterable[tuple[int, list[str]]]) -> None:
    """Store which jobs the claims want, in the transaction that writes their CLAIM keys."""
    if not found.did:
        _remember(tx, op.key)
    part, did = len(found.wanted), wire.did(op)
    for number, ids in wanted:
        for some in _portions(ids):
            key = tx.keys.pack(k.ONCE, op.key, _WANTED, part)
            value = bytes(_STAMP_BYTES) + encode((did, number, some)) + bytes(4)
            tx.tr.set_versionstamped_value(key, value)
            tx.wrote = True
            part += 1


def _portions(ids: Sequence[str]) -> Iterable[list[str]]:
    """The ids in portions that each fit into a value."""
    some: list[str] = []
    size = 0
    for one in ids:
        length = len(one.encode()) + 8
        if some and size + length > PART_BYTES:
            yield some
            some, size = [], 0
        some.append(one)
        size += length
    if some:
        yield some


def is_of_others(op: ops.Once, found: Stored) -> bool:
    """Whether the key was used for a different call."""
    return bool(found.did) and found.did != wire.did(op)


def finish(tx: Tx, op: ops.Once, found: Stored, given: dict[int, list[Job]]) -> Answer:
    """Replace the notes by the results, with the jobs that each claim got."""
    if found.answer is not None:
        return found.answer
    if is_of_others(op, found):
        return wire.key_reused(op.key)
    answers = [*found.begun, *(ops.Leased(given.get(number, [])) for number, _ in claims_of(op))]
    if not found.did:
        _remember(tx, op.key)
    else:
        last = tx.keys.pack(k.ONCE, op.key, 0)
        tx.tr.clear_range(tx.keys.span(k.ONCE, op.key)[0], last)
    kept = found.kept or op.kept
    tx.put_parts(wire.encode_once(op, answers, kept), k.ONCE, op.key)
    return ops.Answers(answers, kept)


def go_on(tx: Tx, op: ops.Once) -> Answer:
    """Finish a call begun by another process, which may be gone."""
    found = stored(tx, op)
    given: dict[int, list[Job]] = {}
    for wanted in found.wanted:
        won = won_by(tx, wanted.ids, wanted.stamp)
        held = tx.peek(one for one in wanted.ids if one in won)
        jobs = jobs_of(tx, [one for one in held if one is not None])
        given.setdefault(wanted.number, []).extend(jobs)
    return finish(tx, op, found, given)


def won_by(tx: Tx, ids: Sequence[str], stamp: bytes) -> set[str]:
    """The jobs whose first claim has this versionstamp."""
    claims = Near(tx, k.CLAIM, ids, limit=1)
    return {job_id for job_id in ids for key, _ in claims.of(job_id) if k.stamp_of(key) == stamp}
