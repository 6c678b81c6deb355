"""Whether the store answers, for those who must know soon."""

from __future__ import annotations

import asyncio

from tenure.errors import TenureError
from tenure.model.queries import Stats
from tenure.queue import Queue

PATIENCE_SECONDS = 2.0  # a store that is away is waited for much longer by all others


class Pulse:
    """Asks one question at a time, however many want to know."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._question: asyncio.Task[Stats] | None = None

    async def trouble(self) -> str | None:
        """What is wrong with the store, if anything is."""
        if self._question is None or self._question.done():
            self._question = asyncio.create_task(self._queue.astats())
        asked, _ = await asyncio.wait([self._question], timeout=PATIENCE_SECONDS)
        if not asked:
            return f"it has not answered for {PATIENCE_SECONDS:g} s"
        error = self._question.exception()
        if error is None:
            return None
        if not isinstance(error, TenureError):
            raise error
        return error.message
