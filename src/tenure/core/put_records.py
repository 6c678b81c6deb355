"""Records: data that a store keeps besides its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.core.transaction import J, Transaction
from tenure.errors import InvalidInput
from tenure.model import ops
from tenure.model.ops import Answer
from tenure.model.records import MAX_RECORD_BYTES, NewRecord, PutRecords


def put_records(tx: Transaction[J], batch: Sequence[PutRecords]) -> list[Answer]:
    return [_put(tx, op) for op in batch]


def _put(tx: Transaction[J], op: PutRecords) -> Answer:
    for record in op.records:
        if record.value is not None and len(record.value) > MAX_RECORD_BYTES:
            return InvalidInput("value", f"is larger than {MAX_RECORD_BYTES:,} bytes")
    for record in op.records:
        _put_one(tx, record)
    return ops.Ok()


def _put_one(tx: Transaction[J], record: NewRecord) -> None:
    if record.value is None:
        tx.drop_record(record.space, record.key)
    else:
        expires_at = None if record.keep_ms is None else tx.now + record.keep_ms
        tx.put_record(record.space, record.key, record.value, expires_at)
