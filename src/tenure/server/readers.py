"""Threads for queries and other work, shared fairly: no token can keep others from using them."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from tenure.errors import Busy
from tenure.model.queries import Query
from tenure.queue import Store
from tenure.server.problems import QueryTooSlow
from tenure.server.traffic import Pace

T = TypeVar("T")
SLOTS = min(32, (os.cpu_count() or 1) + 2)
QUERY_SECONDS = 30.0  # at least; a store that is away may take longer to report it


class Readers:
    """Runs queries and other work, at most `slots` at once, and of each token at most half of that.
    When more are wanted, the token with the fewest running is next.

    Work that exceeds its deadline keeps its slot until it is done."""

    def __init__(
        self, store: Store, *, shared: bool, slots: int = SLOTS, seconds: float | None = None
    ) -> None:
        """shared: whether there is more than one token."""
        self._store = store
        self._slots = slots
        self._most_each = max(1, slots // 2) if shared else slots
        if seconds is None:
            seconds = max(QUERY_SECONDS, store.settings.busy_timeout + 5)
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="tenure-read")
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def read(self, who: str, query: Query) -> Any:
        """Run a query on behalf of a token; raises Busy or QueryTooSlow."""
        return await self.run(who, type(query).__name__, partial(self._store.do, query))

    async def run(self, who: str, what: str, work: Callable[[], T], pace: Pace | None = None) -> T:
        """Do work on behalf of a token, if it is not ahead of its pace; raises Busy or
        QueryTooSlow."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                await self._enter(who)
                while pace is not None and pace.is_ahead:  # because of what ran before
                    self._leave(who)
                    await pace.ready()
                    await self._enter(who)
        except TimeoutError:
            raise Busy(
                f"too many queries of this client are running ({self._running[who]}) and waiting"
            ) from None
        with self._left_on_error(who):
            running = loop.run_in_executor(self._threads, work)
        running.add_done_callback(lambda done: self._finished(who, done))
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(running)
        except TimeoutError:
            if running.done():
                return running.result()
            raise QueryTooSlow(
                f"{what} takes longer than {self._seconds:g} s; ask for less"
            ) from None
        finally:
            del running  # its error refers to this frame, and so to what the work refers to

    async def _enter(self, who: str) -> None:
        if self._may_run(who):
            self._running[who] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(who)  # it was granted at the same time
            elif who in self._waiting and turn in self._waiting[who]:
                self._waiting[who].remove(turn)
                self._forget(who)
            raise

    def _may_run(self, who: str) -> bool:
        return self._running[who] < self._most_each and self._running.total() < self._slots

    @contextmanager
    def _left_on_error(self, who: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._leave(who)
            raise

    def _finished(self, who: str, work: asyncio.Future[Any]) -> None:
        if not work.cancelled():
            work.exception()  # nobody may wait for it any more
        self._leave(who)

    def _leave(self, who: str) -> None:
        self._running[who] -= 1
        if not self._running[who]:
            del self._running[who]
        while ready := [one for one in self._waiting if self._may_run(one)]:
            following = min(ready, key=lambda one: self._running[one])
            turn = self._waiting[following].popleft()
            # Move behind other tokens that have as many running queries.
            self._waiting[following] = self._waiting.pop(following)
            self._forget(following)
            if not turn.cancelled():
                turn.set_result(None)
                self._running[following] += 1

    def _forget(self, who: str) -> None:
        if not self._waiting[who]:
            del self._waiting[who]

    def close(self) -> None:
        self._threads.shutdown(wait=False)
