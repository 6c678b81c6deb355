"""A job: what the caller asks for (NewJob), what is checked and stored (JobSpec), what is read
back (Job); and the limits on each."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec.structs import astuple

from tenure.errors import DependencyCycle, InvalidInput, InvalidPayload, PayloadTooLarge
from tenure.retry import Backoff

MAX_NAME = 512  # characters of an id, queue, tenant, group, kind, worker or unique key
MAX_NAMES_BYTES = 2_600  # of the names of one slot or limit together: what PostgreSQL can index
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MAX_ATTEMPTS = 1_000_000
MAX_SPAN_MS = 100 * 366 * 86_400_000  # a delay, lease, expiry or timeout: a century
MAX_AFTER = 1_000  # jobs that one job may wait for
MAX_JOBS_PER_CALL = 100_000
MAX_CLAIM = 1_000
KEPT_FAILURES = 10
MAX_FAILURE_TEXT = 8_192  # characters kept of an error's message, and of its traceback


NULL = msgspec.Raw(b"null")


def null() -> msgspec.Raw:
    """The JSON of None, as a default; msgspec cannot describe a plain one."""
    return NULL


class State(StrEnum):
    """Where a job is in its life; states.py says how it moves."""

    WAITING = "waiting"
    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


LIVE = frozenset({State.WAITING, State.PENDING, State.LEASED})
FINAL = frozenset({State.DONE, State.DEAD, State.CANCELLED})

IfParentFails = Literal["wait", "cancel", "run"]


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt: when, which worker, what."""

    at: int
    attempt: int
    message: str
    type: str = ""
    traceback: str = ""
    worker: str = ""


class Lease(msgspec.Struct, frozen=True):
    """What a worker needs to finish a job: its id and the token of the claim."""

    id: str
    token: int


