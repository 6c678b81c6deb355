"""The files behind open connections: whether they are still in place, and the size of the log."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tenure.errors import StoreError

# SQLite restarts its log when no reader needs it. Overlapping readers never leave such a moment, so
# above this size one is made: writers wait until the current readers have ended.
LOG_LIMIT_BYTES = 32 * 2**20
LOG_GROWTH = 1.25  # how much it must grow before the next attempt, if the readers did not end
WAIT_MS = 250  # for readers, at the limit; longer in proportion to the size
MOST_WAIT_MS = 5_000

Identity = tuple[int, int]  # device and inode


class Disk:
    """The file and its write-ahead log, as seen by the engine that has them open.

    SQLite keeps writing to files that were deleted or replaced, and those writes are lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = str(path)
        self._file: Identity | None = None
        self.log_path: Path | None = None  # of the write-ahead log, once the file is open
        self._log_name = ""
        self._log: Identity | None = None
        self._length = 0  # size of the log
        self._next_attempt = LOG_LIMIT_BYTES

    def opened(self, writer: sqlite3.Connection) -> None:
        """Remember the identity of the files, right after opening them."""
        # SQLite follows links, and creates the log next to the file itself.
        real = self._path.resolve()
        self.log_path = real.with_name(f"{real.name}-wal")
        self._log_name = str(self.log_path)
        self._file = _identity(_stat(self._name))
        self._log = _identity(_stat(self._log_name))
        # SQLite truncates the log to this size when it restarts it.
        writer.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")

    def closed(self) -> None:
        """Forget the log: closing the last connection removed it."""
        self._log = None

    def check_file(self) -> None:
        """Raise StoreError unless the path still refers to the file that was opened."""
        if self._file is not None and _identity(_stat(self._name)) != self._file:
            raise self._gone()

    def check(self) -> None:
        """Like `check_file`, for the log too. The log exists as long as the writer is open."""
        self.check_file()
        if self._log is not None:
            found = _stat(self._log_name)
            if found is None or _identity(found) != self._log:
                raise self._gone()
            self._length = found.st_size

    def _gone(self) -> StoreError:
        return StoreError(
            f"{self._path} was deleted or replaced while it was open; nothing was changed: "
            "put the file and its -wal back, or restart the program"
        )

    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        found = _stat(self._log_name) if self._log_name else None
        return 0 if found is None else found.st_size

    def shorten_log(self, connection: sqlite3.Connection) -> None:
        """Write a log that was too large at the last check back into the file, and restart it.
        Failing is not an error: committed data is safe without it."""
        if self._length < self._next_attempt:
            return
        wait_ms = min(MOST_WAIT_MS, WAIT_MS * self._length // LOG_LIMIT_BYTES)
        try:
            connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:  # such as a full disk
            busy = True
        finally:
            connection.execute("PRAGMA busy_timeout = 0")
        self._next_attempt = int(self._length * LOG_GROWTH) if busy else LOG_LIMIT_BYTES


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116 - half the time of Path.stat, in every transaction
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result | None) -> Identity | None:
    return None if found is None else (found.st_dev, found.st_ino)
