"""Bounds on how many new queues a token may name.

A queue is created with its first job. Each takes a row or a few keys, and every round of
maintenance visits it, so one client must not create thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tenure.errors import Busy, QueueNotFound
from tenure.model import queries
from tenure.queue import Queue, store_of

PER_MINUTE = 1_000
MOST_KNOWN = 100_000  # names remembered as existing
MOST_TOKENS = 10_000  # whose use is remembered


class _Room(NamedTuple):
    """How many new names a token may still use, at some moment."""

    left: float
    at: float


class NewNames:
    """Counts the new names of each token. Names that exist are free."""

    def __init__(self, queue: Queue, per_minute: int = PER_MINUTE) -> None:
        self._queue = queue
        self._per_minute = per_minute
        self._known: set[str] = set()
        self._rooms: dict[str, _Room] = {}

    async def admit(self, token: str, names: Iterable[str]) -> None:
        """Let a token (its hash, or any other key) use these queues, or raise Busy.

        The store is asked only if there are more unknown names than the token has room for. A
        rejected call uses up that room, so the next one is rejected at its first new name.
        """
        fresh = set(names) - self._known
        if not fresh:
            return
        room = self._room(token)
        new = fresh if len(fresh) <= room else await self._missing(fresh, room)
        self._spend(token, min(len(new), room))
        if len(new) > room:
            raise Busy(
                f"this token may create {self._per_minute:,} queues per minute; nothing was "
                "changed: use fewer queue names (tenants and groups need no queues of their own), "
                "or try again later"
            )
        if len(self._known) + len(fresh) > MOST_KNOWN:
            self._known.clear()
        self._known |= fresh

    def _room(self, token: str) -> float:
        now = self._queue.clock.monotonic()
        room = self._rooms.get(token)
        if room is None:
            return self._per_minute
        gained = max(0.0, now - room.at) * self._per_minute / 60
        return min(room.left + gained, self._per_minute)

    def _spend(self, token: str, count: float) -> None:
        left = self._room(token) - count  # others may have used some of it meanwhile
        if token not in self._rooms and len(self._rooms) >= MOST_TOKENS:
            self._rooms.pop(next(iter(self._rooms)))
        self._rooms[token] = _Room(left, self._queue.clock.monotonic())

    async def _missing(self, names: set[str], room: float) -> set[str]:
        """The names that do not exist. Stops as soon as there are too many."""
        missing: set[str] = set()
        for name in names:
            if isinstance(await store_of(self._queue).ado(queries.GetStats(name)), QueueNotFound):
                missing.add(name)
                if len(missing) > room:
                    break
            elif len(self._known) < MOST_KNOWN:
                self._known.add(name)
        return missing
