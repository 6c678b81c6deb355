"""The stores that are open in this process.

Django creates a backend per thread and per asyncio task; all of them share a store.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from typing import Any

from django.core.signals import setting_changed

from tenure.queue import Queue, connect


class Stores:
    """Queue handles by URL, opened on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str | None, Queue] = {}

    def open(self, url: str | None) -> Queue:
        """Return the handle for the store at this URL; None means TENURE_URL."""
        with self._lock:
            queue = self._open.get(url)
            if queue is None:
                queue = self._open[url] = connect(url)
            return queue

    async def aopen(self, url: str | None) -> Queue:
        """Awaitable form of `open`, because opening a store can block."""
        queue = self._open.get(url)
        return await asyncio.to_thread(self.open, url) if queue is None else queue

    def is_open(self, url: str | None) -> bool:
        return url in self._open

    def close(self) -> None:
        """Close all handles. The next `open` creates a new one."""
        with self._lock:
            queues, self._open = list(self._open.values()), {}
        for queue in queues:
            queue.close()


STORES = Stores()
atexit.register(STORES.close)


def _forget(setting: str, **_: Any) -> None:
    """Close the stores when a test changes the settings, so that tests do not share jobs."""
    if setting == "TASKS":
        STORES.close()


setting_changed.connect(_forget)
