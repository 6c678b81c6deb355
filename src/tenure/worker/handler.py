"""What runs a job: a function or a method, and where it is to run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import msgspec

from tenure.errors import InvalidInput
from tenure.model.job import Job

Place = Literal["loop", "thread", "process"]


class Handler(msgspec.Struct, frozen=True):
    """How jobs of one kind are run."""

    call: Callable[[Job], Any]  # in the loop: answers with something to await
    place: Place
    name: str
    module: str = ""  # where a process finds it again
    qualname: str = ""


def place_of(function: Callable[..., Any], process: bool, name: str) -> Place:
    """Where a function runs if nothing else is said: coroutines in the loop, others in threads."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(name, "is a generator; a task is a function that returns")
    if inspect.iscoroutinefunction(function):
        if process:
            raise InvalidInput("process", f"{name} is async; only plain functions run in a process")
        return "loop"
    return "process" if process else "thread"


class Worker:
    """All jobs of one queue, handled by a class.

    Set `queue`, and write `handle`, async or not. Register an instance with a runner.
    """

    queue: ClassVar[str] = ""
    concurrency: ClassVar[int] = 1
    poll_interval: ClassVar[float | None] = None  # None: as the runner's

    def handle(self, payload: Any, job: Job) -> Any:
        """Do the work of one job; what it returns is the result."""
        raise NotImplementedError

    def handler(self) -> Handler:
        """How a runner calls it."""
        name = type(self).__qualname__
        if not self.queue:
            raise InvalidInput("queue", f"{name} does not say which queue it works on")
        return Handler(self._call, place_of(self.handle, False, name), name)

    def _call(self, job: Job) -> Any:
        return self.handle(job.payload, job)
