"""Error groups: finding the group of a failure, and counting it in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tenure.core.features import Rules
from tenure.core.transaction import J, Transaction
from tenure.features.errors import data
from tenure.features.errors.data import ErrorGroup, MuteError
from tenure.model import ops, states
from tenure.model.job import Failure
from tenure.model.ops import Answer

_decode = msgspec.json.Decoder(ErrorGroup).decode


class Tally(NamedTuple):
    """What a transaction adds to the stored counts of a group."""

    key: str  # of the record
    group: ErrorGroup


class Tallies:
    """The counts to write at the end of a transaction."""

    def __init__(self) -> None:
        self.by_place: dict[str, Tally] = {}
        self.groups: dict[str, int] = {}  # how many a queue has, if it was counted


def _kept(tx: Transaction[J]) -> Tallies:
    kept: Tallies = tx.kept.setdefault(Tallies, Tallies())
    return kept


def grouped(tx: Transaction[J], job: J, change: states.Change, failure: Failure) -> states.Change:
    """The change with the group of its failure, which is counted."""
    kept = _kept(tx)
    one = data.one_failure(tx.queue_of(job), job.kind, job.id, failure, change.state)
    tally = _tally(tx, one)
    if tally is None and _is_one_too_many(tx, one):
        one = data.among_others(one)
        tally = _tally(tx, one)
    place = data.key_of(one, "")
    if tally is None:
        kept.by_place[place] = Tally(data.key_of(one, tx.writer), one)
        kept.groups[one.queue] += 1
    else:
        kept.by_place[place] = Tally(tally.key, tally.group.plus(one))
    return states.in_group(change, one.group)


def _tally(tx: Transaction[J], one: ErrorGroup) -> Tally | None:
    """The counts of a group so far, if any."""
    known = _kept(tx).by_place.get(data.key_of(one, ""))
    if known is None:
        found = tx.free_record("error", *data.keys_of_group(one))
        known = None if found is None else Tally(found[0], _decode(found[1]))
    return known


def _is_one_too_many(tx: Transaction[J], one: ErrorGroup) -> bool:
    """Whether the queue has as many groups as it may have, and no writer counts this one."""
    kept, most = _kept(tx).groups, data.MAX_GROUPS
    counted = kept.get(one.queue)
    if counted is None:  # once in a transaction: there may be a new group for each failure
        counted = tx.count_records("error", *data.keys_of(one.queue), most)
        kept[one.queue] = counted
    if counted < most:
        return False
    return not tx.count_records("error", *data.keys_of_group(one), 1)


def mute_error(tx: Transaction[J], batch: Sequence[MuteError]) -> list[Answer]:
    for op in batch:
        key = data.mute_key(op.group)
        if op.muted:
            tx.put_record("error", key, b"true", None)
        else:
            tx.drop_record("error", key)
    return [ops.Ok() for _ in batch]


def write(tx: Transaction[J]) -> None:
    """Store the counts of a transaction, at its end."""
    kept = tx.kept.pop(Tallies, None)
    if kept is None:
        return
    keep_ms = tx.settings.keep_errors_ms
    for tally in kept.by_place.values():
        expires_at = None if keep_ms is None else tally.group.last_at + keep_ms
        tx.put_record("error", tally.key, msgspec.json.encode(tally.group), expires_at)


RULES = Rules(operations={MuteError: mute_error}, failed=grouped, ending=write)
