"""Whose turn it is, without claiming."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

MOST_TURNS = 1_000  # that it is worth to look ahead


class Line:
    """A tenant, its turn, and how many of its jobs can start. If only some were counted, `more`
    counts all."""

    def __init__(
        self,
        name: str,
        turn: int,
        stride: int,
        startable: int,
        more: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.turn = turn
        self._stride = stride
        self._startable = startable
        self._more = more
        self._taken = 0

    def serve(self, served: int) -> int:
        """Take one job. Returns the place of this turn; `served` is that of the last one."""
        self._taken += 1
        place = max(self.turn, served + 1)
        self.turn = place + self._stride
        return place

    def is_empty(self) -> bool:
        """Whether no other job can start."""
        if self._taken >= self._startable and self._more is not None:
            self._startable, self._more = self._more(), None
        return self._taken >= self._startable

    def __lt__(self, other: Line) -> bool:
        return (self.turn, self.name) < (other.turn, other.name)


def is_among_first(mine: Line, ahead: int, others: Sequence[Line], served: int, count: int) -> bool:
    """Whether a job is among the first `count` that are taken, if `ahead` jobs of its own tenant
    come first."""
    turns = [mine, *others]
    heapq.heapify(turns)
    for _ in range(count):
        line = turns[0]
        if line is mine:
            if not ahead:
                return True
            ahead -= 1
        served = line.serve(served)
        if line.is_empty():
            heapq.heappop(turns)
        else:
            heapq.heapreplace(turns, line)
    return False
