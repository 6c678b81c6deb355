"""A line for each part of a store, so that a part that is slow delays only its own operations.

What waits is bounded for all parts together. A part may have as much waiting as is still free: if
one is stuck, it fills half of the room, if two are, a third each, and the others always have some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from tenure.engines import PartOf
from tenure.model.ops import Op
from tenure.queue.commit_line import CommitLine, HasWeight


class InPart(HasWeight, Protocol):
    batch: Sequence[Op]
    bytes: int
    part: int | None


T = TypeVar("T", bound=InPart)


class PartLines(Generic[T]):
    """The lines of the parts, which are made when they are needed."""

    def __init__(self, part_of: PartOf, make: Callable[[], CommitLine[T]]) -> None:
        self.part_of = part_of
        self._make = make
        self._lines: dict[int, CommitLine[T]] = {}
        self.waiting: Counter[int | None] = Counter()  # operations; None: of several parts
        self._bytes: Counter[int | None] = Counter()

    def of(self, part: int) -> CommitLine[T]:
        """Can be called from any thread."""
        return self._lines.get(part) or self._lines.setdefault(part, self._make())

    def count(self, tickets: Sequence[T], sign: int) -> None:
        """Note that tickets wait, or no longer do. Must not be called concurrently."""
        for ticket in tickets:
            self.waiting[ticket.part] += sign * len(ticket.batch)
            self._bytes[ticket.part] += sign * ticket.bytes

    def is_full(self, part: int | None, free: int, free_bytes: int) -> bool:
        """Whether a part has more waiting than its share. free: what all of them may still add."""
        return self.waiting[part] >= free or self._bytes[part] >= free_bytes

    def end(self) -> None:
        """Handle the remaining tickets and stop the threads."""
        for line in list(self._lines.values()):
            line.end()
