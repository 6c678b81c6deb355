"""Which request begins next, while the event loop has more to do than it can: tokens take turns."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from tenure.server.exchange import Exchange
from tenure.server.problems import TooSlow

GONE = "the client went away before its request was served"
SLICE_SECONDS = 0.002  # of one iteration of the event loop, in which requests begin at once


class Turns:
    """Requests begin at once until those of an iteration of the event loop have taken a slice of
    time. The others wait: in each further iteration some of them begin, of all tokens in turns, and
    about as many as fit into a slice. Whose client has left meanwhile does not begin."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = 0.0  # when the current slice did
        self._is_counting = False  # until the next iteration
        self._some = 1  # that fit into a slice
        self._waiting: dict[str, deque[tuple[Exchange, asyncio.Future[None]]]] = {}

    def may_begin(self) -> bool:
        """Whether a request may begin at once."""
        if not self._is_counting:
            self._is_counting = True
            self._began = self._now()
            asyncio.get_running_loop().call_soon(self._go_on)
            return True
        return not self._waiting and self._now() - self._began < SLICE_SECONDS

    async def turn(self, who: str, request: Exchange) -> None:
        """Wait for a turn of a token. Raises TooSlow if the client has left meanwhile."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append((request, turn))
        await turn

    def _go_on(self) -> None:
        """Runs behind those that have begun in this iteration."""
        if not self._waiting:
            self._is_counting = False
            return
        now = self._now()
        late = now - self._began > SLICE_SECONDS
        self._some = max(1, self._some // 2) if late else self._some + 1
        self._began = now
        left = self._some
        while self._waiting and left:
            left -= self._let_in(next(iter(self._waiting)))
        asyncio.get_running_loop().call_soon(self._go_on)

    def _let_in(self, who: str) -> bool:
        """Whether the next one of a token begins."""
        line = self._waiting.pop(who)
        request, turn = line.popleft()
        if line:
            self._waiting[who] = line  # behind the others
        if turn.done():  # its task was cancelled
            return False
        if request.has_left:
            turn.set_exception(TooSlow(GONE))
            return False
        turn.set_result(None)
        return True


def check_there(request: Exchange) -> None:
    """Raise TooSlow if the client is known to have left."""
    if request.is_gone:
        raise TooSlow(GONE)
