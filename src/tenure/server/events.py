"""News for those who wait: that something changed, and what became of jobs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.queue import Queue
from tenure.server.route import ANY, Call, Route
from tenure.server.waiting import changes_of


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True):
    since: str = ""
    wait: Annotated[float, Meta(ge=0, le=60)] = 0


class Version(msgspec.Struct):
    """Another value means that something may have changed."""

    version: str


class News:
    """A number that grows with each change that this process hears of."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._start = secrets.token_hex(4)  # another process counts anew
        self._count = 0
        self._stop = queue.changes.listen(self._note)

    def _note(self, queues: Collection[str] | None) -> None:
        self._count += 1

    @property
    def version(self) -> str:
        return f"{self._start}.{self._count}"

    async def newer(self, since: str, seconds: float, closing: asyncio.Event) -> str:
        """The version once it is another, or as it is when the time is over."""
        end = asyncio.get_running_loop().time() + seconds
        async with changes_of(self._queue) as changed:
            while self.version == since and not closing.is_set():
                changed.forget()
                left = end - asyncio.get_running_loop().time()
                if left <= 0 or self.version != since:
                    break
                await changed.wait(min(left, 1.0))
        return self.version

    def close(self) -> None:
        self._stop()


async def changes(call: Call, query: ChangesQuery) -> Version:
    """Wait until something may have changed since a version."""
    return Version(await call.service.news.newer(query.since, query.wait, call.service.closing))


ROUTES = [
    Route("GET", "/v1/changes", changes, scope=ANY, query=ChangesQuery, answer=Version),
]
