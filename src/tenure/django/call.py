"""Converting calls of Django tasks to jobs and back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.utils import timezone

from tenure.django.framework import normalize_json
from tenure.model.job import Job


class Call(msgspec.Struct, frozen=True):
    """The payload of a job. The job's kind is the module path of the task."""

    args: list[Any]
    kwargs: dict[str, Any]
    backend: str = ""  # its alias in TASKS
    run_after: datetime | None = None  # as requested; a retry changes the job's run_at


def as_job(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a call of a task to arguments of Queue.enqueue. Raises TypeError if the function does
    not take these arguments, or if they cannot be written as JSON."""
    check_arguments(task, args, kwargs)
    payload = {
        "args": normalize_json(args),
        "kwargs": normalize_json(kwargs),
        "backend": task.backend,
    }
    if task.run_after is not None:
        payload["run_after"] = task.run_after.isoformat()
    return {
        "queue": task.queue_name,
        "payload": payload,
        "kind": task.module_path,
        "priority": -int(task.priority),  # Django runs the higher one first
        "run_at": _aware(task.run_after),
    }


def check_arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if the function of a task cannot be called like this."""
    context = (None,) if task.takes_context else ()
    try:
        inspect.signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{task.name}() {error}") from None


def call_of(job: Job) -> Call:
    """Decode the call from a job. Raises msgspec.DecodeError if it is not a Django task."""
    return msgspec.json.decode(job.raw_payload, type=Call)


def _aware(moment: datetime | None) -> datetime | None:
    """Make a datetime aware. Without USE_TZ, naive values are in the server's time zone."""
    if moment is None or timezone.is_aware(moment):
        return moment
    aware: datetime = timezone.make_aware(moment, timezone.get_default_timezone())
    return aware
