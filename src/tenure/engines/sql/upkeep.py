"""The steps of maintenance that are the same in both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from tenure.core import transaction, upkeep
from tenure.core.upkeep import Swept
from tenure.engines.sql.rows import CODES
from tenure.model.job import State


class Transaction(transaction.Transaction[Any], Protocol):
    """What both transactions provide besides."""

    def in_state(self, queue: str, code: int, until: int, limit: int) -> Sequence[Any]:
        """The jobs of a queue whose time in this state is at or before `until`."""


T = TypeVar("T", bound=Transaction)


class InOneTransaction(Generic[T]):
    """Runs the steps of maintenance in one transaction."""

    def __init__(self, tx: T) -> None:
        self._tx = tx

    def sweep(self, queue: str, limit: int) -> Swept:
        return upkeep.sweep(self._tx, queue, Swept(limit, limit, limit))

    def purge(self, queue: str, state: State, keep_ms: int, limit: int) -> int:
        (code,) = CODES[state]
        return upkeep.purge(self._tx, self._tx.in_state(queue, code, self._tx.now - keep_ms, limit))
