"""Telling other processes that something changed, in a thread beside the commits.

The server lets only one transaction with a notification commit at a time, and each costs as much
as a small commit. So those of a process are sent together, at most so often; nobody waits for them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg

QUIET_SECONDS = 0.005  # between two notifications, however often we commit


class Teller:
    """`send` notifies the others. What it cannot send is left: who lost the server looks when it
    is back."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._begin()

    def _begin(self) -> None:
        """As it is in a process that has told nothing yet: a fork has no thread of its parent."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self) -> None:
        """Have the others told, soon. It is called after a commit: it does not fail."""
        if self._process != os.getpid():
            self._begin()
        self._wanted.set()
        if self._thread is None:
            with self._lock, suppress(RuntimeError):  # no thread can be started: the next may
                if self._thread is None and not self._closing.is_set():
                    thread = threading.Thread(target=self._work, name="tenure-tell", daemon=True)
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        """Tell what is left to be told, and end."""
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
