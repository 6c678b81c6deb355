"""The index keys of a job. They depend only on its record, so a move updates the indexes by
comparing the keys before and after."""

from __future__ import annotations

from typing import Any, NamedTuple

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.keys import Keys, Seq
from tenure.engines.foundationdb.record import Record
from tenure.model.job import FINAL, State

Place = tuple[Any, ...]  # the kind of a key, and its elements before those of the job

# What follows these elements in a key: nothing, the id of the job, or its place in enqueue order
# and its id.
_NOTHING, _ID, _SEQ_AND_ID = range(3)
_ENDS = {k.UNIQUE: _NOTHING, k.LEASE: _ID}


class Entry(NamedTuple):
    """An entry of an index, for all jobs that have it at the same place."""

    start: bytes
    end: int
    is_hint: bool  # no transaction conflicts on it


Changes = tuple[list[Entry], list[Entry]]  # to remove, and to add


class Indexes:
    """Finds the entries that change with a record. Jobs that move together mostly make the same
    move, so the result is remembered."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._known: dict[tuple[tuple[Place, ...], tuple[Place, ...]], Changes] = {}

    def changes(self, before: Record | None, after: Record | None) -> Changes:
        was = () if before is None else _places(before)
        now = () if after is None else _places(after)
        found = self._known.get((was, now))
        if found is None:
            found = self._known[was, now] = (
                [self._entry(place) for place in was if place not in now],
                [self._entry(place) for place in now if place not in was],
            )
        return found

    def ends(self, job_id: str, seq: Seq) -> tuple[bytes, bytes, bytes]:
        """The ends of the keys of a job, by the number in an entry."""
        own = self._keys.own(job_id)
        return b"", own, self._keys.seq(seq) + own

    def _entry(self, place: Place) -> Entry:
        kind = place[0]
        end = _ENDS.get(kind, _SEQ_AND_ID)
        # A whole key is not worth remembering.
        start = self._keys.prefix(*place) if end else self._keys.pack(*place)
        return Entry(start, end, kind in k.HINTS)


def _places(record: Record) -> tuple[Place, ...]:
    queue, state = record.queue, record.state
    found: tuple[Place, ...] = ((k.LISTED, queue),)
    if record.error:
        found += ((k.ERROR, record.error),)
    if state in FINAL:
        return (*found, (k.ENDED, queue, state, record.finished_at))
    if record.unique_key is not None:
        found += ((k.UNIQUE, queue, record.tenant, record.unique_key),)
    if state is State.LEASED:
        return (
            *found,
            (k.LEASE, queue, record.tenant, record.group),
            (k.ENDING, queue, record.lease_until),
        )
    if record.expires_at is not None:
        found += ((k.EXPIRING, queue, record.expires_at),)
    if state is not State.PENDING:
        return found
    if record.ready:
        return (*found, (k.READY, queue, record.tenant, record.group, record.priority))
    return (*found, (k.DELAYED, queue, record.run_at))
