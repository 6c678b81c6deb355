"""Reads of what is stored, as one transaction makes them: at its version, counted, with faults."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Protocol

from tests.fdb_sim.client import Client
from tests.fdb_sim.errors import TIMED_OUT, TOO_OLD, FDBError
from tests.fdb_sim.options import Kept
from tests.fdb_sim.reading import Row


class Reader(Protocol):
    """The transaction that reads."""

    kept: Kept

    def version(self) -> int: ...

    def die(self, error: int) -> None: ...


class StoredAt:
    """What is stored at the version that a transaction reads."""

    def __init__(self, client: Client, reader: Reader) -> None:
        self._client = client
        self._reader = weakref.ref(reader)  # no cycle: a transaction ends when nobody holds it

    def _version(self) -> int:
        reader = self._reader()
        assert reader is not None
        dice, stats = self._client.dice, self._client.stats
        if reader.kept.timeout_ms and dice.timeout():
            stats.faults += 1
            reader.die(TIMED_OUT)
            raise FDBError(TIMED_OUT)
        if dice.too_old():
            stats.faults += 1
            raise FDBError(TOO_OLD)
        return reader.version()

    def get(self, key: bytes) -> bytes | None:
        value = self._client.cluster.get(key, self._version())
        stats = self._client.stats
        stats.point_reads += 1
        stats.keys_read += 1
        stats.bytes_read += len(key) + len(value or b"")
        return value

    def rows(self, begin: bytes, end: bytes, *, reverse: bool = False) -> Iterator[Row]:
        found = self._client.cluster.rows(begin, end, self._version(), reverse=reverse)
        stats = self._client.stats
        stats.range_reads += 1
        for key, value in found:
            stats.keys_read += 1
            stats.bytes_read += len(key) + len(value)
            yield key, value
