"""A fence: a batch is run only if the store still has the mark that its caller knows.

A store that is one of several shards has a mark, which changes when tenants are moved between them.
A process that does not know of the change would write to the wrong shard; its batch is rejected in
the transaction that would have applied it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tenure.core.transaction import Transaction
from tenure.errors import TenureError
from tenure.model.records import Space

SPACE: Space = "ring"
MARK = "mark"  # the key of the record that is the mark


class Fence(NamedTuple):
    """mark: what the store must have; "" for none. become: its next mark, if that changes."""

    mark: str
    become: str | None = None


class Fenced(TenureError):
    """The store has another mark. Nothing was changed."""

    code = "fenced"


def refused() -> Fenced:
    return Fenced("tenants have been moved between the shards")


def check(tx: Transaction[Any], fence: Fence) -> None:
    """Raise Fenced unless the store has this mark; then set the next one."""
    mark = tx.record(SPACE, MARK)
    if (mark or b"").decode() != fence.mark:
        raise refused()
    if fence.become is not None:
        tx.put_record(SPACE, MARK, fence.become.encode(), None)
