"""Reads of what is stored with a transaction's own writes over it.

Also which keys a read depends on: a write to one of them by another makes the reader conflict. The
rules are those of the real client, to the byte: a range read that stopped at its limit depends on
no more than it returned, own writes that do not look at what is stored depend on nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tests.fdb_sim.errors import UNREADABLE, FDBError
from tests.fdb_sim.selectors import KeySelector, Limits
from tests.fdb_sim.writes import KEYS_END, Range, Segment, Writes

Row = tuple[bytes, bytes]

_ROW_BYTES = 8  # what a row counts besides its key and value


class Snapshot(Protocol):
    """What is stored, at one version."""

    def get(self, key: bytes) -> bytes | None: ...

    def rows(self, begin: bytes, end: bytes, *, reverse: bool = False) -> Iterator[Row]: ...


class Place(NamedTuple):
    """What a selector comes to: the first key that is not before `key`."""

    key: bytes
    at_begin: bool = False
    at_end: bool = False


class Found(NamedTuple):
    """A part of a range. `more`: it ended at a limit."""

    rows: list[Row]
    more: bool
    at_begin: bool = False
    at_end: bool = False


class View:
    """What a transaction sees."""

    def __init__(self, snapshot: Snapshot, writes: Writes) -> None:
        self._snapshot = snapshot
        self._writes = writes

    def get(self, key: bytes) -> bytes | None:
        segment = self._writes.at(key)
        if segment.unreadable:
            raise FDBError(UNREADABLE)
        if segment.stack is None:
            return None if segment.cleared else self._snapshot.get(key)
        return segment.value(self._snapshot.get(key) if segment.depends else None)

    def get_key(self, selector: KeySelector) -> bytes:
        """The key that a selector names, or an end of the keys if it lies beyond."""
        if selector.offset > 0:
            place = self._resolve(selector)
            for key, _ in _present(self._walk(place.key, KEYS_END)):
                return key
            return KEYS_END
        place = self._resolve(selector + 1)
        for key, _ in _present(self._walk(b"", place.key, reverse=True)):
            return key
        return b""

    def get_range(
        self, begin: KeySelector, end: KeySelector, limits: Limits, *, reverse: bool
    ) -> Found:
        """The rows between two selectors."""
        first, last = self._resolve(begin), self._resolve(end)
        if first.key >= last.key:
            if begin.offset >= end.offset:
                return Found([], False)
            return Found([], False, first.at_begin or last.at_begin, first.at_end or last.at_end)
        rows: list[Row] = []
        room = limits.bytes
        more = False
        for row in _present(self._walk(first.key, last.key, reverse=reverse)):
            rows.append(row)
            if room is not None:
                room -= _ROW_BYTES + len(row[0]) + len(row[1])
            if len(rows) == limits.rows or (room is not None and room <= 0):
                more = True
                break
        at_begin, at_end = first.at_begin or last.at_begin, first.at_end or last.at_end
        if reverse:
            return Found(rows, more, at_begin and not more, at_end)
        return Found(rows, more, at_begin, at_end and not more)

    def _walk(
        self, begin: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """The keys in order. One that an own operation has removed comes too, with no value."""
        for segment in self._writes.segments(begin, end, reverse=reverse):
            if segment.unreadable:
                raise FDBError(UNREADABLE)
            if segment.stack is not None:
                stored = self._snapshot.get(segment.begin) if segment.depends else None
                yield segment.begin, segment.value(stored)
            elif not segment.cleared:
                yield from self._snapshot.rows(segment.begin, segment.end, reverse=reverse)

    def _resolve(self, selector: KeySelector) -> Place:
        """Walk the offset away. A key that an own operation has removed counts as a step, in the
        real client too."""
        key, offset = base_of(selector), selector.offset
        if offset > 1:
            for found, _ in self._walk(key, KEYS_END):
                offset -= 1
                if offset == 1:
                    return Place(found + b"\x00")
            return Place(KEYS_END, at_end=True)
        if offset < 1:
            for found, _ in self._walk(b"", key, reverse=True):
                offset += 1
                if offset == 1:
                    return Place(found)
            return Place(b"", at_begin=True)
        return Place(key)


def _present(rows: Iterator[tuple[bytes, bytes | None]]) -> Iterator[Row]:
    for key, value in rows:
        if value is not None:
            yield key, value


def base_of(selector: KeySelector) -> bytes:
    """The key that a selector counts from."""
    key: bytes = selector.key
    return key + b"\x00" if selector.or_equal else key


def depends_of_key(selector: KeySelector, found: bytes) -> Range:
    """The keys that the answer of `get_key` depends on."""
    if selector.offset <= 0:
        return found, base_of(selector)
    return base_of(selector), found + b"\x00"


def depends_of_range(begin: KeySelector, end: KeySelector, found: Found, reverse: bool) -> Range:
    """The keys that the answer of `get_range` depends on."""
    first, last = base_of(begin), base_of(end)
    low, high = min(first, last), max(first, last)
    if first < last and found.more:
        if reverse and begin.offset <= 1:
            low = last
        elif not reverse and end.offset > 0:
            high = first
    if found.at_begin and begin.offset <= 0:
        low = b""
    if found.at_end and end.offset > 0:
        high = KEYS_END
    if not found.rows:
        return low, high
    lowest, highest = found.rows[0][0], found.rows[-1][0]
    if reverse:
        lowest, highest = highest, lowest
    if reverse or begin.offset <= 0:
        low = min(low, lowest)
    if high <= highest and (not reverse or end.offset > 0):
        high = highest + b"\x00"
    return low, high


def depending(segments: Iterator[Segment]) -> Iterator[Range]:
    """Where what is read depends on what is stored."""
    for segment in segments:
        if segment.depends:
            yield segment.begin, segment.end
