"""Operations, queries and their answers as JSON, for stores and wires.

Everything but errors is a struct with a tag and writes itself. An error is written as its code and
what it carries, and read back as the class that has the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure import errors
from tenure.errors import Conflict, InvalidInput, StoreError, TenureError
from tenure.model import ops
from tenure.model.fields import MAX_FAILURE_TEXT, clean, validated
from tenure.model.job import JobSpec, encode_json
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
    """An error, as it is written."""
    return Refused(error.code, error.message, vars(error))


def error_of(refused: Refused) -> TenureError:
    """The error that was written; of a code that is not known, a StoreError."""
    kind = _by_code().get(refused.code, StoreError)
    error = kind.__new__(kind, refused.message)
    error.args = (refused.message,)
    error.__dict__.update(refused.carries)
    return error


def _encode_special(value: Any) -> Any:
    if isinstance(value, TenureError):
        return refusal(value)
    raise NotImplementedError(f"a {type(value).__qualname__} has no place in an answer")


encode = msgspec.json.Encoder(enc_hook=_encode_special).encode

# An answer as it is written.
Written = (
    ops.Ok
    | ops.Enqueued
    | ops.Leased
    | ops.Moved
    | ops.Changed
    | ops.Slots
    | ops.Fired
    | ops.Maintained
    | ops.Corrected
    | Refused
)
_decode_answers = msgspec.json.Decoder(list[Written]).decode


def decode_answers(text: bytes | str) -> list[Answer]:
    """Answers that `encode` wrote."""
    return [error_of(one) if isinstance(one, Refused) else one for one in _decode_answers(text)]


# Operations that are done once ------------------------------------------------------------------


class _Mark(msgspec.Struct):
    """What the last of the answers carries besides; versions that do not know it skip it."""

    did: str = ""


_decode_marks = msgspec.json.Decoder(list[_Mark]).decode


def fingerprint(batch: Sequence[Op]) -> str:
    """What tells operations from others."""
    return hashlib.blake2b(encode(batch), digest_size=16).hexdigest()


def did(op: ops.Once) -> str:
    """What tells the operations of a Once from others."""
    return op.fingerprint or fingerprint(op.ops)


def encode_once(op: ops.Once, answers: Sequence[Answer]) -> bytes:
    """The answers of a Once, with what it was that they answer."""
    text = encode(answers)
    if not answers:
        return text
    return b'%b,"did":%b}]' % (text[:-2], encode(did(op)))


def decode_once(op: ops.Once, text: bytes | str) -> Answer:
    """What a Once was answered the first time; a Conflict if that was for other operations."""
    marks = _decode_marks(text)
    known = marks[-1].did if marks else ""
    if len(marks) != len(op.ops) or (known and known != did(op)):
        return key_reused(op.key)
    return ops.Answers(decode_answers(text))


def key_reused(key: str) -> Conflict:
    """The error for a key that comes again with other operations."""
    return Conflict(f"the key {key!r} was used for other operations; nothing was changed")


# What comes from outside -------------------------------------------------------------------------


def received(op: Op, payload_limit: int) -> Op:
    """An operation of a stranger, if it is valid; raises InvalidInput. What only the store may say
    is taken out of it, and JSON is copied, so that nothing else of the request is kept."""
    try:
        match op:
            case ops.Enqueue():
                op = replace(op, jobs=_received(op.jobs, payload_limit))
            case ops.Ack():
                result = encode_json("result", op.result, payload_limit)
                op = replace(op, result=result, then=_received(op.then, payload_limit))
            case ops.Fail():
                op = replace(
                    op,
                    message=clean(op.message[:MAX_FAILURE_TEXT]),
                    type=clean(op.type[:MAX_FAILURE_TEXT]),
                    traceback=clean(op.traceback[-MAX_FAILURE_TEXT:]),
                )
            case ops.PutSchedule():
                (job,) = _received((op.schedule.job,), payload_limit)
                op = ops.PutSchedule(replace(op.schedule, job=job, next_at=0, last_at=None))
        return validated(op)
    except InvalidInput as error:
        raise error.within(type(op).__name__) from None


def _received(specs: tuple[JobSpec, ...], payload_limit: int) -> tuple[JobSpec, ...]:
    return tuple(
        replace(spec, payload=encode_json("payload", spec.payload, payload_limit), made_up_id=False)
        for spec in specs
    )


def received_query(query: Query) -> Query:
    """A query of a stranger, if it is valid; raises InvalidInput."""
    try:
        return validated(query)
    except InvalidInput as error:
        raise error.within(type(query).__name__) from None
