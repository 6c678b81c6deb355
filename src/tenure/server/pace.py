"""Limits how often something is done, on average, without a queue of its own."""

from __future__ import annotations

import asyncio
import math


class Pace:
    """At most `rate` turns a second, after a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._spacing = 1 / rate
        self._ahead = burst / rate  # seconds
        self._next = -math.inf  # when the next turn is due, if turns come at the rate

    def spend(self, turns: float) -> None:
        """Take turns, without waiting for them."""
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._ahead) + turns * self._spacing

    @property
    def is_ahead(self) -> bool:
        """Whether turns were taken that are not due yet."""
        return self._next > 0 and self._next > asyncio.get_running_loop().time()

    async def ready(self) -> None:
        """Wait until the turns that were taken are due."""
        wait = self._next - asyncio.get_running_loop().time()
        if wait > 0:
            await asyncio.sleep(wait)

    async def turn(self, turns: float = 1) -> None:
        """Take turns, and wait until they are due."""
        self.spend(turns)
        await self.ready()
