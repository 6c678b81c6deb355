"""Whose turn it is, without claiming."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

MOST_TURNS = 10_000


class Line:
    """A tenant, its turn, and how many of its jobs can start."""

    def __init__(self, name: str, turn: int, stride: int, left: int) -> None:
        self.name = name
        self.turn = turn
        self.stride = stride
        self.left = left

    def __lt__(self, other: Line) -> bool:
        return (self.turn, self.name) < (other.turn, other.name)


def is_among_first(mine: Line, ahead: int, others: Sequence[Line], served: int, count: int) -> bool:
    """Whether a job is among the first `count` that are taken, if `ahead` jobs of its own tenant
    come first. Looks no further than MOST_TURNS."""
    turns = [mine, *others]
    heapq.heapify(turns)
    for _ in range(min(count, MOST_TURNS)):
        line = turns[0]
        if line is mine:
            if not ahead:
                return True
            ahead -= 1
        served = max(line.turn, served + 1)
        line.turn, line.left = served + line.stride, line.left - 1
        if line.left:
            heapq.heapreplace(turns, line)
        else:
            heapq.heappop(turns)
    return False
