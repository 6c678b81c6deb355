"""Large changes of one token, which leave time for those of others."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any

from tenure.model import ops
from tenure.model.ops import Op
from tenure.model.queries import Query
from tenure.queue import Layer, Store, Wanted, Within
from tenure.server.traffic import Spacing

PART = 1_000  # simple operations that are committed together
LARGE = 500  # simple operations, from which on a change is large


def weight_of(op: Op) -> float:
    """The cost of an operation, as a number of simple ones."""
    if isinstance(op, ops.Once):
        return sum(map(weight_of, op.ops))
    if isinstance(op, ops.Reconcile):  # counts all jobs
        return PART
    if isinstance(op, ops.SetLimit | ops.ClearLimit | ops.Pause | ops.Resume):  # locks a queue
        return PART / 50
    return 1 + len(op.adds) + len(getattr(op, "ids", ())) / 4


class Spaced(Layer):
    """The store of a token beside others, with large changes spaced out."""

    def __init__(self, inner: Store, spacing: Spacing) -> None:
        super().__init__(inner)
        self._spacing = spacing

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        if isinstance(wanted, Query | Within) or sum(map(weight_of, wanted)) <= LARGE:
            return self._inner.ado(wanted)
        return self._spacing.apply(partial(self._inner.ado, wanted))
