"""The engine contract, and opening an engine by its URL.

An engine runs operations; it knows nothing of threads, tasks, HTTP or workers. The committer
calls `apply` from one thread at a time; `read` may be called from any thread at any time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from tenure.clock import Clock
from tenure.engines.memory import MemoryEngine
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.errors import InvalidInput
from tenure.ops import Answer, Found, Op, Query
from tenure.settings import Settings


class Engine(Protocol):
    """What every store can do."""

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        """Run the operations in order and answer each. Every one is atomic, and durable before
        this returns. One that cannot be done is answered with its error and changes nothing. A
        StoreError is raised when none of the batch happened."""

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        """The same inside the caller's own transaction on `connection`: it decides whether the
        operations happen."""

    def read(self, query: Query) -> Found:
        """Answer from one snapshot."""

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake`, from a thread of the engine's, soon after another process changed
        something; it may also be called for nothing. Answers with what ends it."""

    def close(self) -> None:
        """Give everything back. Nothing is called afterwards."""


def _open_foundationdb(url: str, settings: Settings, clock: Clock) -> Engine:
    # Loaded when it is asked for: the binding below it is a large library that few have.
    module = importlib.import_module("tenure.engines.foundationdb.engine")
    engine: Engine = module.FoundationDbEngine.open(url, settings, clock)
    return engine


ENGINES: dict[str, Callable[[str, Settings, Clock], Engine]] = {
    "memory": MemoryEngine.open,
    "sqlite": SqliteEngine.open,
    "fdb": _open_foundationdb,
}


def open_engine(settings: Settings, clock: Clock) -> Engine:
    """The engine that the URL names."""
    scheme = urlsplit(settings.url).scheme
    if scheme not in ENGINES:
        known = ", ".join(f"{name}://" for name in ENGINES)
        raise InvalidInput("url", f"{settings.url!r} must begin with one of {known}")
    return ENGINES[scheme](settings.url, settings, clock)
