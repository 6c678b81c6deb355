"""Notifications of the operating system that a file was written to, instead of polling it.

Linux only (inotify). Elsewhere, and where it is not available, the caller has to poll.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from pathlib import Path

_IN_MODIFY, _IN_IGNORED = 0x2, 0x8000  # written to; no longer watched, because it was deleted
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of a name; a file's events have none
_MOST_EVENTS = 256


class FileEvents:
    """Writes to one file, by any process. Used by one thread; `interrupt` may come from others."""

    def __init__(self, inotify: int) -> None:
        self._inotify = inotify
        self._interrupted, self._interrupt = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_over = False  # the file was deleted

    @classmethod
    def of(cls, path: Path) -> FileEvents | None:
        """Watch a file; None if that is not possible."""
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "inotify_init1"):
            return None
        inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if inotify < 0:  # the user has too many
            return None
        if libc.inotify_add_watch(inotify, os.fsencode(path), _IN_MODIFY) < 0:
            os.close(inotify)
            return None
        return cls(inotify)

    def wait(self, seconds: float) -> bool:
        """Wait for a write since the last call. Returns False if there was none in this time, or
        the wait was interrupted."""
        readable, _, _ = select.select([self._inotify, self._interrupted], [], [], seconds)
        if self._inotify not in readable:
            return False
        events = _EVENT.iter_unpack(os.read(self._inotify, _EVENT.size * _MOST_EVENTS))
        self.is_over = any(mask & _IN_IGNORED for _, mask, _, _ in events)
        return True

    def interrupt(self) -> None:
        """End the current wait and every later one."""
        os.write(self._interrupt, b".")

    def close(self) -> None:
        for descriptor in (self._inotify, self._interrupted, self._interrupt):
            os.close(descriptor)
