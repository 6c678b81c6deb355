"""Operations and queries that come from outside: their types are right, and here it is seen that
their values can be."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from tenure import ops
from tenure.arguments import clean, optional, whole
from tenure.cron import next_tick
from tenure.errors import InvalidInput
from tenure.job import (
    MAX_AFTER,
    MAX_ATTEMPTS,
    MAX_CLAIM,
    MAX_FAILURE_TEXT,
    MAX_JOBS_PER_CALL,
    MAX_PRIORITY,
    MAX_SPAN_MS,
    MIN_PRIORITY,
    JobSpec,
    check_label,
    check_name,
    check_together,
    check_trace,
    encode_json,
)
from tenure.ops import Op, Query

_NAMES = {"id", "queue", "worker", "scope", "key", "holder", "name"}
_LABELS = {"kind", "tenant", "group", "note"}
_SPANS = {"lease_ms", "ttl_ms", "per_ms", "delay_ms", "retry_in_ms", "expires_in_ms", "timeout_ms"}
_AT_LEAST_ONE = {"lease_ms", "ttl_ms", "per_ms", "expires_in_ms", "timeout_ms"}
_NUMBERS = {
    "token": (-(2**63), 2**63 - 1),
    "percent": (0, 100),
    "limit": (1, 10**9),
    "concurrency": (1, 10**9),
    "rate": (1, 10**6),
    "weight": (1, ops.MAX_WEIGHT),
    "tick": (0, 2 * MAX_SPAN_MS),
    "keep_done_ms": (0, MAX_SPAN_MS),
    "keep_cancelled_ms": (0, MAX_SPAN_MS),
    "keep_dead_ms": (0, MAX_SPAN_MS),
    "priority": (MIN_PRIORITY, MAX_PRIORITY),
    "max_attempts": (1, MAX_ATTEMPTS),
    "run_at": (0, 2 * MAX_SPAN_MS),
    "finished_before": (0, 2 * MAX_SPAN_MS),
}
MAX_LISTED = 1_000_000


def sane(op: Op, payload_limit: int) -> Op:
    """The operation, if it can be; raises InvalidInput."""
    try:
        _check(op)
        match op:
            case ops.Enqueue():
                return replace(op, jobs=_specs(op.jobs, payload_limit))
            case ops.Ack():
                return replace(
                    op,
                    result=_json("result", op.result, payload_limit),
                    then=_specs(op.then, payload_limit),
                )
            case ops.Fail():
                return replace(
                    op,
                    message=clean(op.message[:MAX_FAILURE_TEXT]),
                    type=clean(op.type[:MAX_FAILURE_TEXT]),
                    traceback=clean(op.traceback[-MAX_FAILURE_TEXT:]),
                )
            case ops.Claim():
                whole("limit", op.limit, 1, MAX_CLAIM)
                _names("queues", op.queues, check_name, 1, 1_000)
                _names("not_groups", op.not_groups, check_label, 0, 100_000)
            case ops.Cancel() | ops.Replay() | ops.Delete():
                _names("ids", op.ids, check_name, 0, 100_000)
            case ops.TakeSlot():
                check_together("holder", op.scope, op.key, op.holder)
            case ops.SetLimit() | ops.Pause():
                check_together("group", op.queue, op.tenant, op.group)
            case ops.PutSchedule():
                return replace(op, schedule=_schedule(op.schedule, payload_limit))
    except InvalidInput as error:
        raise error.within(type(op).__name__) from None
    return op


def sane_query(query: Query) -> Query:
    """The query, if it can be; raises InvalidInput."""
    try:
        _check(query)
        match query:
            case ops.ListJobs() | ops.FindIds():
                _check(query.filter)
                whole("limit", query.limit, 1, MAX_LISTED)
            case ops.ListTenants() | ops.ListGroups():
                whole("limit", query.limit, 1, MAX_LISTED)
                optional("after", query.after)
            case ops.NextDue() | ops.OldestReady():
                _names("queues", query.queues, check_name, 1, 1_000)
    except InvalidInput as error:
        raise error.within(type(query).__name__) from None
    return query


def _check(value: Any) -> None:
    """The fields that mean the same wherever they are."""
    for name in value.__struct_fields__:
        given = getattr(value, name)
        if given is None:
            continue
        if name in _NAMES:
            check_name(name, given)
        elif name in _LABELS:
            check_label(name, given)
        elif name in _SPANS:
            whole(name, given, 1 if name in _AT_LEAST_ONE else 0, MAX_SPAN_MS)
        elif name in _NUMBERS:
            whole(name, given, *_NUMBERS[name])


def _specs(specs: tuple[JobSpec, ...], payload_limit: int) -> tuple[JobSpec, ...]:
    if len(specs) > MAX_JOBS_PER_CALL:
        raise InvalidInput("jobs", f"{len(specs):,} in one call; at most {MAX_JOBS_PER_CALL:,}")
    return tuple(_spec(spec, payload_limit) for spec in specs)


def _spec(spec: JobSpec, payload_limit: int) -> JobSpec:
    _check(spec)
    if "*" in (spec.tenant, spec.group):
        raise InvalidInput("tenant", "'*' stands for every one in limits, and names none")
    if spec.unique_key is not None:
        check_name("unique_key", spec.unique_key)
    if spec.trace is not None:
        check_trace(spec.trace)
    _names("after", spec.after, check_name, 0, MAX_AFTER)
    # Whether an id is new is for the store to find out, not for a stranger to say.
    return replace(spec, payload=_json("payload", spec.payload, payload_limit), made_up_id=False)


def _schedule(schedule: ops.Schedule, payload_limit: int) -> ops.Schedule:
    _check(schedule)
    next_tick(schedule.cron, schedule.tz, 0)
    # When it fires is for the store to say, and when it did.
    return replace(schedule, job=_spec(schedule.job, payload_limit), next_at=0, last_at=None)


def _names(field: str, names: tuple[str, ...], check: Any, least: int, most: int) -> None:
    if not least <= len(names) <= most:
        raise InvalidInput(field, f"names {len(names):,}; from {least} to {most:,}")
    for name in names:
        check(field, name)


def _json(field: str, raw: Raw, limit: int) -> Raw:
    return encode_json(field, raw, limit)  # it is a copy, and JSON all through
