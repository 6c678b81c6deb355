"""Short ways to say what most tests of the key-value API say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import fdb_sim

STAMP = b"\xff" * 10
ONE = (1).to_bytes(8, "little")


def code_of(step: Callable[[], Any]) -> int | None:
    """The error of a step, waited for; None if it has none."""
    try:
        answer = step()
        if isinstance(answer, fdb_sim.Future):
            answer.wait()
    except fdb_sim.FDBError as error:
        return error.code
    return None


def put(db: fdb_sim.Database, key: bytes, value: bytes) -> None:
    """Write one key, and be done."""
    tr = db.create_transaction()
    tr.set(key, value)
    tr.commit().wait()


def begun(db: fdb_sim.Database) -> fdb_sim.Transaction:
    """A transaction that has its read version."""
    tr = db.create_transaction()
    tr.get_read_version().wait()
    return tr


def version_now(db: fdb_sim.Database) -> int:
    """The read version that a transaction gets now."""
    tr = begun(db)
    version: int = tr.get_read_version().wait()
    return version


def stamped(key: bytes, after: bytes = b"") -> bytes:
    """A key for `set_versionstamped_key`."""
    return key + STAMP + after + len(key).to_bytes(4, "little")


def rows(found: Any) -> list[tuple[bytes, bytes]]:
    return [(bytes(row.key), bytes(row.value)) for row in found]


def keys(found: Any) -> list[bytes]:
    return [bytes(row.key) for row in found]
