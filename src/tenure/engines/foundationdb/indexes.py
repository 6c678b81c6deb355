"""The index keys of a job. They depend only on its record, so a move updates the indexes by
comparing the keys before and after."""

from __future__ import annotations

from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.keys import Keys
from tenure.engines.foundationdb.record import Record
from tenure.model.job import FINAL, State

Place = tuple[Any, ...]  # the kind of a key, and its elements before those of the job


def changes(
    keys: Keys, job_id: str, before: Record | None, after: Record | None
) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """The keys to clear, and those to set, when a record changes."""
    one = before or after
    assert one is not None
    assert before is None or after is None or before.seq == after.seq
    was = () if before is None else _places(before)
    now = () if after is None else _places(after)
    own = keys.own(job_id)
    tail = keys.seq(one.seq) + own
    return (
        [_key(keys, place, own, tail) for place in was if place not in now],
        [
            (_key(keys, place, own, tail), job_id.encode() if place[0] == k.UNIQUE else b"")
            for place in now
            if place not in was
        ],
    )


def _key(keys: Keys, place: Place, own: bytes, tail: bytes) -> bytes:
    kind = place[0]
    if kind == k.UNIQUE:
        return keys.pack(*place)
    return keys.prefix(*place) + (own if kind == k.LEASE else tail)


def _places(record: Record) -> list[Place]:
    queue = record.queue
    found: list[Place] = [(k.LISTED, queue)]
    if record.error:
        found.append((k.ERROR, record.error))
    if record.state in FINAL:
        found.append((k.ENDED, queue, record.state.value, record.finished_at))
        return found
    if record.unique_key is not None:
        found.append((k.UNIQUE, queue, record.tenant, record.unique_key))
    if record.state is State.LEASED:
        found.append((k.LEASE, queue, record.tenant, record.group))
        found.append((k.ENDING, queue, record.lease_until))
        return found
    if record.expires_at is not None:
        found.append((k.EXPIRING, queue, record.expires_at))
    if record.state is State.PENDING:
        if record.ready:
            found.append((k.READY, queue, record.tenant, record.group, record.priority))
        else:
            found.append((k.DELAYED, queue, record.run_at))
    return found
