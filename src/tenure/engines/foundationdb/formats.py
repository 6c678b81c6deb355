"""The version of the stored format: checking it, and migrating older stores.

Format 2 added GROUP_TOTAL. Programs of format 1 do not maintain it, so stop them before the
migration; `Reconcile` corrects the totals otherwise. Format 3 added RECORD and ERROR, which older
programs leave alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.record import total_of
from tenure.engines.foundationdb.transact import Transactor
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import WrongVersion

FORMAT = b"3"
_WITHOUT_RECORDS = b"2"
_OLD = b"1"
_UNDER_WAY = b"1 "  # then the first key that is not migrated yet
_STEP = 5_000  # counters migrated in one transaction


def check_format(transactor: Transactor) -> None:
    """Check the format of a store, after creating or migrating it. Several programs may do this at
    the same time: each step continues where the last one ended, no matter which program took it."""
    while True:
        found, _ = transactor.run(_step)
        if found == FORMAT:
            return
        if not found.startswith(_UNDER_WAY):
            raise WrongVersion(
                f"the jobs of this cluster have format {found.decode()}, but this Tenure knows "
                f"{FORMAT.decode()}: use a newer Tenure"
            )


def _step(tx: Transaction) -> bytes:
    """Take a step towards the current format. Returns where the store is now."""
    key = tx.keys.pack(k.FORMAT)
    value = tx.tr.get(key).value
    found = FORMAT if value is None else bytes(value)
    if found == _OLD or found.startswith(_UNDER_WAY):
        found = _sum_groups(tx, found[len(_UNDER_WAY) :])
    elif found == _WITHOUT_RECORDS:
        found = FORMAT
    elif value is not None:
        return found
    tx.set(key, found)
    return found


def _sum_groups(tx: Transaction, start: bytes) -> bytes:
    """Add the next GROUP_COUNT counters to GROUP_TOTAL."""
    begin, end = tx.keys.span(k.GROUP_COUNT)
    rows = list(tx.tr.snapshot.get_range(max(begin, start), end, limit=_STEP))
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        queue, _, group, what = tx.keys.unpack(bytes(row.key))
        if group:
            count = int.from_bytes(bytes(row.value), "little", signed=True)
            sums[queue, group, total_of(what)] += count
    for total, count in sums.items():
        tx.add(tx.keys.pack(k.GROUP_TOTAL, *total), count)
    return FORMAT if len(rows) < _STEP else _UNDER_WAY + bytes(rows[-1].key) + b"\x00"
