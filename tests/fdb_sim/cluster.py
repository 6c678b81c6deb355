"""The servers' side: versions, commits, and who waits for what."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from tenure.clock import Clock, SystemClock
from tests.fdb_sim.atomic import Kind, Mutation, applied
from tests.fdb_sim.conflicts import ConflictSet
from tests.fdb_sim.errors import FUTURE_VERSION, NOT_COMMITTED, TOO_OLD, FDBError
from tests.fdb_sim.futures import Scene
from tests.fdb_sim.stats import Stats
from tests.fdb_sim.store import Store
from tests.fdb_sim.watches import Watch, Watches
from tests.fdb_sim.writes import Range

VERSIONS_PER_SECOND = 1_000_000
LIFE_VERSIONS = 5 * VERSIONS_PER_SECOND  # how old a read version may be
IDLE_VERSIONS = VERSIONS_PER_SECOND  # without commits, the read version jumps once in a second
_FIRST_VERSION = 2 * LIFE_VERSIONS
_MAX_BATCH = 65_536  # as many as two bytes tell apart
STAMP_BYTES = 10


class Request(NamedTuple):
    """A commit, as it is sent."""

    read_version: int
    mutations: list[Mutation]
    reads: list[Range]
    writes: list[Range]


class Committed(NamedTuple):
    """When a commit happened: its version, and its place among those that share it."""

    version: int
    batch: int

    @property
    def stamp(self) -> bytes:
        return self.version.to_bytes(8, "big") + self.batch.to_bytes(2, "big")


class Cluster:
    """One store that several clients open. Everything is done under its lock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.scene = Scene(self.clock)
        self.lock = self.scene.lock
        self.watches = Watches()
        self._store = Store()
        self._conflicts = ConflictSet()
        self._began = self.clock.monotonic()
        self._version = _FIRST_VERSION
        self._ahead = 0  # by which recoveries have moved versions
        self._jumps: list[tuple[int, int]] = []  # the first version after each, and how far
        self._batch = 0
        self._batch_open = False
        self._late: list[tuple[float, int, Request]] = []
        self._count = itertools.count()
        self._clients: list[Stats] = []
        self._untold: list[Callable[[], None]] = []
        self.answers_left: int | None = None  # requests before it stops to answer; None: always

    def recover(self, jump_s: float = 97.0) -> None:
        """Replace the processes that hand out versions, which moves versions ahead by about 97 s.
        Transactions that are under way are too old afterwards."""
        with self.lock:
            self._catch_up()
            jump = round(jump_s * VERSIONS_PER_SECOND)
            self._ahead += jump
            self._version += jump
            self._jumps.append((self._version, jump))
            self._batch_open = False

    def without_jumps(self, version: int) -> int:
        """What the version would be if there had been no recovery."""
        return version - sum(jump for after, jump in self._jumps if after <= version)

    def answers(self) -> bool:
        """Whether the next request is answered."""
        if self.answers_left:
            self.answers_left -= 1
            return True
        return self.answers_left is None

    @property
    def stats(self) -> Stats:
        """What all clients did together."""
        with self.lock:
            return Stats.sum(self._clients)

    def join(self, stats: Stats) -> None:
        """Count a client's work in."""
        with self.lock:
            self._clients.append(stats)

    def __len__(self) -> int:
        """How many keys take up memory, with those that were cleared lately."""
        return len(self._store)

    def history(self, key: bytes) -> int:
        """How many values of a key are kept."""
        return self._store.history(key)

    def read_version(self) -> int:
        """A version that has everything committed so far."""
        self._catch_up()
        self._batch_open = False
        return self._version

    def newest_version(self) -> int:
        """The same for one who will read nothing at it: others may still be committed with it."""
        self._catch_up()
        return self._version

    def close_batch(self) -> None:
        """Somebody knows the version of the last commit: no other may get it."""
        self._batch_open = False

    def get(self, key: bytes, version: int) -> bytes | None:
        self._check_readable(version)
        return self._store.get(key, version)

    def rows(
        self, begin: bytes, end: bytes, version: int, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        self._check_readable(version)
        return self._store.rows(begin, end, version, reverse=reverse)

    def _check_readable(self, version: int) -> None:
        self._catch_up()
        if version < self._version - LIFE_VERSIONS:
            raise FDBError(TOO_OLD)
        if version > max(self._version, self._clock_version()):
            raise FDBError(FUTURE_VERSION)
        if version >= self._version:
            self._version = version
            self._batch_open = False

    def _clock_version(self, at: float | None = None) -> int:
        elapsed = (self.clock.monotonic() if at is None else at) - self._began
        return _FIRST_VERSION + self._ahead + round(elapsed * VERSIONS_PER_SECOND)

    def _catch_up(self) -> None:
        """Do what the time has brought: versions pass, late commits arrive."""
        now = self.clock.monotonic()
        while self._late and self._late[0][0] <= now:
            due, _, request = heapq.heappop(self._late)
            with suppress(FDBError):
                self._commit(request, due)
        idle = (self._clock_version() - self._version) // IDLE_VERSIONS
        if idle > 0:
            self._version += idle * IDLE_VERSIONS
            self._batch_open = False

    def commit(self, request: Request) -> Committed:
        """Apply a transaction if nobody wrote to what it read, or raise."""
        self._catch_up()
        return self._commit(request)

    def commit_late(self, request: Request, delay_s: float) -> None:
        """The same after a while; nobody will be told."""
        due = self.clock.monotonic() + delay_s
        heapq.heappush(self._late, (due, next(self._count), request))

    def _commit(self, request: Request, at: float | None = None) -> Committed:
        version, batch = self._next(at)
        if request.read_version > version:
            raise FDBError(FUTURE_VERSION)
        if request.read_version < version - LIFE_VERSIONS:
            raise FDBError(TOO_OLD)
        if self._conflicts.written_since(request.reads, request.read_version):
            raise FDBError(NOT_COMMITTED)
        self._version, self._batch, self._batch_open = version, batch, True
        committed = Committed(version, batch)
        keys, stamped = self._apply(request.mutations, version, committed.stamp)
        self._conflicts.add([*request.writes, *stamped], version)
        self._store.prune(version - LIFE_VERSIONS)
        self._conflicts.prune(version - LIFE_VERSIONS)
        self._untold += self.watches.changed(keys, self._newest)
        return committed

    def _next(self, at: float | None) -> tuple[int, int]:
        """The version and place of the next commit. Commits that were sent before any of them was
        answered share a version, as on a cluster."""
        now = self._clock_version(at)
        if self._batch_open and now <= self._version and self._batch + 1 < _MAX_BATCH:
            return self._version, self._batch + 1
        return max(self._version + 1, now), 0

    def _apply(
        self, mutations: list[Mutation], version: int, stamp: bytes
    ) -> tuple[list[bytes], list[Range]]:
        """Write; which watched keys were touched, and where versionstamped keys came to lie."""
        touched: list[bytes] = []
        stamped: list[Range] = []
        watched = bool(self.watches)
        for mutation in mutations:
            kind, key, param = mutation
            if kind is Kind.CLEAR_RANGE:
                assert param is not None
                cleared = self._store.clear_range(key, param, version)
                touched.extend(cleared if watched else [])
                continue
            if kind is Kind.VERSIONSTAMPED_KEY:
                key, value = with_stamp(key, stamp), param
                stamped.append((key, key + b"\x00"))
            elif kind is Kind.VERSIONSTAMPED_VALUE:
                assert param is not None
                value = with_stamp(param, stamp)
            elif kind is Kind.SET:
                value = param
            else:
                value = applied(mutation, self._store.get(key, version))
            self._store.put(key, value, version)
            if watched:
                touched.append(key)
        return touched, stamped

    def _newest(self, key: bytes) -> bytes | None:
        return self._store.get(key, self._version)

    def watch(self, key: bytes, watch: Watch) -> None:
        """Wait for a key to change, if it has not already."""
        self.watches.add(key, watch)
        self._untold += self.watches.changed([key], self._newest)

    def will_tell(self, tell: Callable[[], None]) -> None:
        """Call back when the lock is free."""
        self._untold.append(tell)

    def tell(self) -> None:
        """Call back those whose watches fired. Not under the lock: they may do anything."""
        if self._untold:
            with self.lock:
                untold, self._untold = self._untold, []
            for tell in untold:
                tell()


def stamp_place(marked: bytes) -> int | None:
    """Where the versionstamp goes, said by the last four bytes; None if that is nonsense."""
    if len(marked) < 4:
        return None
    place = int.from_bytes(marked[-4:], "little", signed=True)
    fits = place >= 0 and place + STAMP_BYTES <= len(marked) - 4
    return place if fits else None


def with_stamp(marked: bytes, stamp: bytes) -> bytes:
    """The bytes with the versionstamp in its place, without the four that say where that is."""
    place = stamp_place(marked)
    assert place is not None  # it was checked when the mutation was made
    return marked[:place] + stamp + marked[place + STAMP_BYTES : -4]
