"""Slots. Each operation is one server function, which locks the count and decides: the core's
`slots` would need a round trip for each of its four steps."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.engines.postgres.transaction import Transaction
from tenure.model import ops
from tenure.model.ops import Answer


def take_slot(tx: Transaction, batch: Sequence[ops.TakeSlot]) -> list[Answer]:
    sent = [
        tx.db.send(
            "take_slot", tx.given, op.scope, op.key, op.holder, op.ttl_ms, op.limit
        )
        for op in batch
    ]  # fmt: skip
    return [ops.Slots(count, held) for one in sent for count, held in one.fetchall()]


def drop_slot(tx: Transaction, batch: Sequence[ops.DropSlot]) -> list[Answer]:
    sent = [tx.db.send("drop_slot", tx.given, op.scope, op.key, op.holder) for op in batch]
    return [ops.Slots(count, False) for one in sent for (count,) in one.fetchall()]


def reconcile_slots(tx: Transaction, batch: Sequence[ops.ReconcileSlots]) -> list[Answer]:
    sent = [tx.db.send("recount_slots", tx.given, op.scope, op.key) for op in batch]
    return [ops.Corrected({"slots": by} if by else {}) for one in sent for (by,) in one.fetchall()]
