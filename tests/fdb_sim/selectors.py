"""Names of places in the order of keys, and what is found there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.fdb_sim.errors import (
    EXACT_WITHOUT_LIMIT,
    INVALID_OPERATION,
    RANGE_LIMITS_INVALID,
    FDBError,
)


class KeySelector:
    """A key found by its place: so many keys after the last one below `key`."""

    def __init__(self, key: Any, or_equal: bool, offset: int) -> None:
        self.key = key
        self.or_equal = or_equal
        self.offset = offset

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    @classmethod
    def last_less_than(cls, key: Any) -> KeySelector:
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: Any) -> KeySelector:
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: Any) -> KeySelector:
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: Any) -> KeySelector:
        return cls(key, False, 1)

    def __repr__(self) -> str:
        return f"KeySelector({self.key!r}, {self.or_equal!r}, {self.offset!r})"


class KeyValue:
    """A row."""

    __slots__ = ("key", "value")

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.value!r}"

    def __iter__(self) -> Iterator[bytes]:
        return iter((self.key, self.value))


class StreamingMode:
    """How much of a range comes at a time."""

    want_all = -2
    iterator = -1
    exact = 0
    small = 1
    medium = 2
    large = 3
    serial = 4


_ITERATOR_BYTES = (4096, 6144, 9216, 13824, 20736, 31104, 46656, 69984, 80000, 120000)
_MODE_BYTES = {
    StreamingMode.small: 256,
    StreamingMode.medium: 1000,
    StreamingMode.large: 4096,
    StreamingMode.serial: 120_000,
    StreamingMode.want_all: 120_000,
}


class Limits(NamedTuple):
    """When a range read stops; None is never."""

    rows: int | None
    bytes: int | None


def limits_of(limit: int, mode: int, iteration: int) -> Limits:
    """The limits of one request for a part of a range."""
    if limit < 0:
        raise FDBError(RANGE_LIMITS_INVALID)
    rows = limit or None
    if mode == StreamingMode.exact:
        if rows is None:
            raise FDBError(EXACT_WITHOUT_LIMIT)
        return Limits(rows, None)
    if mode == StreamingMode.iterator:
        return Limits(rows, _ITERATOR_BYTES[min(iteration, len(_ITERATOR_BYTES)) - 1])
    if mode not in _MODE_BYTES:
        raise FDBError(INVALID_OPERATION)
    return Limits(rows, _MODE_BYTES[mode])
