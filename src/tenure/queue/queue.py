"""Queue: a handle on a store of jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from tenure.clock import Clock, SystemClock
from tenure.engines import Engine, HasLog, open_engine
from tenure.errors import Closed
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.queries import Query
from tenure.queue.calls import Calls, good
from tenure.queue.committer import Committer, Standing
from tenure.queue.sync_async import Wanted, Within
from tenure.queue.wakeups import Changes
from tenure.settings import Settings, checked, from_environment


class Queue(Calls):
    """A handle on a store of jobs. Share one between threads and tasks; close it when done."""

    def __init__(self, engine: Engine, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self._engine = engine
        self.clock = clock
        self._closed = False
        self.changes = Changes(engine)  # who is told when jobs may be ready or may have ended
        self._committer = Committer(
            engine, settings.max_waiting, settings.max_waiting_bytes, self.changes.committed
        )

    def __repr__(self) -> str:
        return f"<tenure.Queue {self.settings.url}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Commit what was handed in and give everything back. A second close does nothing."""
        if not self._closed:
            self._closed = True
            self._committer.close()
            self._engine.close()

    async def aclose(self) -> None:
        """The same for a task."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def do(self, wanted: Wanted) -> Any:
        """Have a step of a call done, and wait."""
        self._check_open()
        if isinstance(wanted, Query):
            return self._engine.read(wanted)
        if isinstance(wanted, Within):
            return self._engine.apply_within(*wanted)
        return self._committer.run(wanted)

    async def ado(self, wanted: Wanted) -> Any:
        """Have a step of a call done, and await it."""
        self._check_open()
        if isinstance(wanted, Query):
            return await asyncio.to_thread(self._engine.read, wanted)
        if isinstance(wanted, Within):
            return self._engine.apply_within(*wanted)  # the caller's connection, its thread
        return await self._committer.arun(wanted)

    def stand(self, claim: ops.Claim) -> Standing:
        """Leave a claim that is run together with the next enqueue in this process that it may be
        for; `withdraw` it. For workers, in a loop."""
        self._check_open()
        return self._committer.stand(claim, self.clock.monotonic)

    async def withdraw(self, standing: Standing) -> list[Job]:
        """End a standing claim; answers with the jobs that it just found."""
        answers = await self._committer.withdraw(standing)
        return [job for answer in answers for job in good(answer, ops.Leased).jobs]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this queue handle was closed")

    def _log_bytes(self) -> int | None:
        """The length of the store's write-ahead log, if it has one to watch."""
        return self._engine.log_bytes() if isinstance(self._engine, HasLog) else None


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    wrap: Callable[[Engine, Clock], Engine] = lambda engine, clock: engine,
) -> Queue:
    """Open a queue by its URL: sqlite:///file.db, memory://, postgresql://host/database, or
    http://host:port for a service of Tenure, which may ask for a token. Without one, TENURE_URL and
    TENURE_TOKEN count. wrap: what stands between the queue and its engine, for measuring."""
    if settings is None:
        settings = from_environment(os.environ, url=url, token=token)
    else:
        given = {"url": url, "token": token}
        known = {name: value for name, value in given.items() if value is not None}
        settings = checked(replace(settings, **known))
    clock = clock or SystemClock()
    return Queue(wrap(open_engine(settings, clock), clock), settings, clock)
