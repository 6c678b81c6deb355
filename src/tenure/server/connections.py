"""The open connections of a server, and which to close when there are too many."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from tenure.errors import Busy

log = logging.getLogger("tenure.service")

MOST = 10_000
LOG_SECONDS = 10.0  # between log lines about closed connections
LOOKED_AT = 100  # connections of a token among which an idle one is searched


class Droppable(Protocol):
    @property
    def is_idle(self) -> bool:
        """Whether it has no request."""

    def drop(self) -> None:
        """Close it at once."""

    def stop(self) -> None:
        """Close it when its current request is answered, without waiting for anything."""


class Connections:
    """At most `most` connections. Clients that have not shown a valid token, such as health checks,
    can have three quarters of them, and can always have a twentieth: then the oldest is dropped.

    The others are shared by the tokens. If there are too many, an idle one of the token with the
    most is closed; if none is idle, that token gets no more, and gives one to any other token."""

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_strangers = max(1, most - most // 4)
        self._most_known = max(1, most - max(1, most // 20))
        self._strangers: dict[Droppable, None] = {}  # the oldest first
        self._tokens: dict[str, dict[Droppable, None]] = {}  # connections by token
        self._known: dict[Droppable, str] = {}  # and the token of each
        self._leaving: dict[Droppable, None] = {}  # will be closed soon; the oldest first
        self._now = now
        self._closed = 0
        self._log_at = 0.0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known) + len(self._leaving)

    def __iter__(self) -> Iterator[Droppable]:
        return iter([*self._strangers, *self._known, *self._leaving])

    def add(self, connection: Droppable) -> None:
        """Add a new connection. If there are too many, one that has not shown a token is
        dropped."""
        self._strangers[connection] = None
        if len(self._strangers) > self._most_strangers:
            self._drop(self._strangers)
        elif len(self) > self._most:
            self._drop(self._leaving or self._strangers)

    def trust(self, connection: Droppable, who: str) -> None:
        """Note that the client of a connection has shown a valid token; it may have shown another
        one before. Raises Busy if the token has too many connections."""
        if connection in self._strangers:
            if len(self._known) >= self._most_known:
                self._make_room(who)
            del self._strangers[connection]
        elif connection in self._known:
            self._forget(connection)
        else:
            return  # it is being closed
        self._known[connection] = who
        self._tokens.setdefault(who, {})[connection] = None

    def _make_room(self, who: str) -> None:
        """Close a connection of the token that has the most. Raises Busy if that is this token, and
        none of them is idle."""
        theirs = max(self._tokens.values(), key=len)
        found = None
        for one in list(islice(theirs, LOOKED_AT)):
            if one.is_idle:
                found = one
                break
            theirs[one] = theirs.pop(one)  # look at others the next time
        if found is None:
            if len(self._tokens.get(who, ())) + 1 >= len(theirs):
                raise Busy(f"too many connections with this token ({len(theirs):,})")
            found = next(iter(theirs))
        self._forget(found)
        self._leaving[found] = None
        self._note()
        found.stop()

    def _forget(self, connection: Droppable) -> None:
        who = self._known.pop(connection)
        theirs = self._tokens[who]
        del theirs[connection]
        if not theirs:
            del self._tokens[who]

    def discard(self, connection: Droppable) -> None:
        """Remove a closed connection."""
        self._strangers.pop(connection, None)
        self._leaving.pop(connection, None)
        if connection in self._known:
            self._forget(connection)

    def _drop(self, some: dict[Droppable, None]) -> None:
        connection = next(iter(some))
        del some[connection]
        connection.drop()
        self._note()

    def _note(self) -> None:
        self._closed += 1
        if self._now() >= self._log_at:
            log.warning("too many connections (at most %d): closed %d", self._most, self._closed)
            self._closed = 0
            self._log_at = self._now() + LOG_SECONDS
