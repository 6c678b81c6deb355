"""The stores that are open in this process.

Django makes a backend for each thread and each task of asyncio; a store is shared by all of them.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from typing import Any

from django.core.signals import setting_changed

from tenure.queue import Queue, connect


class Stores:
    """Handles by URL, each opened when it is first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str | None, Queue] = {}

    def open(self, url: str | None) -> Queue:
        """The handle on the store at this URL; None: at TENURE_URL."""
        with self._lock:
            queue = self._open.get(url)
            if queue is None:
                queue = self._open[url] = connect(url)
            return queue

    async def aopen(self, url: str | None) -> Queue:
        """The same for a task of asyncio, since opening may have to wait for others."""
        queue = self._open.get(url)
        return await asyncio.to_thread(self.open, url) if queue is None else queue

    def is_open(self, url: str | None) -> bool:
        return url in self._open

    def close(self) -> None:
        """Close them all; who asks again gets a new one."""
        with self._lock:
            queues, self._open = list(self._open.values()), {}
        for queue in queues:
            queue.close()


STORES = Stores()
atexit.register(STORES.close)


def _forget(setting: str, **_: Any) -> None:
    """A test changes the settings: it shall not meet the jobs of another one."""
    if setting == "TASKS":
        STORES.close()


setting_changed.connect(_forget)
