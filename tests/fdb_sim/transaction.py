"""Transactions, with the names of the official binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tenure.engines.foundationdb.tuple_layer import strinc
from tests.fdb_sim.atomic import Kind
from tests.fdb_sim.attempt import Attempt
from tests.fdb_sim.errors import FDBError
from tests.fdb_sim.futures import Future, Key, Value
from tests.fdb_sim.options import TransactionOptions
from tests.fdb_sim.reading import Found
from tests.fdb_sim.selectors import KeySelector, KeyValue, StreamingMode
from tests.fdb_sim.writes import KEYS_END


class AsKey(Protocol):
    """Something that stands for a key, such as a subspace."""

    def as_foundationdb_key(self) -> bytes: ...


class AsValue(Protocol):
    """Something that stands for a value."""

    def as_foundationdb_value(self) -> bytes: ...


KeyLike = bytes | AsKey | Key | Value
ValueLike = bytes | AsValue | Key | Value


def key_of(key: Any) -> bytes:
    """The bytes of a key."""
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key


def value_of(value: Any) -> bytes:
    """The bytes of a value."""
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value


class FDBRange:
    """The rows of a range. The first part is asked for at once, the others while iterating."""

    def __init__(
        self,
        tr: TransactionRead,
        begin: KeySelector,
        end: KeySelector,
        limit: int,
        reverse: bool,
        streaming_mode: int,
    ) -> None:
        self._tr = tr
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        self._mode = streaming_mode
        self._first = tr._get_range(begin, end, limit, streaming_mode, 1, reverse)

    def to_list(self) -> list[KeyValue]:
        """All of them."""
        mode = self._mode
        if mode == StreamingMode.iterator:
            mode = StreamingMode.exact if self._limit > 0 else StreamingMode.want_all
        return list(self._rows(mode))

    def __iter__(self) -> Iterator[KeyValue]:
        return self._rows(self._mode)

    def _rows(self, mode: int) -> Iterator[KeyValue]:
        begin, end, limit, iteration = self._begin, self._end, self._limit, 1
        found: Found = self._first.wait()
        while found.rows:
            for row in found.rows[:-1]:
                yield KeyValue(*row)
            last = KeyValue(*found.rows[-1])
            if not found.more or limit == len(found.rows):
                yield last
                return
            iteration += 1
            limit -= len(found.rows) if limit else 0
            if self._reverse:
                end = KeySelector.first_greater_or_equal(last.key)
            else:
                begin = KeySelector.first_greater_than(last.key)
            future = self._tr._get_range(begin, end, limit, mode, iteration, self._reverse)
            yield last
            found = future.wait()


class TransactionRead:
    """What can be read, with or without conflicts."""

    def __init__(self, attempt: Attempt, db: Any, snapshot: bool) -> None:
        self._attempt = attempt
        self.db = db
        self._is_snapshot = snapshot

    def get_read_version(self) -> Future[int]:
        """The version that everything is read at."""
        return self._attempt.read_version()

    def get(self, key: KeyLike) -> Value:
        """What a key holds."""
        return self._attempt.get(key_of(key), snapshot=self._is_snapshot)

    def get_key(self, key_selector: KeySelector) -> Key:
        """The key that a selector names."""
        return self._attempt.get_key(_resolved(key_selector), snapshot=self._is_snapshot)

    def _get_range(
        self,
        begin: KeySelector,
        end: KeySelector,
        limit: int,
        streaming_mode: int,
        iteration: int,
        reverse: bool,
    ) -> Future[Found]:
        return self._attempt.get_range(
            _resolved(begin),
            _resolved(end),
            limit=limit,
            mode=streaming_mode,
            iteration=iteration,
            reverse=bool(reverse),
            snapshot=self._is_snapshot,
        )

    def get_range(
        self,
        begin: KeyLike | KeySelector | None,
        end: KeyLike | KeySelector | None,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.iterator,
    ) -> FDBRange:
        """The rows from `begin` up to but without `end`."""
        first = _selector(b"" if begin is None else begin)
        last = _selector(KEYS_END if end is None else end)
        return FDBRange(self, first, last, limit, reverse, streaming_mode)

    def get_range_startswith(self, prefix: KeyLike, *args: Any, **kwargs: Any) -> FDBRange:
        """The rows whose keys begin with these bytes."""
        start = key_of(prefix)
        return self.get_range(start, strinc(start), *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.get_range(key.start, key.stop, reverse=key.step == -1)
        return self.get(key)


def _resolved(selector: KeySelector) -> KeySelector:
    return KeySelector(key_of(selector.key), bool(selector.or_equal), selector.offset)


def _selector(key: Any) -> KeySelector:
    if isinstance(key, KeySelector):
        return key
    return KeySelector.first_greater_or_equal(key)


def _atomic(kind: Kind) -> Callable[[Transaction, KeyLike, ValueLike], None]:
    def operation(self: Transaction, key: KeyLike, param: ValueLike) -> None:
        self._attempt.mutate(kind, key_of(key), value_of(param))

    return operation


class Transaction(TransactionRead):
    """Reads and writes that are committed together, or not at all."""

    def __init__(self, attempt: Attempt, db: Any) -> None:
        super().__init__(attempt, db, False)
        self.options = TransactionOptions(attempt.change_options)
        self.snapshot = TransactionRead(attempt, db, True)

    def set_read_version(self, version: int) -> None:
        """Read at this version."""
        self._attempt.set_read_version(version)

    def set(self, key: KeyLike, value: ValueLike) -> None:
        """Write a key."""
        self._attempt.mutate(Kind.SET, key_of(key), value_of(value))

    def clear(self, key: KeyLike | KeySelector) -> None:
        """Remove a key."""
        self._attempt.clear_key(self._key_or_selected(key))

    def clear_range(
        self, begin: KeyLike | KeySelector | None, end: KeyLike | KeySelector | None
    ) -> None:
        """Remove the keys from `begin` up to but without `end`."""
        first = b"" if begin is None else self._key_or_selected(begin)
        last = KEYS_END if end is None else self._key_or_selected(end)
        self._attempt.clear(first, last)

    def _key_or_selected(self, key: Any) -> bytes:
        return key_of(self.get_key(key) if isinstance(key, KeySelector) else key)

    def clear_range_startswith(self, prefix: KeyLike) -> None:
        """Remove the keys that begin with these bytes."""
        start = key_of(prefix)
        self.clear_range(start, strinc(start))

    add = _atomic(Kind.ADD)
    bit_and = _atomic(Kind.AND)
    bit_or = _atomic(Kind.OR)
    bit_xor = _atomic(Kind.XOR)
    max = _atomic(Kind.MAX)
    min = _atomic(Kind.MIN)
    byte_max = _atomic(Kind.BYTE_MAX)
    byte_min = _atomic(Kind.BYTE_MIN)
    append_if_fits = _atomic(Kind.APPEND_IF_FITS)
    compare_and_clear = _atomic(Kind.COMPARE_AND_CLEAR)
    set_versionstamped_key = _atomic(Kind.VERSIONSTAMPED_KEY)
    set_versionstamped_value = _atomic(Kind.VERSIONSTAMPED_VALUE)

    def watch(self, key: KeyLike) -> Future[None]:
        """A future that is ready when the key has changed, once this is committed."""
        return self._attempt.watch(key_of(key))

    def add_read_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Conflict with writes to this range."""
        self._attempt.add_conflict(key_of(begin), key_of(end), write=False)

    def add_read_conflict_key(self, key: KeyLike) -> None:
        """Conflict with writes to this key."""
        self.add_read_conflict_range(key_of(key), key_of(key) + b"\x00")

    def add_write_conflict_range(self, begin: KeyLike, end: KeyLike) -> None:
        """Make reads of this range conflict."""
        self._attempt.add_conflict(key_of(begin), key_of(end), write=True)

    def add_write_conflict_key(self, key: KeyLike) -> None:
        """Make reads of this key conflict."""
        self.add_write_conflict_range(key_of(key), key_of(key) + b"\x00")

    def commit(self) -> Future[None]:
        """Have it all happen. Nothing but `on_error` and `reset` may be called afterwards."""
        return self._attempt.commit()

    def get_committed_version(self) -> int:
        """The version of the commit; -1 of a transaction that wrote nothing."""
        return self._attempt.committed_version()

    def get_approximate_size(self) -> Future[int]:
        """How large it is so far, as the limit counts it."""
        return self._attempt.approximate_size()

    def get_versionstamp(self) -> Key:
        """The versionstamp that the commit will get. Ask before the commit."""
        return self._attempt.versionstamp()

    def on_error(self, error: FDBError | int | Exception) -> Future[None]:
        """Make ready for another try, or raise the error if there can be none."""
        if isinstance(error, FDBError):
            return self._attempt.on_error(error.code)
        if isinstance(error, int):
            return self._attempt.on_error(error)
        raise error

    def reset(self) -> None:
        """Be as a new transaction."""
        self._attempt.reset()

    def cancel(self) -> None:
        """Have every call answered with an error."""
        self._attempt.cancel()

    def __setitem__(self, key: KeyLike, value: ValueLike) -> None:
        self.set(key, value)

    def __delitem__(self, key: Any) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)
