"""Slots: counted holds that expire by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.core.transaction import SlotTransaction
from tenure.model import ops
from tenure.model.ops import Answer


def take_slot(tx: SlotTransaction, batch: Sequence[ops.TakeSlot]) -> list[Answer]:
    return [_take(tx, op) for op in batch]


def _take(tx: SlotTransaction, op: ops.TakeSlot) -> Answer:
    others = tx.count_slots(op.scope, op.key) - tx.has_slot(op.scope, op.key, op.holder)
    held = op.limit is None or others < op.limit
    if held:
        tx.put_slot(op.scope, op.key, op.holder, tx.now + op.ttl_ms)
    else:
        tx.drop_slot(op.scope, op.key, op.holder)
    return ops.Slots(others + held, held)


def drop_slot(tx: SlotTransaction, batch: Sequence[ops.DropSlot]) -> list[Answer]:
    return [_drop(tx, op) for op in batch]


def _drop(tx: SlotTransaction, op: ops.DropSlot) -> Answer:
    count = tx.count_slots(op.scope, op.key)
    dropped = tx.drop_slot(op.scope, op.key, op.holder)
    return ops.Slots(count - dropped, False)
