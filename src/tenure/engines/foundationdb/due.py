"""Jobs that are due: indexes by time, and expired leases."""

from __future__ import annotations

from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.jumps import ask, last_jump
from tenure.engines.foundationdb.record import Held, Record
from tenure.engines.foundationdb.store import Lease
from tenure.engines.foundationdb.tx import Tx

_FIRST_ENDING = 16  # leases that a claim looks at
LOOK_AGAIN_MS = 1_000  # less than the grace period of a new lease


def due(tx: Tx, kind: int, queue: str, until: int, limit: int) -> list[tuple[int, str]]:
    """The first entries of an index by time: the time and the job's id."""
    if limit <= 0:
        return []
    keys = (tx.keys.unpack(bytes(row.key)) for row in _ask_index(tx, kind, queue, until, limit))
    return [(key[1], key[-1]) for key in keys]


def _ask_index(tx: Tx, kind: int, queue: str, until: int, limit: int) -> Any:
    begin, _ = tx.keys.span(kind, queue)
    end = tx.keys.pack(kind, queue, until + 1)
    return tx.tr.snapshot.get_range(begin, end, limit=limit)


class Due:
    """Whether a sweep would find something. The reads start now and are awaited later. Leases are
    checked only on request: each one that has not expired costs two reads."""

    def __init__(self, tx: Tx, queue: str, *, leases: bool) -> None:
        self._tx, self._queue, self._leases = tx, queue, leases
        self._asked = [_ask_index(tx, kind, queue, tx.now, 1) for kind in (k.DELAYED, k.EXPIRING)]
        if leases:
            ask(tx)
        self.quiet_ms: int = LOOK_AGAIN_MS  # no lease that was checked can expire sooner

    def found(self) -> bool:
        if any(list(rows) for rows in self._asked):
            return True
        if not self._leases:
            return False
        last_jump(self._tx)  # notes that this process watches, also if nothing is leased
        return self._any_lease_over()

    def _any_lease_over(self) -> bool:
        """Whether one of the leases that end first has expired, or is a leftover of a lost
        claim."""
        tx = self._tx
        ending = due(tx, k.ENDING, self._queue, tx.store.sweep_until(tx.now), _FIRST_ENDING)
        for (until, _), seen in zip(ending, tx.peek(job_id for _, job_id in ending), strict=True):
            if seen is None or seen.record.lease_until != until:
                if until <= tx.now:
                    return True
            elif seen.record.lease is not None:
                over_at = lease_is_over_at(tx, seen.record.lease)
                if over_at <= tx.now:
                    return True
                self.quiet_ms = min(self.quiet_ms, over_at - tx.now)
        return False


def overdue(tx: Tx, queue: str, limit: int) -> list[Held]:
    """Jobs whose lease has expired. Removes the keys of lost claims that it finds."""
    ending = due(tx, k.ENDING, queue, tx.store.sweep_until(tx.now), limit)
    over = []
    for (until, job_id), seen in zip(ending, tx.peek(job_id for _, job_id in ending), strict=True):
        if seen is None or seen.record.lease_until != until:
            if until <= tx.now:
                _drop_ending_key(tx, queue, until, job_id)
        elif is_over(tx, seen.record):
            over.append(job_id)
    return tx.jobs(over)


def is_over(tx: Tx, record: Record) -> bool:
    """Whether a job is leased, and its lease has expired."""
    lease = record.lease
    return lease is not None and lease_is_over_at(tx, lease) <= tx.now


def lease_is_over_at(tx: Tx, lease: Lease) -> int:
    """When a lease has expired for certain, by this machine's clock."""
    return tx.store.lease_is_over_at(tx.now, lease, tx.version, last_jump(tx).version)


def _drop_ending_key(tx: Tx, queue: str, until: int, job_id: str) -> None:
    for key in tx.scan(*tx.keys.span(k.ENDING, queue, until)):
        if key[-1] == job_id:
            tx.clear(tx.keys.pack(k.ENDING, *key))
