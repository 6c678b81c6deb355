"""A quick check whether the store responds."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tenure.errors import TenureError
from tenure.model.queries import Stats
from tenure.queue import Queue

PATIENCE_SECONDS = 2.0  # other calls wait much longer for a store that is away


class Pulse:
    """Runs one check at a time, which all callers share."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        # Its own thread: however busy the service is, the check is not delayed.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tenure-pulse")
        self._question: asyncio.Task[Stats] | None = None

    async def _ask(self) -> Stats:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._queue.stats)

    async def trouble(self) -> str | None:
        """Return what is wrong with the store, if anything."""
        question = self._question
        if question is None or question.done():
            question = self._question = asyncio.create_task(self._ask())
        asked, _ = await asyncio.wait([question], timeout=PATIENCE_SECONDS)
        if not asked:
            return f"it has not answered for {PATIENCE_SECONDS:g} s"
        error = question.exception()  # others may ask the next one already
        if error is None:
            return None
        if not isinstance(error, TenureError):
            raise error
        return error.message