class Job(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job as the store has it. Times are milliseconds since 1970, UTC.

    `payload` and `result` are decoded each time they are asked for.
    """

    id: str
    queue: str
    state: State
    raw_payload: msgspec.Raw = msgspec.field(name="payload")
    priority: int
    run_at: int
    created_at: int
    updated_at: int
    attempts: int
    max_attempts: int
    tenant: str = ""
    group: str = ""
    kind: str = ""
    started_at: int | None = None
    lease_until: int | None = None
    token: int = 0
    worker: str = ""
    finished_at: int | None = None
    expires_at: int | None = None
    unique_key: str | None = None
    timeout_ms: int | None = None
    backoff: Backoff | None = None
    after: tuple[str, ...] = ()
    if_parent_fails: IfParentFails = "wait"
    progress: int | None = None
    note: str | None = None
    raw_result: msgspec.Raw = msgspec.field(default_factory=null, name="result")
    errors: tuple[Failure, ...] = ()
    trace: str | None = None

    @property
    def payload(self) -> Any:
        """What the job was enqueued with."""
        return _decode(self.raw_payload)

    @property
    def result(self) -> Any:
        """What it was acknowledged with, or None."""
        return _decode(self.raw_result)

    @property
    def error(self) -> str | None:
        """The message of the last failed attempt, or None."""
        return self.errors[-1].message if self.errors else None


class NewJob(msgspec.Struct, kw_only=True, gc=False):
    """A job to be enqueued. Spans (`delay`, `expires_in`, `timeout`) are in seconds."""

    payload: Any = None
    queue: str
    kind: str = ""
    tenant: str = ""
    group: str = ""
    priority: int = 0
    max_attempts: int = 3
    delay: float | timedelta = 0
    run_at: datetime | None = None
    id: str | None = None
    unique_key: str | None = None
    after: Sequence[str] = ()
    if_parent_fails: IfParentFails = "wait"
    backoff: Backoff | None = None
    expires_in: float | timedelta | None = None
    timeout: float | timedelta | None = None
    trace: str | None = None


_COMMON = 7  # fields that most jobs give; the rest is mostly left at its default
_DEFAULTS = astuple(NewJob(queue=""))[_COMMON:]


class JobSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A NewJob that was found good: what an Enqueue operation carries."""

    id: str
    queue: str
    payload: msgspec.Raw
    kind: str = ""
    tenant: str = ""
    group: str = ""
    priority: int = 0
    max_attempts: int = 3
    made_up_id: bool = False  # a UUIDv7 of ours: the engine need not look for a duplicate
    delay_ms: int = 0
    run_at: int | None = None
    expires_in_ms: int | None = None
    unique_key: str | None = None
    after: tuple[str, ...] = ()
    if_parent_fails: IfParentFails = "wait"
    timeout_ms: int | None = None
    backoff: Backoff | None = None
    trace: str | None = None  # a traceparent of W3C Trace Context

    def starts_at(self, now: int) -> int:
        """When the job may first run, if it is enqueued at `now`."""
        return now + self.delay_ms if self.run_at is None else self.run_at


# Random bits come from the operating system, so that nobody can compute the next id from others. A
# call costs more than an id, so some are taken in advance.
_IN_ADVANCE = 256
_noise: list[str] = []
os.register_at_fork(after_in_child=_noise.clear)
_made = itertools.count(int.from_bytes(os.urandom(3), "big"))
_HEX_3 = [f"{n:03x}" for n in range(1 << 12)]
_HEX_2 = [f"{n | 0x80:02x}" for n in range(1 << 6)]


def new_ids(now_ms: int, n: int) -> list[str]:
    """UUIDv7s: ids made later sort later, which keeps an index of them append-only.

    18 bits after the time count up within this process, 56 are random.
    """
    time = _time_part(now_ms)
    if n == 1:
        i, noise = next(_made), _next_noise()
        return [f"{time}-7{_HEX_3[i >> 6 & 0xFFF]}-{_HEX_2[i & 0x3F]}{noise[:2]}-{noise[2:]}"]
    noise = os.urandom(7 * n).hex()
    return [
        f"{time}-7{_HEX_3[i >> 6 & 0xFFF]}-{_HEX_2[i & 0x3F]}{noise[at : at + 2]}"
        f"-{noise[at + 2 : at + 14]}"
        for i, at in zip(itertools.islice(_made, n), range(0, 14 * n, 14), strict=True)
    ]


def _next_noise() -> str:
    """56 random bits. For any thread: to pop is one step."""
    while True:
        try:
            return _noise.pop()
        except IndexError:
            taken = os.urandom(7 * _IN_ADVANCE).hex()
            _noise.extend([taken[at : at + 14] for at in range(0, len(taken), 14)])


def first_id(ms: int) -> str:
    """Not after any UUIDv7 that was made at this time or later."""
    return f"{_time_part(max(0, ms))}-7000-8000-000000000000"


@lru_cache(maxsize=4)
def _time_part(now_ms: int) -> str:
    digits = f"{now_ms:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def prepare(jobs: Sequence[NewJob], now_ms: int, payload_limit: int) -> list[JobSpec]:
    """Check NewJobs and turn them into what is stored; raises InvalidInput."""
    specs: list[JobSpec] = []
    known: tuple[Any, ...] = ()
    try:
        for new, made_up in zip(jobs, new_ids(now_ms, len(jobs)), strict=True):
            values = _fields(new)
            common = values[1:_COMMON]
            if common != known or type(common[-2]) is not int or type(common[-1]) is not int:
                _check_once(*common)
                known = common
            raw = encode_json("payload", values[0], payload_limit)
            if values[_COMMON:] == _DEFAULTS:
                queue, kind, tenant, group, priority, max_attempts = common
                specs.append(
                    JobSpec(made_up, queue, raw, kind, tenant, group, priority, max_attempts, True)
                )
            else:
                specs.append(_prepare_rest(new, made_up, raw))
    except InvalidInput as error:
        raise error if len(jobs) == 1 else error.within(f"jobs[{len(specs)}]") from None
    return specs


def _fields(new: NewJob) -> tuple[Any, ...]:
    if not isinstance(new, NewJob):
        raise InvalidInput("job", f"must be a NewJob, not {type(new).__name__}")
    return astuple(new)


def _check_once(*common: Any) -> None:
    """Most jobs of a program are alike in this."""
    try:
        _check_cached(*common)
    except TypeError:  # something that cannot be a key of the cache, nor a name
        _check_common(*common)


def _check_common(
    queue: str, kind: str, tenant: str, group: str, priority: int, max_attempts: int
) -> None:
    check_name("queue", queue)
    check_label("kind", kind)
    for field, name in (("tenant", tenant), ("group", group)):
        if check_label(field, name) == "*":
            raise InvalidInput(field, "'*' stands for every one in limits, and names none")
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(
            "priority",
            f"{priority!r} must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}",
        )
    if type(max_attempts) is not int or not 1 <= max_attempts <= MAX_ATTEMPTS:
        raise InvalidInput("max_attempts", f"must be a whole number from 1 to {MAX_ATTEMPTS:,}")


_check_cached = lru_cache(maxsize=4096, typed=True)(_check_common)


def _prepare_rest(new: NewJob, made_up: str, raw: msgspec.Raw) -> JobSpec:
    if new.run_at is not None and new.delay:
        raise InvalidInput("run_at", "give run_at or delay, not both")
    if new.if_parent_fails not in ("wait", "cancel", "run"):
        raise InvalidInput("if_parent_fails", "must be 'wait', 'cancel' or 'run'")
    if new.backoff is not None and not isinstance(new.backoff, Backoff):
        raise InvalidInput("backoff", "must be a policy such as tenure.exponential(60)")
    return JobSpec(
        made_up if new.id is None else check_name("id", new.id),
        new.queue,
        raw,
        new.kind,
        new.tenant,
        new.group,
        new.priority,
        new.max_attempts,
        new.id is None,
        span_ms("delay", new.delay),
        None if new.run_at is None else moment_ms("run_at", new.run_at),
        None if new.expires_in is None else span_ms("expires_in", new.expires_in, least=1),
        None if new.unique_key is None else check_name("unique_key", new.unique_key),
        _check_after(new.after) if new.after else (),
        new.if_parent_fails,
        None if new.timeout is None else span_ms("timeout", new.timeout, least=1),
        new.backoff,
        None if new.trace is None else check_trace(new.trace),
    )


def check_trace(trace: str) -> str:
    """A traceparent of W3C Trace Context."""
    if not isinstance(trace, str) or not is_trace(trace):
        raise InvalidInput("trace", f"{trace!r:.80} is not a traceparent (W3C Trace Context)")
    return trace


def is_trace(text: str) -> bool:
    """Whether it is a traceparent."""
    return _TRACE.fullmatch(text) is not None


_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def check_name(field: str, name: str) -> str:
    """A name that must be there."""
    if check_label(field, name) == "":
        raise InvalidInput(field, "must not be empty")
    return name


def check_label(field: str, name: str) -> str:
    """A name that may be empty."""
    if not isinstance(name, str):
        raise InvalidInput(field, f"must be text, not {type(name).__name__}")
    if len(name) > MAX_NAME:
        raise InvalidInput(field, f"is {len(name)} characters long; at most {MAX_NAME}")
    if "\0" in name:
        raise InvalidInput(field, "must not contain a NUL character")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, "is not valid Unicode (a lone surrogate)") from None
    return name


