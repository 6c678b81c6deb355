"""The files behind the open connections: whether they are in place, and how long the log is."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tenure.errors import StoreError

# SQLite begins its log anew when no reader needs it. Readers that overlap leave no such moment,
# so above this length one is made: writers wait until the readers of today have ended.
LOG_LIMIT_BYTES = 32 * 2**20
LOG_GROWTH = 1.25  # by which it must grow before the next attempt, if the readers did not end
WAIT_MS = 250  # for readers, at the limit; more in proportion to the length
MOST_WAIT_MS = 5_000

Identity = tuple[int, int]  # device and inode


class Disk:
    """The file and its write-ahead log, as seen by the engine that has them open.

    SQLite goes on writing to files that were deleted or replaced, where nobody will find it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Identity | None = None
        self._log_path: Path | None = None
        self._log: Identity | None = None
        self._length = 0  # of the log
        self._next_attempt = LOG_LIMIT_BYTES

    def opened(self, writer: sqlite3.Connection) -> None:
        """Note which files they are, right after they were opened."""
        # SQLite follows links, and puts the log beside the file itself.
        real = self._path.resolve()
        self._log_path = real.with_name(f"{real.name}-wal")
        self._file = _identity(_stat(self._path))
        self._log = _identity(_stat(self._log_path))
        # SQLite cuts the log down to this when it begins it anew.
        writer.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")

    def closed(self) -> None:
        """No connection is open: the last that was closed has removed the log."""
        self._log = None

    def check_file(self) -> None:
        """Raise StoreError unless the path still names the file that was opened."""
        if self._file is not None and _identity(_stat(self._path)) != self._file:
            raise self._gone()

    def check(self) -> None:
        """The same for the log as well, which is there for as long as the writer is open."""
        self.check_file()
        if self._log is not None and self._log_path is not None:
            found = _stat(self._log_path)
            if found is None or _identity(found) != self._log:
                raise self._gone()
            self._length = found.st_size

    def _gone(self) -> StoreError:
        return StoreError(
            f"{self._path} was deleted or replaced while it was open; nothing was changed: "
            "put the file and its -wal back, or restart the program"
        )

    def log_bytes(self) -> int:
        """The length of the write-ahead log."""
        found = None if self._log_path is None else _stat(self._log_path)
        return 0 if found is None else found.st_size

    def shorten_log(self, connection: sqlite3.Connection, busy_timeout: float) -> None:
        """Write a log that was too long at the last check back into the file, and begin it anew.
        What was committed is safe without it, so that it fails is no error."""
        if self._length < self._next_attempt:
            return
        wait_ms = min(MOST_WAIT_MS, WAIT_MS * self._length // LOG_LIMIT_BYTES)
        try:
            connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
            ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error:  # a full disk, say
            busy = True
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(busy_timeout * 1000)}")
        self._next_attempt = int(self._length * LOG_GROWTH) if busy else LOG_LIMIT_BYTES


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _identity(found: os.stat_result | None) -> Identity | None:
    return None if found is None else (found.st_dev, found.st_ino)
