"""Counting equal values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def tally(values: Sequence[T]) -> dict[T, int]:
    """How often each value occurs. Fast if they are all the same, as the queues or lanes of most
    batches are."""
    if values and values.count(values[0]) == len(values):
        return {values[0]: len(values)}
    return Counter(values)
