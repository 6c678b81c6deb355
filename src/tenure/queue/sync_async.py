"""Writing a call once, and deriving its blocking and its awaitable form.

Each call of `Queue` is a generator that yields what it wants done (operations, or a query) and is
sent the answers. `blocking` turns it into a method that blocks, `awaiting` into a coroutine.
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
    """Operations to run in the caller's own transaction."""

    connection: Any
    batch: Sequence[Op]


Wanted = Sequence[Op] | Query | Within
Steps = Generator[Wanted, Any, T]


class Doer(Protocol):
    """Carries out the steps of calls."""

    def do(self, wanted: Wanted) -> Any:
        """Carry out a step and return its answer, blocking."""

    async def ado(self, wanted: Wanted) -> Any:
        """Carry out a step and return its answer."""


D = TypeVar("D", bound=Doer)


def blocking(
    steps: Callable[Concatenate[D, P], Steps[T]],
) -> Callable[Concatenate[D, P], T]:
    """The blocking form of a call."""

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
    """The awaitable form of a call."""

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
    """Set the name and signature that help() shows for a form of a call."""
    name = prefix + steps.__name__.removeprefix("_")
    signature = inspect.signature(steps)
    answer = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    call.__name__, call.__qualname__ = name, f"Queue.{name}"
    call.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
    return call
