"""Queue: a handle on a store of jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from tenure.clock import Clock, SystemClock
from tenure.engines import (
    ClaimsAtOnce,
    Engine,
    HasLog,
    HasShards,
    PartOf,
    open_engine,
    parts_of,
)
from tenure.errors import Closed
from tenure.model import ops
from tenure.model.fields import validated
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.model.queries import Query
from tenure.queue.arguments import good
from tenure.queue.calls import Calls
from tenure.queue.committer import Committer, Standing
from tenure.queue.rates import RateCounter
from tenure.queue.record_calls import noted, with_note
from tenure.queue.sync_async import Wanted, Within
from tenure.queue.wakeups import Changes
from tenure.settings import Settings, checked, from_environment, without_secrets


class Queue(Calls):
    """A handle on a store of jobs.

    Threads and asyncio tasks can share one. Every call has an awaitable form whose name starts
    with `a`: `enqueue` and `aenqueue`. Close the handle when done.
    """

    def __init__(
        self, engine: Engine, settings: Settings, clock: Clock, *, rates: RateCounter | None = None
    ) -> None:
        """rates: counts what this handle commits; None if the store does it, like a service."""
        self.settings: Settings = settings
        self._engine = engine
        self._note: ops.Note | None = None
        self.clock: Clock = clock
        self._closed = False
        self.changes: Changes = Changes(engine)  # notifies when jobs may be ready or finished
        self._committer = Committer(
            engine, settings.max_waiting, settings.max_waiting_bytes, self.changes.committed, rates
        )

    def __repr__(self) -> str:
        url = without_secrets(self.settings.url)
        return f"<tenure.Queue {url}{' closed' if self._closed else ''}>"

    def close(self) -> None:
        """Commit what was submitted and close the store. Can be called more than once."""
        if not self._closed:
            self._closed = True
            self._committer.close()
            self._engine.close()

    async def aclose(self) -> None:
        """Commit what was submitted and close the store. Can be called more than once."""
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

    def sign(self, *, by: str, reason: str = "") -> None:
        """Add all changes by this handle to the audit log: who makes them, and why. To add only
        some of them, use `audited`."""
        self._note = validated(ops.Note(by, reason))

    def do(self, wanted: Wanted) -> Any:
        """Carry out one step of a call and return its answer, blocking."""
        self._check_open()
        if self._note is not None:
            wanted = with_note(wanted, self._note)
        if isinstance(wanted, Query):
            return self._engine.read(wanted)
        if isinstance(wanted, Within):
            return self._engine.apply_within(*wanted)
        return self._committer.run(wanted)

    async def ado(self, wanted: Wanted) -> Any:
        """Carry out one step of a call and return its answer."""
        self._check_open()
        if self._note is not None:
            wanted = with_note(wanted, self._note)
        if type(wanted) is list and wanted:
            return await self._committer.submitted(wanted)
        if isinstance(wanted, Query):
            return await asyncio.to_thread(self._engine.read, wanted)
        if isinstance(wanted, Within):
            return self._engine.apply_within(*wanted)  # in the thread of the caller's connection
        return await self._committer.arun(wanted)

    async def ado_beside(self, batch: Sequence[Op]) -> list[Answer]:
        """Like `ado`, but claims do not wait for other claims of this handle. For workers."""
        self._check_open()
        if self._note is not None:
            batch = noted(batch, self._note)
        return await self._committer.arun(batch, beside=True)

    def do_aside(self, batch: Sequence[Op]) -> list[Answer]:
        """Like `do`, but other calls of this handle do not wait for this one, and it does not wait
        for them. For workers, and not for claims."""
        self._check_open()
        if self._note is not None:
            batch = noted(batch, self._note)
        return self._committer.run_aside(batch)

    @property
    def claims_at_once(self) -> bool:
        """Whether a worker may gain from several claims of one queue at the same time."""
        return isinstance(self._engine, ClaimsAtOnce) and self._engine.claims_at_once

    @property
    def _part_of(self) -> PartOf | None:
        """Tells a worker which part of the store operations concern, if it has parts."""
        return parts_of(self._engine)

    def stand(self, claim: ops.Claim) -> Standing:
        """Leave a claim that runs together with the next enqueue to its queues in this process.
        End it with `withdraw`. For workers, in an event loop."""
        self._check_open()
        return self._committer.stand(claim, self.clock.monotonic)

    async def withdraw(self, standing: Standing) -> list[Job]:
        """End a standing claim, and return the jobs it has just found, if any."""
        answers = await self._committer.withdraw(standing)
        return [job for answer in answers for job in good(answer, ops.Leased).jobs]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this queue handle was closed")

    def _give_back(self, answer: Any) -> None:
        if isinstance(answer, list):
            self._committer.give_back(answer)

    def _log_bytes(self) -> int | None:
        """The size of the store's write-ahead log, if it has one."""
        return self._engine.log_bytes() if isinstance(self._engine, HasLog) else None

    def _away(self) -> tuple[str, ...]:
        """The shards that are away."""
        return tuple(self._engine.away()) if isinstance(self._engine, HasShards) else ()


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    wrap: Callable[[Engine, Clock], Engine] = lambda engine, clock: engine,
) -> Queue:
    """Open a queue by its URL.

    url: sqlite:///file.db, postgresql://host/database, fdb:///path/to/fdb.cluster, memory://,
    http://host:port of a Tenure service, or several stores as one queue:
    sqlite:///jobs-{0..3}.db, shards:///shards.toml. Defaults to TENURE_URL. token: for a service.
    Defaults to TENURE_TOKEN. settings: see Settings. clock: for tests. wrap: wraps the engine, for
    measurements.
    """
    settings = settings_of(url, token, settings)
    clock = clock or SystemClock()
    is_remote = settings.url.startswith(("http://", "https://"))
    rates = None if is_remote else RateCounter(clock)
    return Queue(wrap(open_engine(settings, clock), clock), settings, clock, rates=rates)


def settings_of(url: str | None, token: str | None, settings: Settings | None) -> Settings:
    """The settings that `connect()` uses."""
    if settings is None:
        return from_environment(os.environ, url=url, token=token)
    given = {"url": url, "token": token}
    known = {name: value for name, value in given.items() if value is not None}
    return checked(replace(settings, **known))
