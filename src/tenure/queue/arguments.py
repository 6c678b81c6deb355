"""Validating the arguments of `Queue` calls. Bad values raise InvalidInput with the field name."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

from tenure.errors import InvalidInput
from tenure.model import ops
from tenure.model.fields import (
    MAX_FAILURE_TEXT,
    MAX_JOBS_PER_CALL,
    POSITIVE_SPAN,
    Name,
    Token,
    check,
    check_name,
    clean,
    span_ms,
    validated,
)
from tenure.model.job import Job, Lease, State
from tenure.model.queries import Filter

Seconds = float | timedelta
_LISTS = frozenset({list, tuple})
T = TypeVar("T")


def claim_op(
    queues: tuple[str, ...],
    worker: str,
    lease: Seconds,
    limit: int,
    tenant: str | None,
    not_groups: tuple[str, ...],
) -> ops.Claim:
    """A valid claim. Most claims of a program are equal, so that they are validated once."""
    try:
        return _claim_op(queues, worker, lease, limit, tenant, not_groups)
    except TypeError:  # unhashable, so not a valid value
        return _claim_op.__wrapped__(queues, worker, lease, limit, tenant, not_groups)


@lru_cache(maxsize=1_024, typed=True)
def _claim_op(
    queues: tuple[str, ...],
    worker: str,
    lease: Seconds,
    limit: int,
    tenant: str | None,
    not_groups: tuple[str, ...],
) -> ops.Claim:
    lease_ms = span_ms("lease", lease, POSITIVE_SPAN)
    return validated(ops.Claim(queues, worker, lease_ms, limit, tenant, not_groups))


def fail_op(
    job: Job | Lease,
    error: str | BaseException,
    retry_in: Seconds | None = None,
    fatal: bool = False,
    cancel: bool = False,
) -> ops.Fail:
    if isinstance(error, BaseException):
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        message, trace = _told(error)
    else:
        message, kind, trace = str(error), "", ""
    return ops.Fail(
        *lease_of(job),
        failure_text(message),
        failure_text(kind),
        clean(trace[-MAX_FAILURE_TEXT:]),
        None if retry_in is None else span_ms("retry_in", retry_in),
        bool(fatal),
        bool(cancel),
    )


def failure_text(text: str) -> str:
    """A message as an error of a job can hold it."""
    return clean(str(text)[:MAX_FAILURE_TEXT])


def _told(error: BaseException) -> tuple[str, str]:
    """An exception's message and traceback, even if its __str__ raises."""
    try:
        return str(error), "".join(tracebacks.format_exception(error))
    except Exception as another:
        return f"(no message: str() raised {type(another).__name__})", ""


def lease_of(job: Job | Lease) -> tuple[str, int]:
    """The id and token that prove the caller holds the job's lease."""
    if isinstance(job, Job):
        return job.id, job.token
    if not isinstance(job, Lease):
        raise InvalidInput("job", f"must be a claimed Job or a Lease, not {job!r:.60}")
    return check("id", job.id, Name), check("token", job.token, Token)


def filter_of(
    queue: str | None,
    states: tuple[State, ...],
    tenant: str | None = None,
    group: str | None = None,
    kind: str | None = None,
    error: str | None = None,
) -> Filter:
    return validated(Filter(queue, states, tenant, group, kind, error=error))


def listed(field: str, values: Iterable[T]) -> list[T]:
    """The values as a list. Rejects a single string, which Python would split into characters."""
    if type(values) in _LISTS:
        return list(values)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(field, f"must be a list, not {type(values).__name__}")
    return list(values)


def too_many_jobs(count: int) -> InvalidInput:
    """The error for a call with more jobs than can be stored together."""
    return InvalidInput(
        "jobs",
        f"{count:,} in one call; at most {MAX_JOBS_PER_CALL:,}, which are stored all or none: "
        "enqueue them in several calls",
    )


def several(field: str, names: str | Sequence[str]) -> list[str]:
    """One name or several, as a list."""
    return [names] if isinstance(names, str) else listed(field, names)


def ids_of(jobs: Iterable[str | Job], field: str) -> tuple[str, ...]:
    return tuple(
        job.id if isinstance(job, Job) else check_name(field, job) for job in listed(field, jobs)
    )


def states_of(state: str | Sequence[str] | None) -> tuple[State, ...]:
    if state is None:
        return ()
    try:
        found = tuple(State(one) for one in several("state", state))
    except ValueError:
        known = ", ".join(State)
        raise InvalidInput("state", f"{state!r} is not one of {known}") from None
    if not found:
        raise InvalidInput("state", "give at least one")
    return found


def some_jobs(call: str, jobs: object, *filters: str | None) -> None:
    """Check that jobs are selected either by id or by a filter: not both, not neither."""
    filtered = any(value is not None for value in filters)
    if jobs is None and not filtered:
        raise InvalidInput(call, "say which jobs: by id, or by a filter such as queue=")
    if jobs is not None and filtered:
        raise InvalidInput(call, "say which jobs by id or by a filter, not by both")


def of_kind(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(field, f"must be a {kind.__name__}, not {type(value).__name__}")


def scope_of(tenant: str | None, group: str | None) -> tuple[str | None, str | None]:
    """The scope of a limit: a group without a tenant means that group in every tenant."""
    return ("*" if group is not None and tenant is None else tenant), group
