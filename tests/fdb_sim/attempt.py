"""One transaction from its first operation to its commit, and again after an error."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tests.fdb_sim import errors
from tests.fdb_sim.atomic import VALUE_LIMIT, Kind, Mutation
from tests.fdb_sim.client import Client
from tests.fdb_sim.cluster import STAMP_BYTES, Committed, Request, stamp_place, with_stamp
from tests.fdb_sim.committing import MUTATION_BYTES, RANGE_BYTES, merged, send
from tests.fdb_sim.errors import FDBError
from tests.fdb_sim.futures import CommitFuture, Future, Key, Life, Value, WatchFuture
from tests.fdb_sim.options import Kept, Lost
from tests.fdb_sim.reading import (
    Found,
    View,
    base_of,
    depending,
    depends_of_key,
    depends_of_range,
)
from tests.fdb_sim.selectors import KeySelector, limits_of
from tests.fdb_sim.stored import StoredAt
from tests.fdb_sim.watches import Watch
from tests.fdb_sim.writes import KEYS_END, Range, Writes

KEY_LIMIT = 10_000
_FIRST_BACKOFF_S = 0.01
_TOO_OLD_BACKOFF_S = 0.01

F = TypeVar("F", bound=Future[Any])


class Attempt:
    """What a transaction object stands for. All of it is done under the lock of the cluster."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._cluster = client.cluster
        self._scene = client.cluster.scene
        self.life = Life()
        self._pending: dict[int, Future[Any]] = {}  # by id: to compare two answers is to wait
        self._start_over()
        self._stored = StoredAt(client, self)

    def __del__(self) -> None:
        if self._pending:
            with self._cluster.lock:
                self._end(errors.CANCELLED)
            self._cluster.tell()
        self.life.error = self.life.error or errors.CANCELLED

    def _start_over(self) -> None:
        """Forget everything, as a new transaction."""
        self._retries = 0
        self._backoff_s = _FIRST_BACKOFF_S
        self._created_at = self._cluster.clock.monotonic()
        self.kept = replace(self.client.options.kept)
        self._try_again()

    def _try_again(self) -> None:
        """Forget what was read and written."""
        self._end(errors.CANCELLED)
        self.life = Life()
        self._lost = Lost(snapshot_ryw=self.client.options.snapshot_ryw)
        self._writes = Writes()
        self._sent: list[Mutation] = []  # before what is in `_writes`
        self._sent_conflicts: list[Range] = []
        self._reads: dict[Range, None] = {}
        self._watches: list[_OwnWatch] = []
        self._stamps: list[Key] = []
        self._read_version: int | None = None
        self._refused: int | None = None  # the error of a write, which the next call answers with
        self._failed: int | None = None  # the error of a read, which the commit answers with
        self._commit_started = False
        self._committed: Committed | None = None
        self._commit_future: CommitFuture | None = None
        self.size = 0

    def _end(self, error: int) -> None:
        """Answer those who wait with an error."""
        if self.life.error is None:
            self.life.error = error
        pending, self._pending = self._pending, {}
        for future in pending.values():
            self._cluster.will_tell(future.settle(error=self.life.error))

    def die(self, error: int) -> None:
        """Answer everything from now on with an error, until the transaction is reset."""
        if self.life.error is None:
            self._end(error)

    def _deadline(self) -> float | None:
        if not self.kept.timeout_ms:
            return None
        return self._created_at + self.kept.timeout_ms / 1000

    def _check_time(self) -> None:
        deadline = self._deadline()
        if deadline is not None and self._cluster.clock.monotonic() >= deadline:
            self.die(errors.TIMED_OUT)

    def _check_alive(self) -> None:
        self._check_time()
        if self.life.error is not None:
            raise FDBError(self.life.error)

    def _check_refused(self) -> None:
        if self._refused is not None:
            raise FDBError(self._refused)

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise FDBError(self._failed)

    def _check_not_committing(self) -> None:
        if self._commit_started:
            self.die(errors.USED_DURING_COMMIT)
            raise FDBError(errors.USED_DURING_COMMIT)

    def _answer(self, future: F, ask: Callable[[], Any]) -> F:
        """Put what `ask` finds or raises into a future."""
        with self._cluster.lock:
            value, error = None, None
            if not self._cluster.answers():
                return self._time_out(future)
            try:
                self._check_refused()
                value = ask()
            except FDBError as raised:
                error = raised.code
            delay_s = self.client.dice.delay_s()
            deadline = self._deadline()
            if delay_s and deadline is not None:
                left = deadline - self._cluster.clock.monotonic()
                if left < delay_s and error is None:
                    self.die(errors.TIMED_OUT)
                    error, delay_s = errors.TIMED_OUT, max(left, 0.0)
            future.settle(value, error=error, delay_s=delay_s)
        self._cluster.tell()
        return future

    def _time_out(self, future: F) -> F:
        """There is no answer before the timeout."""
        deadline = self._deadline()
        if deadline is None:
            raise AssertionError("a transaction without a timeout waits for ever")
        left = max(0.0, deadline - self._cluster.clock.monotonic())
        future.settle(error=errors.TIMED_OUT, delay_s=left)
        return future

    def _read(self, future: F, ask: Callable[[], Any], *keys: bytes) -> F:
        """The same for a read of legal keys: an error of it will be that of the commit."""

        def read() -> Any:
            self._check_not_committing()
            self._check_alive()
            if any(key > KEYS_END for key in keys):
                raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
            try:
                return ask()
            except FDBError as raised:
                self._failed = self._failed or raised.code
                raise

        return self._answer(future, read)

    def version(self) -> int:
        """The read version, taken when it is needed first."""
        if self._read_version is None:
            self._read_version = self._cluster.read_version()
            self.client.stats.read_versions += 1
        return self._read_version

    def _commit_version(self) -> int:
        """The same for the commit. One that depends on nothing takes whatever is the newest, and so
        can share its version with others that are under way."""
        if self._read_version is None and not self._reads:
            self.client.stats.read_versions += 1
            return self._cluster.newest_version()
        return self.version()

    def read_version(self) -> Future[int]:
        def ask() -> int:
            self._check_alive()
            return self.version()

        return self._answer(Future(self._scene, self.life), ask)

    def set_read_version(self, version: int) -> None:
        def write() -> None:
            if self._read_version is not None:
                raise FDBError(errors.READ_VERSION_ALREADY_SET)
            if version <= 0:
                raise FDBError(errors.VERSION_INVALID)
            self._read_version = version

        self._write(write)

    def _view(self, snapshot: bool) -> View:
        blind = self._lost.ryw_disabled or (snapshot and self._lost.snapshot_ryw <= 0)
        return View(self._stored, Writes() if blind else self._writes)

    def _depend(self, begin: bytes, end: bytes) -> None:
        """Conflict with whoever writes here, but where own writes hide what is stored."""
        for part in depending(self._writes.segments(begin, min(end, KEYS_END))):
            self._reads[part] = None
            self.size += len(begin) + len(end) + RANGE_BYTES

    def get(self, key: bytes, *, snapshot: bool) -> Value:
        def ask() -> bytes | None:
            if len(key) > KEY_LIMIT:
                return None  # there can be no such key
            value = self._view(snapshot).get(key)
            if not snapshot:
                self._depend(key, key + b"\x00")
            return value

        return self._read(Value(self._scene, self.life), ask, key + b"\x00")

    def get_key(self, selector: KeySelector, *, snapshot: bool) -> Key:
        def ask() -> bytes:
            found = self._view(snapshot).get_key(selector)
            if not snapshot:
                self._depend(*depends_of_key(selector, found))
            return found

        return self._read(Key(self._scene, self.life), ask, selector.key)

    def get_range(
        self,
        begin: KeySelector,
        end: KeySelector,
        *,
        limit: int,
        mode: int,
        iteration: int,
        reverse: bool,
        snapshot: bool,
    ) -> Future[Found]:
        future: Future[Found] = Future(self._scene, self.life)
        try:
            limits = limits_of(limit, mode, iteration)
        except FDBError as raised:
            future.settle(error=raised.code)
            return future

        def ask() -> Found:
            first = KeySelector(base_of(begin), False, begin.offset)
            last = KeySelector(base_of(end), False, end.offset)
            if first.offset >= last.offset and first.key >= last.key:
                return Found([], False)
            found = self._view(snapshot).get_range(first, last, limits, reverse=reverse)
            if not snapshot:
                self._depend(*depends_of_range(first, last, found, reverse))
            return found

        return self._read(future, ask, begin.key, end.key)

    def _write(self, write: Callable[[], None]) -> None:
        """Do something that has no answer; if it cannot be done, the next call will say so."""
        with self._cluster.lock:
            try:
                write()
            except FDBError as raised:
                if self._refused is None:
                    self._refused = raised.code
        self._cluster.tell()

    def _takes_conflict(self) -> bool:
        off, self._lost.no_write_conflict = self._lost.no_write_conflict, False
        return not off

    def mutate(self, kind: Kind, key: bytes, param: bytes) -> None:
        """Set a key, or have an atomic operation done."""

        def write() -> None:
            conflict = self._takes_conflict()
            self._check_not_committing()
            if key >= KEYS_END:
                raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
            if len(key) > KEY_LIMIT:
                raise FDBError(errors.KEY_TOO_LARGE)
            if len(param) > VALUE_LIMIT:
                raise FDBError(errors.VALUE_TOO_LARGE)
            if kind is Kind.VERSIONSTAMPED_VALUE and stamp_place(param) is None:
                raise FDBError(errors.INVALID_OPERATION)
            if kind is Kind.VERSIONSTAMPED_KEY:
                self._set_versionstamped_key(key, param)
                return
            self.size += len(key) + len(param) + MUTATION_BYTES
            self.size += (RANGE_BYTES + 2 * len(key) + 1) if conflict else 0
            self._mutate(Mutation(kind, key, param), conflict)

        self._write(write)

    def _mutate(self, mutation: Mutation, conflict: bool) -> None:
        if self._lost.ryw_disabled:
            self._sent.append(mutation)
            if conflict:
                self._sent_conflicts.append((mutation.key, mutation.key + b"\x00"))
            return
        self._writes.mutate(mutation, conflict=conflict)
        known = mutation.kind is Kind.SET
        self._own_change(mutation.key, mutation.key + b"\x00", mutation.param, known)

    def _set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        """Nobody knows yet where the key will be, so all the keys that it could be cannot be read;
        the cluster adds the conflict with those who read the one that it comes to be."""
        place = stamp_place(key)
        if place is None:
            raise FDBError(errors.INVALID_OPERATION)
        version = self._read_version or 0
        lowest = version.to_bytes(8, "big") + b"\x00\x00"
        begin = with_stamp(key, lowest)
        end = min(with_stamp(key, b"\xff" * STAMP_BYTES) + b"\x00", KEYS_END)
        self.size += len(key) + len(value) + MUTATION_BYTES
        marked = key[:place] + lowest + key[place + STAMP_BYTES :]
        mutation = Mutation(Kind.VERSIONSTAMPED_KEY, marked, value)
        if not self._lost.ryw_disabled:
            self._send(begin, end)
            self._writes.make_unreadable(begin, end)
        self._mutate(mutation, conflict=False)

    def _send(self, begin: bytes, end: bytes) -> None:
        mutations, conflicts = self._writes.flush(begin, end)
        self._sent += mutations
        self._sent_conflicts += conflicts

    def clear(self, begin: bytes, end: bytes) -> None:
        """Clear a range."""

        def write() -> None:
            conflict = self._takes_conflict()
            if begin > end:
                raise FDBError(errors.INVERTED_RANGE)
            self._check_not_committing()
            if end > KEYS_END:
                raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
            length = len(begin) + len(end)
            self.size += length + MUTATION_BYTES + ((RANGE_BYTES + length) if conflict else 0)
            first, last = begin[: KEY_LIMIT + 1], end[: KEY_LIMIT + 1]
            if first >= last:
                return
            if self._lost.ryw_disabled:
                self._sent.append(Mutation(Kind.CLEAR_RANGE, first, last))
                self._sent_conflicts += [(first, last)] if conflict else []
                return
            self._writes.clear(first, last, conflict=conflict)
            self._own_change(first, last, None, True)

        self._write(write)

    def clear_key(self, key: bytes) -> None:
        """Clear one key."""

        def check() -> None:
            if key >= KEYS_END:
                raise FDBError(errors.OUTSIDE_LEGAL_RANGE)

        self._write(check)
        if key < KEYS_END and len(key) <= KEY_LIMIT:
            self.clear(key, key + b"\x00")

    def add_conflict(self, begin: bytes, end: bytes, *, write: bool) -> None:
        """Have a conflict range besides those that reads and writes make."""
        if begin > end:
            raise FDBError(errors.INVERTED_RANGE)

        def add() -> None:
            self._check_not_committing()
            if end > KEYS_END:
                raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
            first, last = begin[: KEY_LIMIT + 1], end[: KEY_LIMIT + 1]
            if first >= last:
                return
            if not write:
                self._depend(first, last)
                return
            self.size += len(first) + len(last) + RANGE_BYTES
            if self._lost.ryw_disabled:
                self._sent_conflicts.append((first, last))
            else:
                self._writes.add_conflict(first, last)

        self._write(add)

    def change_options(self, change: Callable[[Kept, Lost], None]) -> None:
        def write() -> None:
            before = self._lost.ryw_disabled
            change(self.kept, self._lost)
            if self._lost.ryw_disabled and not before and not self._untouched():
                self._lost.ryw_disabled = False
                raise FDBError(errors.INVALID_OPERATION)
            self._check_time()

        self._write(write)

    def _untouched(self) -> bool:
        return self._writes.empty and not self._reads and not self._sent

    def watch(self, key: bytes) -> WatchFuture:
        """Be told when a key has another value than this transaction sees, once it is committed."""
        future = WatchFuture(self._scene, self.life)

        def ask() -> None:
            self._check_watch(key)
            value = self._view(False).get(key)
            self._depend(key, key + b"\x00")
            self._watches.append(_OwnWatch(key, value, future))
            self.client.watches.add(future)
            self.client.stats.watches_set += 1

        return self._promise(future, ask)

    def _promise(self, future: F, ask: Callable[[], None]) -> F:
        """Ask for what the commit will answer."""
        with self._cluster.lock:
            try:
                self._check_refused()
                self._check_not_committing()
                self._check_alive()
                ask()
                self._pending[id(future)] = future
            except FDBError as raised:
                future.settle(error=raised.code)
        self._cluster.tell()
        return future

    def _check_watch(self, key: bytes) -> None:
        if self._lost.ryw_disabled:
            raise FDBError(errors.WATCHES_DISABLED)
        if key >= KEYS_END:
            raise FDBError(errors.OUTSIDE_LEGAL_RANGE)
        if len(key) > KEY_LIMIT:
            raise FDBError(errors.KEY_TOO_LARGE)
        if not self.client.may_watch():
            raise FDBError(errors.TOO_MANY_WATCHES)

    def _own_change(self, begin: bytes, end: bytes, value: bytes | None, known: bool) -> None:
        """A watch fires for its own transaction's writes, too, without waiting for the commit."""
        for watch in list(self._watches):
            if begin <= watch.key < end and (not known or watch.value != value):
                self._watches.remove(watch)
                self._pending.pop(id(watch.future), None)
                watch.future.committed = True
                self.client.stats.watches_fired += 1
                self._cluster.will_tell(watch.future.settle())

    def _start_watches(self) -> None:
        stats = self.client.stats

        def fired() -> None:
            stats.watches_fired += 1

        for watch in self._watches:
            watch.future.committed = True
            self._pending.pop(id(watch.future), None)
            self._cluster.watch(watch.key, Watch(watch.value, weakref.ref(watch.future), fired))
        self._watches = []

    def _drop_watches(self, error: int) -> None:
        for watch in self._watches:
            self._pending.pop(id(watch.future), None)
            self._cluster.will_tell(watch.future.settle(error=error))
        self._watches = []

    def versionstamp(self) -> Key:
        """The versionstamp that the commit will get."""
        future = Key(self._scene, self.life)
        return self._promise(future, lambda: self._stamps.append(future))

    def approximate_size(self) -> Future[int]:
        return self._answer(Future(self._scene, self.life), lambda: self.size)

    def committed_version(self) -> int:
        """The version of the commit, -1 if there was none or it is not known yet."""
        with self._cluster.lock:
            if self._committed is None or self._commit_future is None:
                return -1
            return self._committed.version if self._commit_future.is_ready() else -1

    def commit(self) -> CommitFuture:
        """Have the writes applied, all or none."""
        future = CommitFuture(self._scene, self.life, self._cluster.close_batch)

        def ask() -> None:
            self._check_not_committing()
            self._check_alive()
            self._commit_started = True
            self._commit_future = future
            try:
                self._check_failed()
                self._send(b"", KEYS_END)
                self._commit()
            except FDBError as raised:
                self._drop_watches(raised.code)
                raise

        return self._answer(future, ask)

    def _commit(self) -> None:
        stats = self.client.stats
        if not self._sent and not self._sent_conflicts:
            stats.commits_read_only += 1
            self._settle_stamps(error=errors.NO_COMMIT_VERSION)
            self._start_watches()
            return
        reads = merged(self._reads)
        request = Request(self._commit_version(), self._sent, reads, self._sent_conflicts)
        try:
            self._committed = send(self.client, request, self.kept)
        except FDBError as raised:
            if raised.code == errors.TIMED_OUT:
                self.die(errors.TIMED_OUT)
            self._settle_stamps(error=errors.NO_VALID_VERSION)
            raise
        self._settle_stamps(self._committed.stamp)
        self._start_watches()

    def _settle_stamps(self, stamp: bytes | None = None, *, error: int | None = None) -> None:
        for future in self._stamps:
            self._pending.pop(id(future), None)
            self._cluster.will_tell(future.settle(stamp, error=error))
        self._stamps = []

    def on_error(self, code: int) -> Future[None]:
        """Make ready for another try after a while, or say that there is none."""
        with self._cluster.lock:
            error, delay_s = self._retry(code)
            future: Future[None] = Future(self._scene, Life())
            future.settle(error=error, delay_s=delay_s)
        self._cluster.tell()
        return future

    def _retry(self, code: int) -> tuple[int | None, float]:
        self._check_time()
        if self.life.error is not None:
            return self.life.error, 0.0
        used_up = 0 <= self.kept.retry_limit <= self._retries
        self._retries += 1
        retryable = errors.MAYBE_COMMITTED | errors.RETRYABLE_NOT_COMMITTED
        if used_up or code not in retryable:
            self.die(errors.CANCELLED)
            return (errors.INVALID_OPERATION if code == 0 else code), 0.0
        longest = self.kept.max_retry_delay_ms / 1000
        if code in (errors.TOO_OLD, errors.FUTURE_VERSION):
            delay_s = min(_TOO_OLD_BACKOFF_S, longest)
        else:
            delay_s = self.client.dice.backoff(min(self._backoff_s, longest))
            self._backoff_s = min(2 * self._backoff_s, longest)
        self._try_again()
        return None, delay_s

    def reset(self) -> None:
        """Be as a new transaction."""
        with self._cluster.lock:
            self._start_over()
        self._cluster.tell()

    def cancel(self) -> None:
        """Answer everything with an error from now on."""
        with self._cluster.lock:
            self.die(errors.CANCELLED)
        self._cluster.tell()


class _OwnWatch:
    """A watch whose transaction is not committed."""

    __slots__ = ("future", "key", "value")

    def __init__(self, key: bytes, value: bytes | None, future: WatchFuture) -> None:
        self.key = key
        self.value = value
        self.future = future
