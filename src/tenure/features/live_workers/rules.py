"""Reports of live workers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from tenure.core.features import Rules
from tenure.core.transaction import J, Transaction
from tenure.errors import InvalidInput
from tenure.features.live_workers.data import (
    NOTE_EVERY_MS,
    SEEN_MS,
    Beat,
    Stored,
    decode,
    live_key,
    seen_key,
)
from tenure.model import ops
from tenure.model.ops import Answer
from tenure.model.records import MAX_RECORD_BYTES


def beat(tx: Transaction[J], batch: Sequence[Beat]) -> list[Answer]:
    return [_beat(tx, op) for op in batch]


def _beat(tx: Transaction[J], op: Beat) -> Answer:
    key = live_key(op)
    found = tx.record("worker", key)
    noted_at = 0 if found is None else decode(found).noted_at
    notes = op.ttl_ms == 0 or tx.now - noted_at >= NOTE_EVERY_MS
    value = _encoded(op, tx.now, tx.now if notes else noted_at)
    if value is None:
        return InvalidInput("worker", f"is larger than {MAX_RECORD_BYTES:,} bytes")
    if op.ttl_ms:
        tx.put_record("worker", key, value, tx.now + op.ttl_ms)
    else:
        tx.drop_record("worker", key)
    # A worker that serves some tenants does not count for the others.
    if notes and (op.grant is None or op.grant.tenants is None):
        for queue in dict.fromkeys(op.worker.queues):
            now = str(tx.now).encode()
            tx.put_record("worker", seen_key(op, queue), now, tx.now + SEEN_MS)
    return ops.Ok()


def _encoded(op: Beat, now: int, noted_at: int) -> bytes | None:
    """The value of the worker's record, without the running jobs if they do not fit."""
    worker = replace(op.worker, seen_at=now)
    for one in (worker, replace(worker, running=())):
        value = msgspec.json.encode(Stored(one, noted_at, op.grant))
        if len(value) <= MAX_RECORD_BYTES:
            return value
    return None


RULES = Rules(operations={Beat: beat})
