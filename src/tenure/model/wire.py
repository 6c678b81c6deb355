"""JSON encoding of operations, queries and results, for storage and for HTTP.

Everything except errors is a tagged struct and encodes itself. An error is encoded as its code and
fields, and decoded to the class with that code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from tenure import errors
from tenure.errors import Conflict, InvalidInput, StoreError, TenureError
from tenure.model import ops
from tenure.model.fields import MAX_FAILURE_TEXT, check_name, clean, validated
from tenure.model.job import Job, State, encode_json
from tenure.model.ops import Answer, Op
from tenure.model.queries import Query


class Refused(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """An error as data."""

    code: str
    message: str
    carries: dict[str, Any] = {}


@cache
def _by_code() -> dict[str, type[TenureError]]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return {kind.code: kind for kind in kinds if issubclass(kind, TenureError)}


def refusal(error: TenureError) -> Refused:
    """Encode an error as data."""
    return Refused(error.code, error.message, vars(error))


def error_of(refused: Refused) -> TenureError:
    """Decode an error. An unknown code becomes a StoreError."""
    kind = _by_code().get(refused.code, StoreError)
    error = kind.__new__(kind, refused.message)
    error.args = (refused.message,)
    error.__dict__.update(refused.carries)
    return error


def _encode_special(value: Any) -> Any:
    if isinstance(value, TenureError):
        return refusal(value)
    raise NotImplementedError(f"a {type(value).__qualname__} cannot be part of a result")


encode = msgspec.json.Encoder(enc_hook=_encode_special).encode

# A result as it is encoded.
Written = (
    ops.Ok
    | ops.Enqueued
    | ops.Leased
    | ops.Moved
    | ops.Changed
    | ops.Recorded
    | ops.Recalled
    | ops.Slots
    | ops.Fired
    | ops.Maintained
    | ops.Corrected
    | Refused
)
_decode_answers = msgspec.json.Decoder(list[Written]).decode


def decode_answers(text: bytes | str) -> list[Answer]:
    """Decode results written by `encode`."""
    return [error_of(one) if isinstance(one, Refused) else one for one in _decode_answers(text)]


# Operations that are done once ------------------------------------------------------------------


class Claimed(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """What is stored of a claim: the ids and tokens of its jobs, which are read again when the
    call is repeated. Payloads would be kept for much longer than the jobs."""

    leases: list[tuple[str, int]]


FindJobs = Callable[[Sequence[str]], Mapping[str, Job]]  # the jobs with these ids that exist


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a Once. did: the fingerprint of its operations. answers: None as long as
    it has only begun."""

    did: str
    answers: list[Written | Claimed] | None = None
    kept: str = ""


_decode_stored = msgspec.json.Decoder(Stored).decode


def fingerprint(batch: Sequence[Op]) -> str:
    """A hash that identifies these operations."""
    return hashlib.blake2b(encode(batch), digest_size=16).hexdigest()


def did(op: ops.Once) -> str:
    """The fingerprint of the operations of a Once."""
    return op.fingerprint or fingerprint(op.ops)


def encode_once(op: ops.Once, answers: Sequence[Answer], kept: str) -> bytes:
    """Encode the results of a Once."""
    given: list[Any] = [_stored(answer) for answer in answers]
    return encode(Stored(did(op), given, kept))


def begun(did: str) -> bytes:
    """What stands for a Once that has only begun."""
    return encode(Stored(did))


def _stored(answer: Answer) -> Answer | Claimed:
    if isinstance(answer, ops.Leased):
        return Claimed([(job.id, job.token) for job in answer.jobs])
    return answer


def decode_once(op: ops.Once, text: bytes | str, find: FindJobs) -> Answer:
    """The stored results of a Once, or a Conflict if they belong to different operations. A claim
    returns the jobs that are still leased under its token."""
    stored = _decode_stored(text)
    if stored.answers is None or stored.did != did(op):
        return key_reused(op.key)
    ids = [id for one in stored.answers if isinstance(one, Claimed) for id, _ in one.leases]
    jobs = find(ids) if ids else {}
    return ops.Answers([_answer_of(one, jobs) for one in stored.answers], stored.kept)


def _answer_of(stored: Written | Claimed, jobs: Mapping[str, Job]) -> Answer:
    if isinstance(stored, Claimed):
        leases = [(jobs[id], token) for id, token in stored.leases if id in jobs]
        held = [job for job, token in leases if (job.state, job.token) == (State.LEASED, token)]
        return ops.Leased(held)
    return error_of(stored) if isinstance(stored, Refused) else stored


def key_reused(key: str) -> Conflict:
    """The error for a key that is reused with different operations."""
    return Conflict(f"the key {key!r} was used for other operations; nothing was changed")


# What comes from outside -------------------------------------------------------------------------


# path: an operation received
def received(op: Op, payload_limit: int) -> Op:
    """Validate an operation from a client; raises InvalidInput. Fields that only the store may set
    are reset, and JSON is copied, so that the rest of the request can be freed."""
    try:
        changed: dict[str, Any] = {
            name: encode_json(name, raw, payload_limit)
            for name in ops.raw_fields(type(op))
            if (raw := getattr(op, name)) is not UNSET
        }
        for name in ops.spec_fields(type(op)):
            changed[name] = _received(getattr(op, name), payload_limit)
        if changed:
            op = replace(op, **changed)
        match op:
            case ops.Fail():
                op = replace(
                    op,
                    message=clean(op.message[:MAX_FAILURE_TEXT]),
                    type=clean(op.type[:MAX_FAILURE_TEXT]),
                    traceback=clean(op.traceback[-MAX_FAILURE_TEXT:]),
                )
            case ops.TakeSlot() | ops.DropSlot() | ops.ReconcileSlots():
                ops.check_own_scope(op.scope)
            case ops.Release():
                op = replace(
                    op,
                    message=clean(op.message[:MAX_FAILURE_TEXT]),
                    type=clean(op.type[:MAX_FAILURE_TEXT]),
                )
            case ops.PutSchedule():
                job = _received(op.schedule.job, payload_limit)
                op = replace(op, schedule=replace(op.schedule, job=job, next_at=0, last_at=None))
        return validated(op)
    except InvalidInput as error:
        raise error.within(type(op).__name__) from None


def _received(job: Any, payload_limit: int) -> Any:
    """A job, or several, or none."""
    if isinstance(job, tuple):
        return tuple(_received(one, payload_limit) for one in job)
    if job is None:
        return None
    payload = encode_json("payload", job.payload, payload_limit)
    if job.replay_of is not None:
        check_name("replay_of", job.replay_of)
    return replace(job, payload=payload, made_up_id=False, replay_of=None)


def received_query(query: Query) -> Query:
    """Validate a query from a client; raises InvalidInput."""
    try:
        return validated(query)
    except InvalidInput as error:
        raise error.within(type(query).__name__) from None
