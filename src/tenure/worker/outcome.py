"""How a handler ended, and what happens to its job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tenure.errors import InvalidInput, InvalidPayload, JobNotFound, LeaseLost, TenureError
from tenure.features.steps.data import Suspend
from tenure.model import ops
from tenure.model.fields import span_ms
from tenure.model.job import NULL, Job, Lease, encode_json
from tenure.model.ops import Answer, Op
from tenure.queue.arguments import fail_op

E = TypeVar("E", bound=BaseException)


class Outcome(Exception):
    """Base class of Snooze, Retry, Cancel and Dead. A task can return or raise one."""


class Snooze(Outcome):
    """Run the job again after some seconds. The attempt does not count."""

    def __init__(self, seconds: float | timedelta, reason: str = "") -> None:
        self.delay_ms: int = span_ms("seconds", seconds)
        self.reason = reason
        super().__init__(reason or f"again in {self.delay_ms / 1000:g} s")


class Retry(Outcome):
    """Fail the attempt and try again after some seconds, or after the job's backoff. The attempt
    counts; if it was the last, the job is dead."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after_ms: int | None = None if after is None else span_ms("after", after)
        self.reason = reason
        super().__init__(reason or "the task asked for a retry")


class Cancel(Outcome):
    """Cancel the job, because it is no longer needed."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "cancelled by its task")


class Dead(Outcome):
    """Make the job dead at once, because it can never succeed. Remaining attempts are not used."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "given up by its task")


class Stopped(BaseException):
    """Raised inside a plain function that runs in a thread and must end early."""


class Suspended(BaseException):
    """Ends a run that waits for something: the job goes on when it has happened. A handler must let
    it pass; `except Exception` does."""

    def __init__(self, suspension: Suspend) -> None:
        self.suspension = suspension
        super().__init__(f"the job waits at {suspension.name!r}, and goes on later")


NO_ERRORS = (Outcome, Suspended)  # what a handler raises on purpose


class Timeout(TimeoutError):
    """The task ran longer than its timeout."""


class Rules(msgspec.Struct, frozen=True):
    """What a task says about its outcomes.

    fits: raises InvalidInput if a result does not fit the return annotation. retry_on: only these
    errors are retried. no_retry_on: these are not.
    """

    fits: Callable[[msgspec.Raw], object] | None = None
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    no_retry_on: tuple[type[BaseException], ...] = ()

    def retries(self, error: BaseException) -> bool:
        """Whether a task that raised this error is tried again."""
        return isinstance(error, self.retry_on) and not isinstance(error, self.no_retry_on)


NO_RULES = Rules()
_HOPELESS = "_tenure_hopeless"


def after_return(
    job: Job,
    value: object,
    reason: str | None,
    payload_limit: int,
    rules: Rules = NO_RULES,
    suspension: Suspend | None = None,
) -> Op | None:
    """The operation to submit after the handler returned. reason: why it was told to end early, if
    it was. suspension: what it waits for, if it was suspended."""
    if reason == "lost":
        return None  # another worker has the job
    if reason == "timeout":
        return after_timeout(job, rules)
    if suspension is not None:
        return _not_suspended(job, suspension, "it returned")
    if isinstance(value, Outcome):
        return _as_asked(job, value)
    try:
        result = NULL if value is None else encode_result(value, payload_limit)
        if rules.fits is not None:
            rules.fits(result)
    except TenureError as error:
        # The work was done. Doing it again would lead to the same result.
        return fail_op(job, error.with_traceback(None), fatal=True)
    return ops.Ack(job.id, job.token, result)


def after_timeout(job: Job, rules: Rules) -> ops.Fail:
    """The operation to submit for a job that exceeded its timeout."""
    error = timed_out(job)
    return fail_op(job, error, fatal=not rules.retries(error))


