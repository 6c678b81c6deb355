"""The types of values in jobs and operations, with their bounds. Bounds are defined only here.

Each is an annotated type. A decoder enforces its Meta; `check` enforces all of it for values from
Python, and `check_fields` does so for every field of a struct. Both raise an InvalidInput that
names the field.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from tenure.errors import InvalidInput

MAX_NAME = 512  # maximum length of an id, queue, tenant, group, kind, worker or unique key
MAX_NAMES_BYTES = 2_600  # of all names of one slot or limit together: what PostgreSQL can index
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MAX_ATTEMPTS = 1_000_000
MAX_SPAN_MS = 100 * 366 * 86_400_000  # a delay, lease, expiry or timeout: a century
MAX_MOMENT_MS = 2 * MAX_SPAN_MS
MAX_GET = 1_000  # jobs that one query looks up by id
MAX_AFTER = 10_000  # jobs that one job may wait for
MAX_AFTER_CHARACTERS = 1_000_000  # of the ids of all jobs that one job waits for
# Stored or changed together. Everybody else who writes to a SQLite file waits meanwhile: 0.1 s.
MAX_JOBS_PER_CALL = 10_000
MAX_OPS = 10_000  # operations in one request to a service
MAX_QUEUES_PER_CALL = 1_000
MAX_GROUPS_PER_CALL = 1_000
MAX_CLAIM = 1_000
MAX_LISTED = 10_000
MAX_MAINTAINED = 100_000
MAX_WEIGHT = 1_000
MAX_FAILURE_TEXT = 8_192  # characters kept of an error's message and of its traceback


class Bounds(NamedTuple):
    """The smallest and the largest valid number."""

    least: int
    most: int


SPAN = Bounds(0, MAX_SPAN_MS)
POSITIVE_SPAN = Bounds(1, MAX_SPAN_MS)

# Text must not contain a NUL character: PostgreSQL cannot store one.
_NO_NUL = {"pattern": "^[^\\u0000]*$"}

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, extra_json_schema=_NO_NUL)]
Label = Annotated[str, Meta(max_length=MAX_NAME, extra_json_schema=_NO_NUL)]  # may be empty
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
Attempts = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
Token = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Span = Annotated[int, Meta(ge=SPAN.least, le=SPAN.most)]  # in milliseconds
PositiveSpan = Annotated[int, Meta(ge=POSITIVE_SPAN.least, le=POSITIVE_SPAN.most)]
Moment = Annotated[int, Meta(ge=0, le=MAX_MOMENT_MS)]  # in milliseconds since 1970
Seconds = Annotated[float, Meta(ge=0, le=MAX_SPAN_MS / 1000)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=MAX_SPAN_MS / 1000)]
ClaimLimit = Annotated[int, Meta(ge=1, le=MAX_CLAIM)]
PageLimit = Annotated[int, Meta(ge=1, le=MAX_LISTED)]
MaintainLimit = Annotated[int, Meta(ge=1, le=MAX_MAINTAINED)]
Reason = Annotated[str, Meta(max_length=1_000, extra_json_schema=_NO_NUL)]
Concurrency = Annotated[int, Meta(ge=1, le=10**9)]
Rate = Annotated[int, Meta(ge=1, le=10**6)]
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]
Cron = Annotated[str, Meta(min_length=1, max_length=200)]
Zone = Annotated[str, Meta(min_length=1, max_length=100)]
Parents = Annotated[tuple[Name, ...], Meta(max_length=MAX_AFTER)]
QueueNames = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_QUEUES_PER_CALL)]
GroupNames = Annotated[tuple[Label, ...], Meta(max_length=MAX_GROUPS_PER_CALL)]
JobIds = Annotated[tuple[Name, ...], Meta(max_length=MAX_JOBS_PER_CALL)]
GrantedNames = Annotated[tuple[Label, ...], Meta(max_length=1_000)]

Check = Callable[[str, Any], None]
S = TypeVar("S", bound=msgspec.Struct)


def check(field: str, value: Any, kind: Any) -> Any:
    """Return the value if it is valid for this type; raises InvalidInput."""
    checker(kind)(field, value)
    return value


def check_fields(value: msgspec.Struct) -> None:
    """Validate every field of a struct by its annotation, then call its own `check`, if any."""
    for name, check_one in _checks_of(type(value)):
        check_one(name, getattr(value, name))
    together: Callable[[], None] | None = getattr(value, "check", None)
    if together is not None:
        together()


def validated(value: S) -> S:
    """Return a struct if its fields are valid; raises InvalidInput."""
    check_fields(value)
    return value


@cache
def _checks_of(kind: type[msgspec.Struct]) -> list[tuple[str, Check]]:
    hints = get_type_hints(kind, include_extras=True)
    checks = [(name, checker(hints[name])) for name in kind.__struct_fields__]
    return [(name, one) for name, one in checks if one is not _anything]


@cache
def checker(kind: Any) -> Check:
    """The function that validates a value of this type."""
    meta: Meta | None = None
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _optional(arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin is tuple:
        return _several(checker(arguments[0]), meta or Meta())
    if kind is str:
        return _text(meta or Meta())
    if kind is int:
        return _anything if meta is None else _whole(meta)
    if isinstance(kind, type) and issubclass(kind, bool | Enum):
        return _instance(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind)
    return _anything


def _anything(field: str, value: Any) -> None:
    """Accepts everything: values that are validated elsewhere, such as JSON and cron
    expressions."""


def _optional(kinds: tuple[Any, ...]) -> Check:
    """A type or None. A union of several types accepts anything."""
    checks = [checker(kind) for kind in kinds if kind is not types.NoneType]
    if len(checks) > 1:
        return _anything
    (check_one,) = checks

    def check_optional(field: str, value: Any) -> None:
        if value is not None:
            check_one(field, value)

    return check_optional


def _one_of(allowed: tuple[Any, ...]) -> Check:
    def check_one_of(field: str, value: Any) -> None:
        if value not in allowed:
            raise InvalidInput(field, f"{value!r} is not one of {', '.join(map(repr, allowed))}")

    return check_one_of


def _several(check_one: Check, meta: Meta) -> Check:
    least, most = meta.min_length or 0, meta.max_length

    def check_several(field: str, values: Any) -> None:
        if len(values) < least:
            raise InvalidInput(field, "name at least one")
        if most is not None and len(values) > most:
            raise InvalidInput(field, f"{len(values):,} in one call; at most {most:,}")
        if check_one is not _anything:
            for value in values:
                check_one(field, value)

    return check_several


def _text(meta: Meta) -> Check:
    least, most = meta.min_length or 0, meta.max_length

    def check_text(field: str, text: Any) -> None:
        if not isinstance(text, str):
            raise InvalidInput(field, f"must be text, not {type(text).__name__}")
        if len(text) < least:
            raise InvalidInput(field, "must not be empty")
        if most is not None and len(text) > most:
            raise InvalidInput(field, f"is {len(text)} characters long; at most {most}")
        if "\0" in text:
            raise InvalidInput(field, "must not contain a NUL character")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise InvalidInput(field, "is not valid Unicode (a lone surrogate)") from None

    return check_text


def _whole(meta: Meta) -> Check:
    least, most = meta.ge, meta.le
    assert least is not None
    assert most is not None

    def check_whole(field: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInput(
                field, f"{value!r:.40} must be a whole number from {least:,} to {most:,}"
            )

    return check_whole


def _instance(kind: type) -> Check:
    def check_instance(field: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise InvalidInput(field, f"must be a {kind.__name__}, not {type(value).__name__}")

    return check_instance


def _struct(kind: type[msgspec.Struct]) -> Check:
    check_kind = _instance(kind)

    def check_struct(field: str, value: Any) -> None:
        check_kind(field, value)
        check_fields(value)

    return check_struct


def check_name(field: str, name: Any) -> str:
    """Validate a name that must not be empty."""
    _check_name(field, name)
    return str(name)


def check_names(field: str, names: Sequence[str]) -> None:
    """Validate texts as names that must not be empty."""
    text, sizes = "".join(names), {MAX_NAME, *map(len, names)}
    plain = text.isascii() and "\0" not in text and min(sizes) > 0 and max(sizes) == MAX_NAME
    if not plain:  # at least one of them may be invalid
        for name in names:
            _check_name(field, name)


def check_label(field: str, name: Any) -> str:
    """Validate a name that may be empty."""
    _check_label(field, name)
    return str(name)


_check_name, _check_label = checker(Name), checker(Label)


def check_together(field: str, *names: str | None) -> None:
    """Validate the total size of valid names that are stored together; `field` is the last one."""
    size = sum(len(name.encode()) for name in names if name is not None)
    if size > MAX_NAMES_BYTES:
        reason = f"makes {size:,} bytes of names in total; at most {MAX_NAMES_BYTES:,}"
        raise InvalidInput(field, reason)


def check_trace(trace: Any) -> str:
    """Validate a traceparent (W3C Trace Context)."""
    if not isinstance(trace, str) or not is_trace(trace):
        raise InvalidInput("trace", f"{trace!r:.80} is not a traceparent (W3C Trace Context)")
    return trace


def is_trace(text: str) -> bool:
    """Whether the text is a traceparent."""
    return _TRACE.fullmatch(text) is not None


_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def span_ms(field: str, span: float | timedelta, bounds: Bounds = SPAN) -> int:
    """Seconds or a timedelta as whole milliseconds."""
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if isinstance(span, bool) or not isinstance(span, int | float):
        raise InvalidInput(field, f"must be seconds or a timedelta, not {type(span).__name__}")
    if span != span:
        raise InvalidInput(field, "is not a number")
    if span < 0:
        raise InvalidInput(field, f"{span} is negative")
    ms = round(span * 1000) if span <= bounds.most else bounds.most + 1
    if not bounds.least <= ms <= bounds.most:
        valid = f"{bounds.least} ms to 100 years"
        raise InvalidInput(field, f"{str(span)[:20]} s is out of range: {valid}")
    return ms


def moment_ms(field: str, moment: datetime) -> int:
    """A datetime as milliseconds since 1970."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidInput(field, "must be a datetime with a time zone")
    ms = round(moment.timestamp() * 1000)
    if not 0 <= ms <= MAX_MOMENT_MS:
        raise InvalidInput(field, f"{moment.isoformat()} is out of range")
    return ms


def percent_of(value: float) -> int:
    """A percentage as a whole number; raises InvalidInput."""
    if isinstance(value, float) and math.isfinite(value):
        value = round(value)
    percent: int = check("percent", value, Percent)
    return percent


def clean(text: str) -> str:
    """The text of an error with everything replaced that cannot be stored."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
