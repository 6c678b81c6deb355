"""Limits how often something is done, on average."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable


class Pace:
    """At most `rate` turns a second, after a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self.spacing: float = 1 / rate
        self._ahead = burst / rate  # seconds
        self._next = -math.inf  # when the next turn is due, if turns come at the rate

    def spend(self, turns: float) -> None:
        """Take turns, without waiting for them."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._ahead) + turns * self.spacing

    @property
    def is_ahead(self) -> bool:
        """Whether turns were taken that are not due yet."""
        return self._next > 0 and self._next > asyncio.get_running_loop().time()

    @property
    def wait(self) -> float:
        """The seconds until the turns that were taken are due; at most 0 if they are."""
        return self._next - asyncio.get_running_loop().time()

    async def ready(self) -> None:
        """Wait until the turns that were taken are due. Others may have taken more meanwhile."""
        wait = self.wait
        if wait > 0:
            await asyncio.sleep(wait)


class Line:
    """Requests that wait for their turns, in order. The line is short: who would wait for longer
    than `seconds` is rejected. Who has left meanwhile takes no turn."""

    def __init__(self, rate: float, burst: float, seconds: float = 1.0) -> None:
        self._pace = Pace(rate, burst)
        self._seconds = seconds
        self._wanted = 0.0  # turns
        self._waiting: deque[tuple[float, Callable[[], bool], asyncio.Future[bool]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, turns: float, has_left: Callable[[], bool]) -> bool:
        """Wait for turns. Returns whether they were given."""
        if not self._waiting and not self._pace.is_ahead:
            self._pace.spend(turns)
            return True
        if self._is_long:
            self._remove_left()
            if self._is_long:
                return False
        given: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((turns, has_left, given))
        self._wanted += turns
        self._look_later()
        return await given

    @property
    def _is_long(self) -> bool:
        return self._pace.wait + self._wanted * self._pace.spacing > self._seconds

    def _remove_left(self) -> None:
        stay = []
        for waiting in self._waiting:
            turns, has_left, given = waiting
            if given.done() or has_left():
                self._wanted -= turns
                _tell(given, False)
            else:
                stay.append(waiting)
        self._waiting = deque(stay)

    def _look_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._pace.wait), self._look)

    def _look(self) -> None:
        self._timer = None
        while self._waiting and not self._pace.is_ahead:
            turns, has_left, given = self._waiting.popleft()
            self._wanted -= turns
            if not given.done() and not has_left():
                self._pace.spend(turns)
                _tell(given, True)
            else:
                _tell(given, False)
        if self._waiting:
            self._look_later()


def _tell(given: asyncio.Future[bool], answer: bool) -> None:
    if not given.done():
        given.set_result(answer)
