"""Writing a call once, and deriving its blocking and its awaitable form.

Each call of `Queue` is a generator that yields what it wants done (operations, or a query) and is
sent the answers. `blocking` turns it into a method that blocks, `awaiting` into a coroutine.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
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

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        """Carry out a step; await its answer."""

    def _give_back(self, answer: Any) -> None:
        """Release the jobs in the answer of a step: its caller does not get them."""


D = TypeVar("D", bound=Doer)


def blocking(
    steps: Callable[Concatenate[D, P], Steps[T]],
) -> Callable[Concatenate[D, P], T]:
    """The blocking form of a call."""

    @functools.wraps(steps)
    def call(self: D, /, *args: P.args, **kwargs: P.kwargs) -> T:
        course, answer = steps(self, *args, **kwargs), None
        try:
            while True:
                try:
                    wanted = course.send(answer)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer = self.do(wanted)
        except BaseException:  # such as Ctrl-C between the commit of a claim and here
            self._give_back(answer)
            raise

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
    """Set the name of a form of a call, and the result that help() shows for it. `inspect` finds
    the rest of the signature in `steps`, when somebody asks: to build 150 of them takes long."""
    name = prefix + steps.__name__.removeprefix("_")
    call.__name__, call.__qualname__ = name, f"Queue.{name}"
    result = steps.__annotations__["return"]
    if result.startswith("Steps["):  # the other form has not done it
        steps.__annotations__["return"] = result.removeprefix("Steps[").removesuffix("]")
    return call
