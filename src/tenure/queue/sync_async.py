"""Writing a call once, and deriving its blocking and its awaitable form.

Each call of a queue is a generator that yields what it wants done (operations, or a query) and is
sent the answers. `blocking` turns it into a method that blocks, `awaiting` into a coroutine, and
`both` into both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenure.queue.open_store import Store, Wanted

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


Steps = Generator[Wanted, Any, T]


class Caller:
    """Has calls, which a store carries out."""

    def __init__(self, store: Store) -> None:
        self._store = store


C = TypeVar("C", bound=Caller)


def blocking(
    steps: Callable[Concatenate[C, P], Steps[T]],
) -> Callable[Concatenate[C, P], T]:
    """The blocking form of a call."""

    @functools.wraps(steps)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        course, answer = steps(self, *args, **kwargs), None
        try:
            while True:
                try:
                    wanted = course.send(answer)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer = self._store.do(wanted)
        except BaseException:  # such as Ctrl-C between the commit of a claim and here
            self._store.give_back(answer)
            raise

    return _public(call, steps, "")


def awaiting(
    steps: Callable[Concatenate[C, P], Steps[T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """The awaitable form of a call."""

    @functools.wraps(steps)
    async def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        course, answer = steps(self, *args, **kwargs), None
        while True:
            try:
                wanted = course.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer = await self._store.ado(wanted)

    return _public(call, steps, "a")


def both(
    steps: Callable[Concatenate[C, P], Steps[T]],
) -> tuple[
    Callable[Concatenate[C, P], T],
    Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
]:
    """The blocking and the awaitable form of a call."""
    return blocking(steps), awaiting(steps)


def _public(call: F, steps: Callable[..., Any], prefix: str) -> F:
    """Set the name of a form of a call, and the result that help() shows for it. `inspect` finds
    the rest of the signature in `steps`, when somebody asks: to build 150 of them takes long."""
    name = prefix + steps.__name__.removeprefix("_")
    call.__name__, call.__qualname__ = name, steps.__qualname__.replace("._", f".{prefix}")
    result = steps.__annotations__["return"]
    if result.startswith("Steps["):  # the other form has not done it
        steps.__annotations__["return"] = result.removeprefix("Steps[").removesuffix("]")
    return call
