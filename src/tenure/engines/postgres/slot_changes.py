"""Slots. Each operation is one server function, which locks the count and decides: the core's
`slots` would need a round trip for each of its four steps."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.engines.postgres.transaction import Transaction
from tenure.model import ops
from tenure.model.ops import Answer


def change_slot(tx: Transaction, batch: Sequence[ops.TakeSlot | ops.DropSlot]) -> list[Answer]:
    sent = [tx.db.send("change_slot", tx.given, *_change(op)) for op in batch]
    return [ops.Slots(count, held) for one in sent for count, held in one.fetchall()]


def _change(op: ops.TakeSlot | ops.DropSlot) -> tuple[object, ...]:
    bounds = (op.ttl_ms, op.limit) if isinstance(op, ops.TakeSlot) else (None, None)
    return op.scope, op.key, op.holder, *bounds


def reconcile_slots(tx: Transaction, batch: Sequence[ops.ReconcileSlots]) -> list[Answer]:
    sent = [tx.db.send("recount_slots", tx.given, op.scope, op.key) for op in batch]
    return [ops.Corrected({"slots": by} if by else {}) for one in sent for (by,) in one.fetchall()]
