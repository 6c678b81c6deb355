"""An engine that tests can observe and hold up, and helpers for calls in other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tenure.queue import store_of

T = TypeVar("T")
PATIENCE = 30.0  # seconds until a test gives up waiting for something that must happen


class Watched:
    """An engine that records every batch, and can hold batches at a gate. Batches that are let
    through together are applied one by one."""

    def __init__(self, inner: MemoryEngine | SqliteEngine, in_flight: int = 1) -> None:
        self.inner = inner
        self.in_flight = in_flight
        self._one_at_a_time = threading.Lock()
        self.batches: list[list[Op]] = []
        self.entered = threading.Semaphore(0)  # once for each batch that arrived at the gate
        self._passes = threading.Semaphore(0)
        self._held = False
        self.before: Callable[[Sequence[Op]], object] = lambda batch: None
        self.after: Callable[[Sequence[Op]], object] = lambda batch: None

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        self.entered.release()
        if self._held:
            assert self._passes.acquire(timeout=PATIENCE)
        self.before(batch)
        with self._one_at_a_time:
            answers = self.inner.apply(batch)
            self.batches.append(list(batch))
        self.after(batch)
        return answers

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        return self.inner.apply_within(connection, batch)

    def read(self, query: Query) -> Found:
        return self.inner.read(query)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self.inner.listen(wake)

    def close(self) -> None:
        self.inner.close()

    def hold(self) -> None:
        """Make batches wait at the gate from now on."""
        self._held = True
        for semaphore in (self.entered, self._passes):
            while semaphore.acquire(blocking=False):
                pass

    def let_one(self) -> None:
        """Let one batch through."""
        self._passes.release()

    def let_all(self) -> None:
        """Open the gate."""
        self._held = False
        self._passes.release(100)

    def arrived(self) -> None:
        """Wait until a batch is at the gate."""
        assert self.entered.acquire(timeout=PATIENCE)

    def enqueued(self) -> list[str]:
        """The ids of all jobs that were enqueued, in order."""
        return [
            spec.id
            for batch in self.batches
            for op in batch
            if isinstance(op, ops.Enqueue)
            for spec in op.jobs
        ]


def opened(engine: Watched, **settings: Any) -> tenure.Queue:
    return tenure.Queue(engine, tenure.Settings(**settings), SystemClock())


def start(call: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Run the call in a thread of its own, which does not block the exit if it never ends."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no signal of its own."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def handed_in(queue: tenure.Queue, n: int) -> None:
    """Wait until `n` operations wait to be committed. Those of tasks wait in their event loop
    first, until its next turn."""
    committer = store_of(queue).committer

    def are_in_line() -> bool:
        with committer._lock:
            return committer._waiting == n and not committer._gathered

    until(are_in_line)


def committers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "tenure-committer"]
