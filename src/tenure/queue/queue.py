"""Queue: a handle on a store of jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import TracebackType

from msgspec.structs import replace

from tenure.clock import Clock, SystemClock
from tenure.engines import (
    Engine,
    open_engine,
)
from tenure.features.rates.counter import RateCounter
from tenure.model import ops
from tenure.model.fields import validated
from tenure.queue.calls import Calls
from tenure.queue.open_store import OpenStore
from tenure.settings import Settings, checked, from_environment, without_secrets


class Queue(Calls):
    """A handle on a store of jobs.

    Threads and asyncio tasks can share one. Every call has an awaitable form whose name starts
    with `a`: `enqueue` and `aenqueue`. Close the handle when done.
    """

    _store: OpenStore

    def __init__(
        self, engine: Engine, settings: Settings, clock: Clock, *, rates: RateCounter | None = None
    ) -> None:
        """rates: counts what this handle commits; None if the store does it, like a service."""
        super().__init__(OpenStore(engine, settings, clock, rates))

    def __repr__(self) -> str:
        url = without_secrets(self.settings.url)
        return f"<tenure.Queue {url}{' closed' if self._store.closed else ''}>"

    def close(self) -> None:
        """Commit what was submitted and close the store. Can be called more than once."""
        self._store.close()

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
        self._store.note = validated(ops.Note(by, reason))


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
