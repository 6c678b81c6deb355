"""Notifying other processes of changes, in a thread of its own.

The server commits only one transaction with a notification at a time, and each costs as much as a
small commit. So a process combines its notifications and limits their rate, and no caller waits for
them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

QUIET_SECONDS = 0.005  # between two notifications, however often this process commits


class Teller:
    """Calls `send` to notify others. A notification that cannot be sent is dropped: processes that
    lost the server check for changes when it is back."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._begin()

    def _begin(self) -> None:
        """Reset to the state of a new process: a fork does not have its parent's thread."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self) -> None:
        """Notify others soon. Never fails, because it is called after a commit."""
        if self._process != os.getpid():
            self._begin()
        self._wanted.set()
        if self._thread is None:
            with self._lock, suppress(RuntimeError):  # cannot start a thread: try again later
                if self._thread is None and not self._closing.is_set():
                    thread = threading.Thread(target=self._work, name="tenure-tell", daemon=True)
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Send any outstanding notification, and stop."""
        with self._lock:
            self._closing.set()
            self._wanted.set()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join()

    def _work(self) -> None:
        last = False
        while not last:
            self._wanted.wait()
            last = self._closing.is_set()
            self._wanted.clear()
            with suppress(psycopg.Error):
                self._send()
            self._closing.wait(QUIET_SECONDS)
