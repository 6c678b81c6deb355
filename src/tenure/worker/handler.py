"""Handlers: the function or method that runs a job, and where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec

from tenure.errors import InvalidInput
from tenure.model.job import Job
from tenure.worker.outcome import Rules

Place = Literal["loop", "thread", "process"]


def plain_result(job: Job) -> Any:
    """The result of a job, decoded from JSON."""
    return job.result


class HandlerSpec(msgspec.Struct, frozen=True):
    """How to run jobs of one kind."""

    call: Callable[[Job], Any]  # returns an awaitable if it runs in the event loop
    place: Place
    name: str
    module: str = ""  # where a child process imports it from
    qualname: str = ""
    rules: Rules = Rules()
    result_of: Callable[[Job], Any] = plain_result  # decodes the result of any job


def place_of(function: Callable[..., Any], process: bool, name: str) -> Place:
    """Where a function runs: coroutines in the event loop, others in a thread or a process."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(name, "is a generator; a task must be a function that returns")
    if inspect.iscoroutinefunction(function):
        if process:
            raise InvalidInput("process", f"{name} is async; only plain functions run in a process")
        return "loop"
    return "process" if process else "thread"


class Handler:
    """Handles all jobs of one queue with a class.

    Set `queue` and implement `handle`, async or not. Register an instance with a worker or an app.
    """

    queue: ClassVar[str] = ""
    concurrency: ClassVar[int] = 1
    poll_interval: ClassVar[float | None] = None  # None: use the worker's

    def handle(self, payload: Any, job: Job) -> Any:
        """Handle one job; the return value is its result."""
        raise NotImplementedError

    def spec(self) -> HandlerSpec:
        """The handler with which a worker calls it."""
        name = type(self).__qualname__
        if not self.queue:
            raise InvalidInput("queue", f"{name} must set the queue it works on")
        return HandlerSpec(self._call, place_of(self.handle, False, name), name)

    def _call(self, job: Job) -> Any:
        return self.handle(job.payload, job)
