"""Error groups: finding the group of a failure, and counting it in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tenure.core.transaction import J, Tally, Transaction
from tenure.model import error_groups, error_records, ops, states
from tenure.model.error_groups import ErrorGroup
from tenure.model.job import Failure
from tenure.model.ops import Answer

_decode = msgspec.json.Decoder(ErrorGroup).decode


def grouped(tx: Transaction[J], job: J, change: states.Change, failure: Failure) -> states.Change:
    """The change with the group of its failure, which is counted."""
    one = error_groups.one_failure(tx.queue_of(job), job.kind, job.id, failure, change.state)
    tally = _tally(tx, one)
    if tally is None and _is_one_too_many(tx, one):
        one = error_groups.among_others(one)
        tally = _tally(tx, one)
    place = error_records.key_of(one, "")
    if tally is None:
        tx.failures[place] = Tally(error_records.key_of(one, tx.writer), one)
        tx.error_groups[one.queue] += 1
    else:
        tx.failures[place] = Tally(tally.key, tally.group.plus(one))
    return states.in_group(change, one.group)


def _tally(tx: Transaction[J], one: ErrorGroup) -> Tally | None:
    """The counts of a group so far, if any."""
    known = tx.failures.get(error_records.key_of(one, ""))
    if known is None:
        found = tx.free_record("error", *error_records.keys_of_group(one))
        known = None if found is None else Tally(found[0], _decode(found[1]))
    return known


def _is_one_too_many(tx: Transaction[J], one: ErrorGroup) -> bool:
    """Whether the queue has as many groups as it may have, and no writer counts this one."""
    most, counted = error_groups.MAX_GROUPS, tx.error_groups.get(one.queue)
    if counted is None:  # once in a transaction: there may be a new group for each failure
        counted = tx.count_records("error", *error_records.keys_of(one.queue), most)
        tx.error_groups[one.queue] = counted
    if counted < most:
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
    for tally in tx.failures.values():
        _put(tx, tally)
    tx.failures.clear()


def _put(tx: Transaction[J], tally: Tally) -> None:
    keep_ms = tx.keep_errors_ms
    expires_at = None if keep_ms is None else tally.group.last_at + keep_ms
    tx.put_record("error", tally.key, msgspec.json.encode(tally.group), expires_at)
