"""A transaction's own writes, before they are committed.

What the client library of FoundationDB keeps for the same purpose decides much that a program can
see: what a read finds, which keys it may not read, which reads can conflict. So this keeps the same
facts: the mutations of each key, and for every other key whether it is cleared, whether it is in a
write conflict range, and whether it is unreadable, as a versionstamped key may come to lie there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.fdb_sim.atomic import INDEPENDENT, Kind, Mutation, folded, stacked
from tests.fdb_sim.ordered import Ordered
from tests.fdb_sim.steps import Steps

KEYS_END = b"\xff"  # where the keys of users end
ALL_KEYS_END = b"\xff\xff"

Range = tuple[bytes, bytes]

_STAMPED = frozenset({Kind.VERSIONSTAMPED_KEY, Kind.VERSIONSTAMPED_VALUE})


class Area(NamedTuple):
    """What holds for the keys of a range that were not written one by one."""

    cleared: bool = False
    conflict: bool = False
    unreadable: bool = False


_UNTOUCHED = Area()


class Written:
    """What holds for a key that was."""

    __slots__ = ("conflict", "stack", "unreadable")

    def __init__(self, stack: list[Mutation], conflict: bool, unreadable: bool) -> None:
        self.stack = stack
        self.conflict = conflict
        self.unreadable = unreadable


class Segment(NamedTuple):
    """One written key, or a range of others that have everything in common."""

    begin: bytes
    end: bytes
    stack: list[Mutation] | None
    cleared: bool
    conflict: bool
    unreadable: bool

    @property
    def depends(self) -> bool:
        """Whether what is read here depends on what is stored."""
        if self.stack is None:
            return not self.cleared
        return self.stack[0].kind not in INDEPENDENT

    def value(self, stored: bytes | None) -> bytes | None:
        """What a read of the written key finds."""
        assert self.stack is not None
        return folded(self.stack, stored)


class Writes:
    """The writes of one transaction."""

    def __init__(self) -> None:
        self._keys: Ordered[Written] = Ordered()
        self._areas: Steps[Area] = Steps(_UNTOUCHED)

    @property
    def empty(self) -> bool:
        return not len(self._keys) and not len(self._areas)

    def mutate(self, mutation: Mutation, *, conflict: bool) -> None:
        """Write one key."""
        kind, key, _ = mutation
        written = self._keys.get(key)
        area = self._areas.at(key)
        before = written if written is not None else area
        unreadable = before.unreadable or kind in _STAMPED
        if written is None:
            stack = [mutation]
            if area.cleared and kind not in INDEPENDENT:
                stack = stacked([Mutation(Kind.SET, key, None)], mutation)
        elif not before.unreadable and kind in (Kind.SET, Kind.VERSIONSTAMPED_VALUE):
            stack = [mutation]
        elif not unreadable:
            stack = stacked(written.stack, mutation)
        else:
            stack = [*written.stack, mutation]
        self._keys[key] = Written(stack, conflict or before.conflict, unreadable)

    def clear(self, begin: bytes, end: bytes, *, conflict: bool) -> None:
        """Clear a range; what was unreadable in it can be read again."""
        if not conflict:
            self._spread_conflicts(begin, end)
        self._forget(begin, end)

        def clear(area: Area) -> Area:
            return Area(True, conflict or area.conflict, False)

        self._areas.change(begin, end, clear)

    def add_conflict(self, begin: bytes, end: bytes) -> None:
        """Conflict with whoever reads here."""
        for key in self._keys.between(begin, end):
            self._keys[key].conflict = True
        self._areas.change(begin, end, lambda area: area._replace(conflict=True))

    def make_unreadable(self, begin: bytes, end: bytes) -> None:
        """Nothing is known of a range any more; take what was written there with `flush` before."""
        self._forget(begin, end)
        self._areas.paint(begin, end, Area(unreadable=True))

    def _forget(self, begin: bytes, end: bytes) -> None:
        for key in list(self._keys.between(begin, end)):
            del self._keys[key]

    def _spread_conflicts(self, begin: bytes, end: bytes) -> None:
        """Keep in the areas which single keys conflict, as the keys are about to be forgotten."""
        for key in self._keys.between(begin, end):
            conflict = self._keys[key].conflict
            after = key + b"\x00"
            self._areas.paint(key, after, self._areas.at(key)._replace(conflict=conflict))

    def at(self, key: bytes) -> Segment:
        """The segment that a key is in; of a range, only this key."""
        written = self._keys.get(key)
        area = self._areas.at(key)
        if written is None:
            return Segment(key, key + b"\x00", None, *area)
        return _segment(key, written, area)

    def segments(self, begin: bytes, end: bytes, *, reverse: bool = False) -> Iterator[Segment]:
        """Everything between two keys, cut at them."""
        if self.empty:  # as in most transactions when they read
            if begin < end:
                yield Segment(begin, end, None, *_UNTOUCHED)
            return
        for start, stop, area in self._areas.spans(begin, end, reverse=reverse):
            if reverse:
                yield from self._backward(start, stop, area)
            else:
                yield from self._forward(start, stop, area)

    def _forward(self, start: bytes, stop: bytes, area: Area) -> Iterator[Segment]:
        place = start
        for key in self._keys.between(start, stop):
            if place < key:
                yield Segment(place, key, None, *area)
            yield _segment(key, self._keys[key], area)
            place = key + b"\x00"
        if place < stop:
            yield Segment(place, stop, None, *area)

    def _backward(self, start: bytes, stop: bytes, area: Area) -> Iterator[Segment]:
        place = stop
        for key in self._keys.between(start, stop, reverse=True):
            after = key + b"\x00"
            if after < place:
                yield Segment(after, place, None, *area)
            yield _segment(key, self._keys[key], area)
            place = key
        if start < place:
            yield Segment(start, place, None, *area)

    def flush(self, begin: bytes, end: bytes) -> tuple[list[Mutation], list[Range]]:
        """The mutations and write conflict ranges of a range, as they are sent: the clears first,
        because a key can be both cleared and written."""
        clears: list[Range] = []
        conflicts: list[Range] = []
        mutations: list[Mutation] = []
        for segment in self.segments(begin, end):
            if segment.stack is not None:
                mutations.extend(segment.stack)
            elif segment.cleared:
                _append(clears, segment)
            if segment.conflict:
                _append(conflicts, segment)
        sent = [Mutation(Kind.CLEAR_RANGE, first, last) for first, last in clears]
        return sent + mutations, conflicts


def _segment(key: bytes, written: Written, area: Area) -> Segment:
    stack, conflict, unreadable = written.stack, written.conflict, written.unreadable
    return Segment(key, key + b"\x00", stack, area.cleared, conflict, unreadable)


def _append(ranges: list[Range], segment: Segment) -> None:
    if ranges and ranges[-1][1] == segment.begin:
        ranges[-1] = (ranges[-1][0], segment.end)
    else:
        ranges.append((segment.begin, segment.end))
