"""A fence: a batch is run only if the store still has the mark that its caller knows.

A store that is one of several shards has a mark, which changes when tenants are moved between them.
A process that does not know of the change would write to the wrong shard; its batch is rejected in
the transaction that would have applied it.
"""

from __future__ import annotations

from typing import NamedTuple

from tenure.core.transaction import SlotTransaction
from tenure.errors import TenureError
from tenure.model.fields import MAX_SPAN_MS

SCOPE, KEY = "tenure.shards", "ring"  # of the slot whose holder is the mark


class Fence(NamedTuple):
    """mark: what the store must have; "" for none. become: its next mark, if that changes."""

    mark: str
    become: str | None = None


class Fenced(TenureError):
    """The store has another mark. Nothing was changed."""

    code = "fenced"


def refused() -> Fenced:
    return Fenced("tenants have been moved between the shards")


def check(tx: SlotTransaction, fence: Fence) -> None:
    """Raise Fenced unless the store has this mark; then set the next one."""
    if not (tx.has_slot(SCOPE, KEY, fence.mark) if fence.mark else _has_none(tx)):
        raise refused()
    if fence.become is not None:
        tx.drop_slot(SCOPE, KEY, fence.mark)
        tx.put_slot(SCOPE, KEY, fence.become, tx.now + MAX_SPAN_MS)


def _has_none(tx: SlotTransaction) -> bool:
    return tx.count_slots(SCOPE, KEY) == 0
