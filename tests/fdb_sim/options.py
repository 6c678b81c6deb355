"""What can be set on a transaction, and on all of a database.

Only what changes an answer of the simulation; it has no hints to a real cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fdb_sim.errors import INVALID_OPTION_VALUE, FDBError

TRANSACTION_LIMIT = 10_000_000
_MAX_INT = 2**31 - 1


@dataclass
class Kept:
    """What a retry keeps, and `reset` does not."""

    timeout_ms: int = 0
    retry_limit: int = -1
    max_retry_delay_ms: int = 1_000
    size_limit: int = TRANSACTION_LIMIT


@dataclass
class Lost:
    """What a retry loses: set it in every try."""

    snapshot_ryw: int = 1
    ryw_disabled: bool = False
    no_write_conflict: bool = False


def within(value: int, low: int, high: int = _MAX_INT) -> int:
    """A number that an option takes."""
    if not low <= value <= high:
        raise FDBError(INVALID_OPTION_VALUE)
    return value


class TransactionOptions:
    """`tr.options`"""

    def __init__(self, change: Callable[[Callable[[Kept, Lost], None]], None]) -> None:
        self._change = change

    def set_timeout(self, milliseconds: int) -> None:
        """Give up so long after the transaction was made; 0 is never."""

        def change(kept: Kept, _: Lost) -> None:
            kept.timeout_ms = within(milliseconds, 0)

        self._change(change)

    def set_retry_limit(self, retries: int) -> None:
        """How often `on_error` lets it be tried again; -1 is without end."""

        def change(kept: Kept, _: Lost) -> None:
            kept.retry_limit = within(retries, -1)

        self._change(change)

    def set_max_retry_delay(self, milliseconds: int) -> None:
        """How long `on_error` waits at most."""

        def change(kept: Kept, _: Lost) -> None:
            kept.max_retry_delay_ms = within(milliseconds, 0)

        self._change(change)

    def set_size_limit(self, size: int) -> None:
        """How large it may be, in bytes."""

        def change(kept: Kept, _: Lost) -> None:
            kept.size_limit = within(size, 32, TRANSACTION_LIMIT)

        self._change(change)

    def set_snapshot_ryw_enable(self) -> None:
        """Let snapshot reads see own writes, as they do unless told otherwise."""

        def change(_: Kept, lost: Lost) -> None:
            lost.snapshot_ryw += 1

        self._change(change)

    def set_snapshot_ryw_disable(self) -> None:
        """Let snapshot reads not see own writes."""

        def change(_: Kept, lost: Lost) -> None:
            lost.snapshot_ryw -= 1

        self._change(change)

    def set_read_your_writes_disable(self) -> None:
        """Let no read see own writes. Before anything else was done."""

        def change(_: Kept, lost: Lost) -> None:
            lost.ryw_disabled = True

        self._change(change)

    def set_next_write_no_write_conflict_range(self) -> None:
        """Let nobody conflict with the next write."""

        def change(_: Kept, lost: Lost) -> None:
            lost.no_write_conflict = True

        self._change(change)


class DatabaseOptions:
    """`db.options`: what the transactions made from now on begin with."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.snapshot_ryw = 1
        self.max_watches = 10_000

    def set_transaction_timeout(self, milliseconds: int) -> None:
        self.kept.timeout_ms = within(milliseconds, 0)

    def set_transaction_retry_limit(self, retries: int) -> None:
        self.kept.retry_limit = within(retries, -1)

    def set_transaction_size_limit(self, size: int) -> None:
        self.kept.size_limit = within(size, 32, TRANSACTION_LIMIT)

    def set_snapshot_ryw_enable(self) -> None:
        self.snapshot_ryw += 1

    def set_snapshot_ryw_disable(self) -> None:
        self.snapshot_ryw -= 1

    def set_max_watches(self, count: int) -> None:
        self.max_watches = within(count, 0, 1_000_000)
