"""Converting jobs to Django's TaskResult."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from tenure.django.call import Call
from tenure.django.framework import TaskError, TaskResult, TaskResultStatus
from tenure.errors import TenureError
from tenure.model.job import Failure, Job, State
from tenure.worker import outcome

STATUS = {
    State.WAITING: TaskResultStatus.READY,
    State.PENDING: TaskResultStatus.READY,
    State.LEASED: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
UNKNOWN = "unknown"  # the worker of an attempt whose failure is no longer kept


def result_of(job: Job, call: Call, task: Any, alias: str) -> Any:
    """The TaskResult of a call of `task`, stored in the backend `alias`."""
    result = TaskResult(
        task=task,
        id=job.id,
        status=STATUS[job.state],
        enqueued_at=_moment(job.created_at),
        started_at=_moment(_first_start(job)),
        last_attempted_at=_moment(job.started_at if job.attempts else None),
        finished_at=_moment(job.finished_at),
        args=call.args,
        kwargs=call.kwargs,
        backend=alias,
        errors=[_error(failure) for failure in job.errors],
        worker_ids=_workers(job),
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def _moment(ms: int | None) -> datetime | None:
    """A datetime like those of django.utils.timezone.now()."""
    if ms is None:
        return None
    aware = datetime.fromtimestamp(ms / 1000, UTC)
    if settings.USE_TZ:
        return aware
    naive: datetime = timezone.make_naive(aware, timezone.get_default_timezone())
    return naive


def _first_start(job: Job) -> int | None:
    """When the first attempt started. The store only has the start of the last attempt and the
    times of earlier failures, so after a retry this is when the first attempt failed."""
    if job.attempts <= 1 or not job.errors:
        return job.started_at if job.attempts else None
    return job.errors[0].at


def _workers(job: Job) -> list[str]:
    """The worker of each attempt. Django uses the length as the number of attempts."""
    known = {failure.attempt: failure.worker for failure in job.errors}
    if job.worker:
        known[job.attempts] = job.worker
    return [known.get(n) or UNKNOWN for n in range(1, job.attempts + 1)]


def _error(failure: Failure) -> Any:
    path = _path_of(failure.type)
    trace = failure.traceback or f"{path}: {failure.message}\n"
    return TaskError(exception_class_path=path, traceback=trace)


def _path_of(kind: str) -> str:
    """The import path of an exception class."""
    if "." in kind:
        return kind
    if hasattr(builtins, kind):
        return f"builtins.{kind}"
    # An outcome that the task asked for, or one from outside: it was cancelled, or its worker died.
    found = getattr(outcome, kind, TenureError) if kind else TenureError
    return f"{found.__module__}.{found.__qualname__}"
