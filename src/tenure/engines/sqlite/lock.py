"""The lock that a writer of a file needs, and how to wait for it.

While SQLite itself waits, it sleeps for 1, 2, 5, 10 and up to 100 ms between two attempts. Beside a
process that writes all the time, and leaves the lock free for a moment only, that takes seconds.
Short steps find such a moment soon.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

FIRST_SECONDS = 0.0001  # between two attempts
GROWTH = 1.03
LONGEST_SECONDS = 0.001  # so that many processes that wait do not keep the machine busy

PATIENCE_SECONDS = 0.5  # of a thread, for the Python code of others

_running = threading.RLock()
T = TypeVar("T")


def alone(run: Callable[[], T]) -> T:
    """Run the Python code of a transaction.

    One thread at a time does so, whatever its file. Python would not run two of them at once
    anyway: they would wait for its interpreter lock in turns, and each would hold the lock of its
    file for twice as long. Commits run side by side.

    A signal handler may use another queue, so this is reentrant. The handler may also wait for a
    thread that waits here for the thread it interrupted. So waiting ends after a while: the order
    only saves time, and nothing depends on it."""
    running = _running
    held: list[bool] = []
    try:
        # One step, which no signal can interrupt.
        held.extend(map(running.acquire, (True,), (PATIENCE_SECONDS,)))
        return run()
    finally:
        if True in held:
            running.release()


def _in_child() -> None:
    """Another thread of the parent, which may have had the lock, does not exist in a child."""
    global _running
    _running = threading.RLock()


os.register_at_fork(after_in_child=_in_child)


class Wait:
    """Waits until other writers have ended, for some seconds at most."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._step = FIRST_SECONDS

    def begin(self, writer: sqlite3.Connection) -> bool:
        """Begin a transaction that can write. Returns False if another connection has the lock, and
        raises sqlite3.OperationalError once that has taken too long. The connection must not wait
        by itself."""
        try:
            writer.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or self._is_over():
                raise
            return False
        return True

    def _is_over(self) -> bool:
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._seconds
        return now >= self._until

    def sleep(self) -> None:
        """Sleep until the next attempt."""
        time.sleep(self._step)
        self._step = min(self._step * GROWTH, LONGEST_SECONDS)
