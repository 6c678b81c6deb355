"""A value for every key there could be, that changes at few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Generic, TypeVar

from tests.fdb_sim.ordered import Ordered

V = TypeVar("V")


class Steps(Generic[V]):
    """A step function over the byte strings: from each mark to the next, one value."""

    __slots__ = ("_everywhere", "_marks")

    def __init__(self, everywhere: V) -> None:
        self._everywhere = everywhere  # before the first mark
        self._marks: Ordered[V] | None = None  # made when there is one: most never have any

    def __len__(self) -> int:
        return 0 if self._marks is None else len(self._marks)

    def at(self, key: bytes) -> V:
        """The value at a key."""
        if self._marks is None:
            return self._everywhere
        mark = self._marks.floor(key)
        return self._everywhere if mark is None else self._marks[mark]

    def spans(
        self, begin: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes, V]]:
        """The stretches of one value between `begin` and `end`."""
        if begin >= end:
            return
        if self._marks is None:
            yield begin, end, self._everywhere
            return
        marks = [mark for mark in self._marks.between(begin, end) if mark != begin]
        pairs = list(pairwise([begin, *marks, end]))
        for start, stop in reversed(pairs) if reverse else pairs:
            yield start, stop, self.at(start)

    def any(self, begin: bytes, end: bytes, test: Callable[[V], bool]) -> bool:
        """Whether a value between `begin` and `end` passes the test."""
        if begin >= end:
            return False
        if test(self.at(begin)):
            return True
        marks = self._marks
        return marks is not None and any(test(marks[mark]) for mark in marks.between(begin, end))

    def paint(self, begin: bytes, end: bytes, value: V) -> None:
        """Have this value from `begin` up to but without `end`."""
        if begin >= end:
            return
        if self._marks is None:
            self._marks = Ordered()
        marks = self._marks
        after = self.at(end)
        for mark in list(marks.between(begin, end)):
            del marks[mark]
        if self.at(begin) != value:
            marks[begin] = value
        if after != value:
            marks[end] = after
        elif end in marks:
            del marks[end]

    def change(self, begin: bytes, end: bytes, how: Callable[[V], V]) -> None:
        """Have what `how` makes of the values from `begin` up to but without `end`."""
        for start, stop, value in list(self.spans(begin, end)):
            self.paint(start, stop, how(value))
