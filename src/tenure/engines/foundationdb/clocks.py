"""The store's time, which decides when schedules are due: the median of its schedulers' clocks.

A cluster has no clock except its versions, a million a second, without those that jumps have
skipped. Every scheduler regularly notes the time of its own clock, and the version at that moment.
The median of recent notes, advanced by the versions since, is the same for all schedulers, and
correct while most of their clocks are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median_low

import msgspec

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.jumps import last_jump
from tenure.engines.foundationdb.tx import Tx
from tenure.engines.foundationdb.versions import VERSIONS_PER_MS

FRESH_MS = 5 * 60_000
NOTE_MS = 10_000  # between two notes of one client
DRIFT_MS = 2_000  # the precision of versions; in an idle cluster they advance once a second

_decode = msgspec.msgpack.Decoder(tuple[int, int]).decode
_encode = msgspec.msgpack.Encoder().encode


def now_of(tx: Tx) -> int:
    """The store's time: this client's clock if it agrees with the median, otherwise the median. If
    a test controls the clock, that clock's time."""
    if not tx.store.hybrid:
        return tx.now
    others = [
        at_ms + age_ms
        for client, (at_ms, age_ms) in _notes(tx).items()
        if client != tx.store.client and 0 <= age_ms <= FRESH_MS
    ]
    found = median_low([*others, tx.now])
    return tx.now if abs(found - tx.now) <= DRIFT_MS else found


@contextmanager
def by_the_store(tx: Tx) -> Iterator[None]:
    """Within this context, the transaction's time is the store's instead of this client's."""
    own, tx.now = tx.now, now_of(tx)
    try:
        yield
    finally:
        tx.now = own


def note(tx: Tx) -> None:
    """Note the time of this client's clock, if its last note is old or was wrong."""
    if not tx.store.hybrid:
        return
    notes = _notes(tx)
    own_ms, own_age_ms = notes.pop(tx.store.client, (0, 0))
    if own_age_ms <= NOTE_MS and abs(own_ms + own_age_ms - tx.now) <= DRIFT_MS:
        return
    tx.set(tx.keys.pack(k.CLOCK, tx.store.client), _encode((_passed(tx), tx.now)))
    for client, (_, age_ms) in notes.items():
        if not 0 <= age_ms <= FRESH_MS:  # it is gone, or a later backup was restored
            tx.clear(tx.keys.pack(k.CLOCK, client))


def _passed(tx: Tx) -> int:
    return tx.version - last_jump(tx).skipped


def _notes(tx: Tx) -> dict[int, tuple[int, int]]:
    """The notes of all clients: a time, and its age by versions."""
    found = {}
    for row in tx.tr.snapshot.get_range(*tx.keys.span(k.CLOCK)):
        (client,) = tx.keys.unpack(bytes(row.key))
        version, at_ms = _decode(bytes(row.value))
        found[client] = (at_ms, (_passed(tx) - version) // VERSIONS_PER_MS)
    return found
