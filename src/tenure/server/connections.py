"""The open connections of a server, and which to drop when there are too many."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

log = logging.getLogger("tenure.service")

MOST = 10_000
LOG_SECONDS = 10.0  # between log lines about dropped connections


class Droppable(Protocol):
    def drop(self) -> None:
        """Close it at once."""

    def stop(self) -> None:
        """Close it when its current request is answered."""


class Connections:
    """At most `most` connections. A quarter of them is reserved for clients that have shown a valid
    token: when there are too many others, the oldest of them is dropped."""

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_strangers = max(1, most - most // 4)
        self._strangers: dict[Droppable, None] = {}  # the oldest first
        self._trusted: set[Droppable] = set()
        self._now = now
        self._dropped = 0
        self._log_at = 0.0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._trusted)

    def __iter__(self) -> Iterator[Droppable]:
        return iter([*self._strangers, *self._trusted])

    def add(self, connection: Droppable) -> None:
        """Add a new connection. If there are too many, the oldest untrusted one is dropped."""
        self._strangers[connection] = None
        if len(self) > self._most or len(self._strangers) > self._most_strangers:
            self._drop(next(iter(self._strangers)))

    def trust(self, connection: Droppable) -> None:
        """Note that the client of a connection has shown a valid token."""
        if connection in self._strangers:
            del self._strangers[connection]
            self._trusted.add(connection)

    def discard(self, connection: Droppable) -> None:
        """Remove a closed connection."""
        self._strangers.pop(connection, None)
        self._trusted.discard(connection)

    def _drop(self, connection: Droppable) -> None:
        self._strangers.pop(connection)
        connection.drop()
        self._dropped += 1
        if self._now() >= self._log_at:
            log.warning(
                "too many connections (at most %d): dropped %d that had not shown a token",
                self._most,
                self._dropped,
            )
            self._dropped = 0
            self._log_at = self._now() + LOG_SECONDS
