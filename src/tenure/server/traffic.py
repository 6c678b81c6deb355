"""Limits how often something is done, on average, and the bytes that are sent to one token."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from tenure.errors import Busy
from tenure.server.exchange import Exchange

SMALL = 1_048_576  # bytes; smaller responses are not counted
RATE_BYTES = 64 * 1_048_576  # per second, of requests and responses of one token
WORK_SHARE = 0.5  # of a core, for one token
BODY_BYTES = 128 * 1_048_576  # of large bodies of one token that are being received or handled
HELD_BYTES = 32 * 1_048_576  # of responses to one token: being made, or not read yet
ROOM_SECONDS = 30.0  # that a request waits for clients to read, before it is rejected
LOOK_SECONDS = 0.01
FORGET_SECONDS = 1.0  # between looks whether responses were read


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


class Spacing:
    """One change at a time, and after it a rest of the same length. `work` counts their time, too,
    and they wait for it."""

    def __init__(self, work: Pace) -> None:
        self._work = work
        self._rest = Pace(1, 0)
        self._one = asyncio.Lock()

    async def apply(self, change: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        async with self._one:
            await self._rest.ready()
            await self._work.ready()
            began = loop.time()
            try:
                return await change()
            finally:
                for pace in (self._rest, self._work):
                    pace.spend(loop.time() - began)


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


class Traffic:
    """The bytes of one token: how many a second, in requests and responses, and how many in
    responses that are being made, or that its clients have not read yet."""

    def __init__(self, most: int | None = None) -> None:
        """most: bytes to hold, if not HELD_BYTES."""
        self._most = most
        self.pace: Pace = Pace(RATE_BYTES, RATE_BYTES / 2)
        # The CPU time of work in threads and the time of large changes, in seconds. They take turns
        # with all other requests.
        self.work: Pace = Pace(WORK_SHARE, WORK_SHARE)
        self.large: Spacing = Spacing(self.work)
        self._reserved = 0
        self._sent: list[Exchange] = []
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, response: Exchange) -> None:
        """Note a response that was not read at once."""
        self._sent.append(response)
        if len(self._sent) == 1:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget_read)

    def _forget_read(self) -> None:
        """Forget responses that were read, and those of connections that were closed."""
        self._sent = [one for one in self._sent if one.unread() > 0]
        if self._sent:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget_read)

    def _is_full(self, size: int) -> bool:
        held = self._reserved + sum(one.unread() for one in self._sent)
        return held > 0 and held + size > (self._most or HELD_BYTES)

    async def reserve(self, size: int) -> None:
        """Wait for room for this many bytes; raises Busy. The caller releases it when they are
        sent."""
        if self.pace.is_ahead:
            await self.pace.ready()
        if not size or (not self._waiting and not self._is_full(size)):
            self._reserved += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size, turn)
        self._waiting.append(waiting)
        self._look_later()
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await turn
        except BaseException as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif turn.done() and not turn.cancelled():
                self.release(size)  # it was granted at the same time
            if isinstance(error, TimeoutError):
                raise Busy(
                    "clients with this token do not read their responses, or send too "
                    "large bodies at once"
                ) from None
            raise

    def _look_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Wake requests that wait for room, in order. Runs on a timer: nothing reports a read."""
        self._timer = None
        while self._waiting and not self._is_full(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._reserved += size
                turn.set_result(None)
        if self._waiting:
            self._look_later()

    def release(self, size: int) -> None:
        self._reserved -= size