def after_error(
    job: Job,
    error: BaseException,
    reason: str | None,
    rules: Rules = NO_RULES,
    suspension: Suspend | None = None,
) -> Op | None:
    """The operation to submit after the handler raised. reason, suspension: see after_return."""
    if reason == "lost":
        return None
    if reason == "timeout":
        return after_timeout(job, rules)
    if suspension is not None:
        if _is_suspended(error) or reason == "stop":
            return suspension
        return _not_suspended(job, suspension, f"it raised {error!r:.200}")
    if isinstance(error, Outcome):
        return _as_asked(job, error)
    if reason == "stop":
        return ops.Release(job.id, job.token)
    if isinstance(error, asyncio.CancelledError):
        return fail_op(job, "the task cancelled itself")
    if is_hopeless(error):
        return fail_op(job, error.with_traceback(None), fatal=True)
    told = error.with_traceback(_without_own_frames(error.__traceback__))
    return fail_op(job, told, fatal=not rules.retries(error))


def _is_suspended(error: BaseException) -> bool:
    """Whether a handler let a suspension pass; a TaskGroup raises it in a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_suspended, error.exceptions))
    return isinstance(error, Suspended)


def _not_suspended(job: Job, suspension: Suspend, instead: str) -> ops.Fail:
    """The operation to submit for a handler that went on after it was suspended."""
    message = (
        f"the task caught tenure.Suspended at {suspension.name!r}, and {instead}: raise it again, "
        "or catch Exception instead of BaseException; then replay the job"
    )
    return replace(fail_op(job, message, fatal=True), type=Suspended.__name__)


def after_refusal(op: Op, answer: Answer) -> ops.Fail | None:
    """The operation to submit if the store refuses to suspend a job that this worker still has:
    it would wait for nothing. answer: not one after which the same can be sent again."""
    if not isinstance(op, Suspend) or not isinstance(answer, TenureError):
        return None
    if isinstance(answer, LeaseLost | JobNotFound):
        return None
    message = f"the job cannot wait at {op.name!r}: {answer}"
    failure = fail_op(Lease(op.id, op.token), message, fatal=isinstance(answer, InvalidInput))
    return replace(failure, type=type(answer).__name__)


def hopeless(error: E) -> E:
    """Mark an error that is not the task's own, and that every further attempt would meet: the
    arguments do not fit, or the result cannot be stored. Returns the error."""
    error.__dict__[_HOPELESS] = True
    return error


def is_hopeless(error: BaseException) -> bool:
    """Whether an error was marked as hopeless."""
    return _HOPELESS in error.__dict__


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without Tenure's own frames at its start."""
    whole = traceback
    while traceback is not None:
        if not traceback.tb_frame.f_globals.get("__name__", "").startswith("tenure."):
            return traceback
        traceback = traceback.tb_next
    return whole


def timed_out(job: Job) -> Timeout:
    """The error of a job that exceeded its timeout."""
    return Timeout(f"ran longer than its timeout of {(job.timeout_ms or 0) / 1000:g} s")


def _as_asked(job: Job, outcome: Outcome) -> Op:
    match outcome:
        case Snooze():
            return ops.Release(job.id, job.token, outcome.delay_ms)
        case Retry():
            op = replace(fail_op(job, str(outcome)), retry_in_ms=outcome.after_ms)
        case Cancel():
            op = fail_op(job, str(outcome), cancel=True)
        case Dead():
            op = fail_op(job, str(outcome), fatal=True)
        case _:  # another subclass of Outcome, defined by the user
            op = fail_op(job, outcome)
    return replace(op, type=type(outcome).__name__)


def encode_result(value: Any, limit: int) -> msgspec.Raw:
    """Encode the return value of a task as JSON."""
    try:
        return encode_json("result", value, limit)
    except InvalidPayload:
        pass  # it may be a dataclass, a date or a model
    try:
        built = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_special)
    except (NotImplementedError, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload("result", f"is not JSON: {error}") from None
    return encode_json("result", built, limit)


def encode_special(value: Any) -> Any:
    """Encode Pydantic models without depending on Pydantic."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    kind = type(value).__qualname__
    raise NotImplementedError(f"a value of type {kind} cannot be written as JSON")
