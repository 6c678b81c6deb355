"""Bounds on how many new queues and workers a token may name.

A queue is created with its first job. Each takes a row or a few keys, and every round of
maintenance visits it, so one client must not create thousands of them. The same is true of workers:
each report adds a record, and one for each of its queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tenure.errors import Busy, QueueNotFound
from tenure.features.live_workers.data import Beat
from tenure.model import ops, queries
from tenure.model.ops import Op
from tenure.queue import Queue, store_of

PER_MINUTE = 1_000
MOST_WORKERS = 2_000  # of one token at once
SMALL_WORKER = 2_000  # bytes of a report
LARGE_WORKERS = 4_000_000  # bytes of the larger reports of one token: everybody reads them
MOST_KNOWN = 100_000  # names remembered as existing
MOST_TOKENS = 10_000  # whose use is remembered


def names_of(batch: Sequence[Op]) -> Iterator[str]:
    """The queues that operations create if they do not exist."""
    for op in ops.flat(batch):
        match op:
            case ops.Enqueue():
                yield from (spec.queue for spec in op.jobs)
            case ops.Ack():
                yield from (spec.queue for spec in op.then)
            case ops.SetLimit() | ops.Pause():
                yield op.queue
            case Beat():  # it does not create them, but notes when each was worked last
                yield from op.worker.queues


class _Room(NamedTuple):
    """How many new names a token may still use, at some moment."""

    left: float
    at: float


class _Alive(NamedTuple):
    """A worker that reports itself: until when, and how large its report is."""

    until: float
    size: int


def _forget_dead(alive: dict[tuple[str, str, int], _Alive], now: float) -> None:
    for key in [key for key, one in alive.items() if one.until <= now]:
        del alive[key]


class NewNames:
    """Counts the new names of each token. Names that exist are free."""

    def __init__(self, queue: Queue, per_minute: int = PER_MINUTE) -> None:
        self._queue = queue
        self._per_minute = per_minute
        self._known: set[str] = set()
        self._rooms: dict[str, _Room] = {}
        self._workers: dict[str, dict[tuple[str, str, int], _Alive]] = {}  # by token

    def admit_workers(self, token: str, batch: Sequence[Op]) -> None:
        """Let a token report these workers, or raise Busy."""
        for op in ops.flat(batch):
            if isinstance(op, Beat):
                self._admit_worker(token, op)

    def _admit_worker(self, token: str, op: Beat) -> None:
        now, alive = self._queue.clock.monotonic(), self._workers.setdefault(token, {})
        worker = (op.worker.name, op.worker.host, op.worker.pid)
        if worker not in alive and len(alive) >= MOST_WORKERS:
            _forget_dead(alive, now)
            if len(alive) >= MOST_WORKERS:
                raise Busy(f"{MOST_WORKERS:,} workers report themselves with this token")
        size = len(msgspec.json.encode(op.worker))
        if size > SMALL_WORKER:
            _forget_dead(alive, now)
            others = sum(one.size for key, one in alive.items() if key != worker)
            if others + size > LARGE_WORKERS:
                raise Busy(f"the workers of this token report more than {LARGE_WORKERS:,} bytes")
        alive[worker] = _Alive(now + op.ttl_ms / 1000, size)

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
