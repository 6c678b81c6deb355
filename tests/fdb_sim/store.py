"""What is stored: every key with its values of the last five seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tests.fdb_sim.ordered import Ordered

# The values of a key, oldest first, each with the version that wrote it; None was a clear.
History = list[tuple[int, bytes | None]]


class Store:
    """An ordered map that can be read as of any version that was not pruned."""

    def __init__(self) -> None:
        self._rows: Ordered[History] = Ordered()
        self._stale: deque[tuple[int, bytes]] = deque()  # what to look at when pruning, and when

    def __len__(self) -> int:
        """How many keys take up memory, cleared ones that were not pruned among them."""
        return len(self._rows)

    def history(self, key: bytes) -> int:
        """How many values of a key are kept."""
        return len(self._rows.get(key) or [])

    def get(self, key: bytes, version: int) -> bytes | None:
        history = self._rows.get(key)
        return _as_of(history, version) if history is not None else None

    def rows(
        self, begin: bytes, end: bytes, version: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows in order. Nothing may be written meanwhile."""
        for key in self._rows.between(begin, end, reverse=reverse):
            value = _as_of(self._rows[key], version)
            if value is not None:
                yield key, value

    def put(self, key: bytes, value: bytes | None, version: int) -> None:
        """Write a key; None clears it."""
        history = self._rows.get(key)
        if history is None:
            if value is not None:
                self._rows[key] = [(version, value)]
            return
        if history[-1][0] == version:  # a batch of commits shares its version
            history[-1] = (version, value)
        elif value is None and history[-1][1] is None:
            return
        else:
            history.append((version, value))
        self._stale.append((version, key))

    def clear_range(self, begin: bytes, end: bytes, version: int) -> list[bytes]:
        """Clear what is there, and say what was."""
        keys = [key for key in self._rows.between(begin, end) if self._rows[key][-1][1] is not None]
        for key in keys:
            self.put(key, None, version)
        return keys

    def prune(self, oldest: int) -> None:
        """Forget what nobody can read who reads at `oldest` or later."""
        while self._stale and self._stale[0][0] <= oldest:
            _, key = self._stale.popleft()
            history = self._rows.get(key)
            if history is None:
                continue
            unread = 0
            while unread + 1 < len(history) and history[unread + 1][0] <= oldest:
                unread += 1
            del history[:unread]
            if len(history) == 1 and history[0][1] is None and history[0][0] <= oldest:
                del self._rows[key]


def _as_of(history: History, version: int) -> bytes | None:
    last, value = history[-1]
    if last <= version:
        return value
    low, high = 0, len(history)
    while low < high:
        middle = (low + high) // 2
        if history[middle][0] <= version:
            low = middle + 1
        else:
            high = middle
    return history[low - 1][1] if low else None
