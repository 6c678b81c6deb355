"""A map in the order of its keys, good for millions of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

V = TypeVar("V")


class Ordered(Generic[V]):
    """A `SortedDict` of byte strings, with types."""

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map = SortedDict()

    def get(self, key: bytes) -> V | None:
        value: V | None = self._map.get(key)
        return value

    def __getitem__(self, key: bytes) -> V:
        value: V = self._map[key]
        return value

    def __setitem__(self, key: bytes, value: V) -> None:
        self._map[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._map[key]

    def __contains__(self, key: bytes) -> bool:
        return key in self._map

    def __len__(self) -> int:
        return len(self._map)

    def between(self, begin: bytes, end: bytes, *, reverse: bool = False) -> Iterator[bytes]:
        """The keys from `begin` up to but without `end`. Do not change the map meanwhile."""
        found: Iterator[bytes] = self._map.irange(begin, end, (True, False), reverse)
        return found

    def floor(self, key: bytes) -> bytes | None:
        """The last key that is not after `key`."""
        found: bytes | None = next(self._map.irange(None, key, (True, True), True), None)
        return found
