"""A call as a course of steps, and the two public forms that are made of it.

Each call of `Queue` is written once, as a generator that yields what it wants done (operations,
or a query) and is sent the answers. `blocking` makes the form of it that waits, `awaiting` the one
that is awaited.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from tenure.model.ops import Op
from tenure.model.queries import Query

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class Within(NamedTuple):
    """Operations to be run in the caller's own transaction."""

    connection: Any
    batch: Sequence[Op]


Wanted = Sequence[Op] | Query | Within
Steps = Generator[Wanted, Any, T]


class Doer(Protocol):
    """Who has steps done."""

    def do(self, wanted: Wanted) -> Any:
        """Wait for the answers."""

    async def ado(self, wanted: Wanted) -> Any:
        """Await the answers."""


D = TypeVar("D", bound=Doer)


def blocking(
    steps: Callable[Concatenate[D, P], Steps[T]],
) -> Callable[Concatenate[D, P], T]:
    """The form of a call that waits."""

    @functools.wraps(steps)
    def call(self: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        course, answer = steps(self, *args, **kwargs), None
        while True:
            try:
                wanted = course.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = self.do(wanted)

    return _public(call, steps, "")


def awaiting(
    steps: Callable[Concatenate[D, P], Steps[T]],
) -> Callable[Concatenate[D, P], Coroutine[Any, Any, T]]:
    """The form of a call that is awaited."""

    @functools.wraps(steps)
    async def call(self: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        course, answer = steps(self, *args, **kwargs), None
        while True:
            try:
                wanted = course.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = await self.ado(wanted)

    return _public(call, steps, "a")


def _public(call: F, steps: Callable[..., Any], prefix: str) -> F:
    """Give a form of a call the name and signature under which help() shows it."""
    name = prefix + steps.__name__.removeprefix("_")
    signature = inspect.signature(steps)
    answer = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    call.__name__, call.__qualname__ = name, f"Queue.{name}"
    call.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
    return call
