"""What becomes of a job, given how its handler ended: a pure table from outcomes to operations."""

from __future__ import annotations

import asyncio
from types import TracebackType

from msgspec.structs import replace

from tenure import ops
from tenure.arguments import fail_op
from tenure.errors import TenureError
from tenure.job import Job
from tenure.ops import Op
from tenure.outcomes import Cancel, Dead, Outcome, Retry, Snooze
from tenure.signature import encode_result


class Timeout(TimeoutError):
    """The task ran longer than its timeout."""


def after_return(job: Job, value: object, reason: str | None, payload_limit: int) -> Op | None:
    """The handler returned. `reason` is why it was told to end early, if it was."""
    if reason == "lost":
        return None  # somebody else has the job; there is nothing to say
    if reason == "timeout":
        return fail_op(job, timed_out(job))
    if isinstance(value, Outcome):
        return _as_asked(job, value)
    if value is None:
        return ops.Ack(job.id, job.token)
    try:
        return ops.Ack(job.id, job.token, encode_result(value, payload_limit))
    except TenureError as error:
        return fail_op(job, error)


def after_error(job: Job, error: BaseException, reason: str | None) -> Op | None:
    """The handler raised."""
    if reason == "lost":
        return None
    if reason == "timeout":
        return fail_op(job, timed_out(job))
    if isinstance(error, Outcome):
        return _as_asked(job, error)
    if reason == "stop":
        return ops.Release(job.id, job.token)
    if isinstance(error, asyncio.CancelledError):
        return fail_op(job, "the task cancelled itself")
    return fail_op(job, error.with_traceback(_from_the_task(error.__traceback__)))


def _from_the_task(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the way from the worker to the task."""
    whole = traceback
    while traceback is not None:
        if not traceback.tb_frame.f_globals.get("__name__", "").startswith("tenure."):
            return traceback
        traceback = traceback.tb_next
    return whole


def timed_out(job: Job) -> Timeout:
    """Why a job failed that was told to end because its time was over."""
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
        case _:  # a class of the user's own that is none of these
            op = fail_op(job, outcome)
    return replace(op, type=type(outcome).__name__)
