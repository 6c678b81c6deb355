"""Threads for handlers that are plain functions."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger("tenure.worker")


class Threads:
    """A pool that grows to the number of concurrent calls. Its threads are daemons."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._busy = 0

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call` in a thread. It must not raise."""
        with self._lock:
            self._busy += 1
            more = self._count < self._busy
            self._count += more
        self._inbox.put(call)
        if more:
            name = f"tenure-worker-{self._count}"
            try:
                threading.Thread(target=self._serve, name=name, daemon=True).start()
            except RuntimeError as error:  # cannot start a thread: the call waits for a free one
                with self._lock:
                    self._count -= 1
                log.warning("%s; %d threads do the work", error, self._count)

    def close(self) -> None:
        """Let each thread exit once it has finished its current call."""
        for _ in range(self._count):
            self._inbox.put(None)

    def _serve(self) -> None:
        while (call := self._inbox.get()) is not None:
            call()
            with self._lock:
                self._busy -= 1
