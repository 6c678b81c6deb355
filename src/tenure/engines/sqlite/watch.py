"""Detecting commits of other processes to the file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable

INTERVAL_SECONDS = 0.035  # waking a thread costs a hundred microseconds, the check a few


class Watch:
    """Calls the listeners whenever the version of the file changes."""

    def __init__(self, version: Callable[[], int | None]) -> None:
        self._version = version  # None once the file is closed
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._nobody = threading.Event()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(wake)
            # After a fork, the child has the listeners but not the thread.
            if self._thread is None or not self._thread.is_alive():
                self._nobody = threading.Event()
                self._thread = threading.Thread(
                    target=self._look, args=(self._nobody,), name="tenure-watch", daemon=True
                )
                self._thread.start()

        def stop() -> None:
            with self._lock:
                if wake in self._listeners:
                    self._listeners.remove(wake)
                if not self._listeners:
                    self._nobody.set()
                    self._thread = None

        return stop

    def _look(self, nobody: threading.Event) -> None:
        seen: int | None = -1
        while not nobody.wait(INTERVAL_SECONDS):
            try:
                version = self._version()
            except sqlite3.Error:
                version = -1  # the woken caller will run into the error and report it
            if version is None:
                return
            if version != seen:
                seen = version
                for wake in list(self._listeners):
                    wake()
