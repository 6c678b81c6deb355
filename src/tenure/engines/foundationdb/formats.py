"""The version of the stored format: checking it, and migrating older stores."""

from __future__ import annotations

from collections.abc import Callable

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.transact import Transactor
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import WrongVersion

FORMAT = 1
_MARK = b"tenure "  # then the format, and while it is migrated, a space and how far
# From each older format to the next. A migration takes one step from where the last one ended, at
# first from b"", and returns where it ended, or None if it was the last.
MIGRATIONS: dict[int, Callable[[Transaction, bytes], bytes | None]] = {}


def check_format(transactor: Transactor) -> None:
    """Check the format of a store, after creating or migrating it. Several programs may do this at
    the same time: each step continues where the last one ended, no matter which program took it."""
    while transactor.run(_step)[0] < FORMAT:
        pass


def _step(tx: Transaction) -> int:
    """Take a step towards the current format. Returns the format of the store now."""
    key = tx.keys.pack(k.FORMAT)
    value = tx.tr.get(key).value
    if value is None:
        tx.set(key, _MARK + b"%d" % FORMAT)
        return FORMAT
    found, place = _read(bytes(value))
    if found < FORMAT:
        rest = MIGRATIONS[found](tx, place)
        found += rest is None
        tx.set(key, _MARK + b"%d" % found + (b"" if rest is None else b" " + rest))
    return found


def _read(value: bytes) -> tuple[int, bytes]:
    """The format, and how far its migration is. Raises WrongVersion if it is not known here."""
    if not value.startswith(_MARK):
        raise WrongVersion(
            "this directory is of a Tenure before its first release, which this one cannot read; "
            "nothing was changed. Finish its jobs with the Tenure that made it, then use another "
            "directory (fdb://...?directory=name)"
        )
    number, _, place = value[len(_MARK) :].partition(b" ")
    found = int(number)
    if found > FORMAT:
        raise WrongVersion(
            f"the jobs of this cluster have format {found}, but this Tenure knows {FORMAT}: use a "
            "newer Tenure"
        )
    return found, place
