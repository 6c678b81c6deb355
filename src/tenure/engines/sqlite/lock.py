"""The lock that a writer of a file needs, and how to wait for it.

While SQLite itself waits, it sleeps for 1, 2, 5, 10 and up to 100 ms between two attempts. Beside a
process that writes all the time, and leaves the lock free for a moment only, that takes seconds.
Short steps find such a moment soon.
"""

from __future__ import annotations

import sqlite3
import threading
import time

FIRST_SECONDS = 0.0001  # between two attempts
GROWTH = 1.03
LONGEST_SECONDS = 0.001  # so that many processes that wait do not keep the machine busy

# One thread at a time runs the Python code of a transaction, whatever its file. Python would not
# run two of them at once anyway: they would wait for its interpreter lock in turns, and each would
# hold the lock of its file for twice as long. Commits run side by side. It is reentrant, because a
# signal handler may use another queue.
running = threading.RLock()


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
