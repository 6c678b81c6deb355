"""Error groups: finding the group of a failure, and counting it in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenure.core.transaction import J, Transaction
from tenure.model import error_groups, error_records, ops, states
from tenure.model.error_groups import ErrorGroup
from tenure.model.job import Failure
from tenure.model.ops import Answer

_decode = msgspec.json.Decoder(ErrorGroup).decode


def grouped(tx: Transaction[J], job: J, change: states.Change, failure: Failure) -> states.Change:
    """The change with the group of its failure, which is counted."""
    one = error_groups.one_failure(tx.queue_of(job), job.kind, job.id, failure, change.state)
    key = error_records.key_of(one, tx.writer)
    if not _is_counted(tx, key) and _is_one_too_many(tx, one):
        one = error_groups.among_others(one)
        key = error_records.key_of(one, tx.writer)
        _is_counted(tx, key)
    counted = tx.failures.get(key)
    if counted is None:
        tx.failures[key] = one
        _put(tx, key, one)  # at once, so that it counts for the next
    else:
        tx.failures[key] = counted.plus(one)
    return states.in_group(change, one.group)


def _is_counted(tx: Transaction[J], key: str) -> bool:
    """Whether there is a count to add to. Loads it."""
    if key not in tx.failures:
        value = tx.record("error", key)
        if value is None:
            return False
        tx.failures[key] = _decode(value)
    return True


def _is_one_too_many(tx: Transaction[J], one: ErrorGroup) -> bool:
    """Whether the queue has as many groups as it may have, and no writer counts this one."""
    most = error_groups.MAX_GROUPS
    if tx.count_records("error", *error_records.keys_of(one.queue), most) < most:
        return False
    return not tx.count_records("error", *error_records.keys_of_group(one), 1)


def mute_error(tx: Transaction[J], batch: Sequence[ops.MuteError]) -> list[Answer]:
    for op in batch:
        key = error_records.mute_key(op.group)
        if op.muted:
            tx.put_record("error", key, b"true", None)
        else:
            tx.drop_record("error", key)
    return [ops.Ok() for _ in batch]


def write(tx: Transaction[J]) -> None:
    """Store the counts of a transaction, at its end."""
    for key, one in tx.failures.items():
        _put(tx, key, one)
    tx.failures.clear()


def _put(tx: Transaction[J], key: str, one: ErrorGroup) -> None:
    keep_ms = tx.keep_errors_ms
    expires_at = None if keep_ms is None else one.last_at + keep_ms
    tx.put_record("error", key, msgspec.json.encode(one), expires_at)