def check_together(field: str, *names: str | None) -> None:
    """The names of one thing, each of which is good; `field` is the last of them."""
    size = sum(len(name.encode()) for name in names if name is not None)
    if size > MAX_NAMES_BYTES:
        reason = f"makes {size:,} bytes of names in all; at most {MAX_NAMES_BYTES:,}"
        raise InvalidInput(field, reason)


def span_ms(field: str, span: float | timedelta, *, least: int = 0) -> int:
    """Seconds or a timedelta as whole milliseconds."""
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if isinstance(span, bool) or not isinstance(span, int | float):
        raise InvalidInput(field, f"must be seconds or a timedelta, not {type(span).__name__}")
    if span != span:
        raise InvalidInput(field, "is not a number")
    if span < 0:
        raise InvalidInput(field, f"{span} is negative")
    ms = round(span * 1000) if span <= MAX_SPAN_MS else MAX_SPAN_MS + 1
    if not least <= ms <= MAX_SPAN_MS:
        raise InvalidInput(field, f"{str(span)[:20]} s is out of range: {least} ms to 100 years")
    return ms


def moment_ms(field: str, moment: datetime) -> int:
    """A point in time as milliseconds since 1970."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidInput(field, "must be a datetime with a time zone")
    ms = round(moment.timestamp() * 1000)
    if not 0 <= ms <= MAX_SPAN_MS * 2:
        raise InvalidInput(field, f"{moment.isoformat()} is out of range")
    return ms


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_json(field: str, value: Any, limit: int) -> msgspec.Raw:
    """A value as JSON; what JSON cannot hold (NaN, bytes, objects) is an error, not a guess.
    A msgspec.Raw is JSON already."""
    try:
        text = _encode(value)
        if _decode(text) != value and type(value) is not msgspec.Raw:
            # Not what came in: harmless (a tuple, a number as a key) or not (NaN, bytes). The
            # standard encoder knows, and is slower.
            text = json.dumps(
                value, allow_nan=False, ensure_ascii=False, separators=(",", ":")
            ).encode()
    except RecursionError:
        raise InvalidPayload(field, "is nested too deeply") from None
    except (TypeError, ValueError, OverflowError, msgspec.DecodeError) as error:
        raise InvalidPayload(field, f"is not JSON: {error}") from None
    if len(text) > limit:
        raise PayloadTooLarge(
            field, f"is {len(text):,} bytes of JSON; the limit is {limit:,}: store a reference"
        )
    return msgspec.Raw(text)


def check_cycles(specs: list[JobSpec]) -> None:
    """Refuse jobs of one call that wait for each other."""
    waits = {spec.id: [i for i in spec.after if i] for spec in specs if spec.after}
    done: set[str] = set()
    for start in waits:
        path: list[str] = []
        stack = [(start, iter(waits[start]))] if start not in done else []
        on_path = {start}
        path.append(start)
        while stack:
            node, parents = stack[-1]
            parent = next(parents, None)
            if parent is None:
                done.add(node)
                on_path.discard(node)
                path.pop()
                stack.pop()
            elif parent in on_path:
                raise DependencyCycle([*path[path.index(parent) :], parent])
            elif parent in waits and parent not in done:
                stack.append((parent, iter(waits[parent])))
                on_path.add(parent)
                path.append(parent)


def _check_after(after: Sequence[str]) -> tuple[str, ...]:
    if isinstance(after, str) or not isinstance(after, Sequence):
        raise InvalidInput("after", "must be a list of job ids")
    ids = tuple(dict.fromkeys(check_name("after", i) for i in after))
    if len(ids) > MAX_AFTER:
        raise InvalidInput("after", f"names {len(ids):,} jobs; at most {MAX_AFTER:,}")
    return ids
