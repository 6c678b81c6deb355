"""The journal of a process that may be killed at any moment.

A line is appended, by one write, before a call is made ("try ...") and after it has returned. So a
journal never contains results that its process did not get, and calls without a result are known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class Event(msgspec.Struct, array_like=True, frozen=True):
    """One line."""

    at: int
    kind: str
    id: str = ""
    token: int = 0
    data: dict[str, Any] = {}


_decode = msgspec.json.Decoder(Event).decode


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Journal:
    """The lines of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, id: str = "", token: int = 0, **data: Any) -> int:
        """Append a line. Returns its time."""
        at = now_ms()
        os.write(self._file, msgspec.json.encode(Event(at, kind, id, token, data)) + b"\n")
        return at

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> Iterator[Event]:
    """Read every line of every journal in a folder."""
    for path in sorted(folder.glob("*.journal")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield _decode(line)
