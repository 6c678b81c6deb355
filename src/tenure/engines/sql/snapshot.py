"""What both databases provide for reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]


class Statements(Protocol):
    """Runs statements by name."""

    def one(self, name: str, *params: Any) -> Row | None: ...
    def all(self, name: str, *params: Any) -> Sequence[Row]: ...
    def named(self, name: str, params: dict[str, Any]) -> Sequence[Row]: ...


class StoreSnapshot(Protocol):
    """One snapshot of a store."""

    @property
    def db(self) -> Statements: ...

    def now(self) -> int:
        """The store's time."""

    def listed(self, values: Sequence[int] | Sequence[str]) -> Any:
        """Values as one parameter of a statement."""

    def news(self, queue: int) -> Sequence[Row]:
        """What is not in the books of a queue yet, by lane: lane, ready, leased, served, turn,
        last_turn."""
