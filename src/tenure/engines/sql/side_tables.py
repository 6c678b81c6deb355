"""What a transaction stores beside the jobs: limits and records, alike in both databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tenure.core.transaction import Scope
from tenure.engines.sql.limit_names import mark
from tenure.engines.sql.snapshot import Statements
from tenure.model.ops import Limit
from tenure.model.records import Space


class Db(Statements, Protocol):
    def send(self, name: str, *params: Any) -> Any:
        """Run a statement that changes something."""

    def listed(self, values: Sequence[str]) -> Any:
        """Values as one parameter of a statement."""


class SideTables:
    """Implements a part of tenure.core.transaction.Transaction."""

    def __init__(self, db: Db, moment: int | None) -> None:
        """moment: the time, or None if the server knows it."""
        self._sides, self._moment = db, moment

    @contextmanager
    def by_store_time(self) -> Iterator[None]:
        yield

    def limit(self, scope: Scope) -> Limit:
        queue, tenant, group = scope
        row = self._sides.one("limit_of", queue, mark(tenant), mark(group))
        concurrency, rate, per_ms, weight, paused = row or (None, None, None, None, False)
        return Limit(*scope, concurrency, rate, per_ms, weight, bool(paused))

    def record(self, space: Space, key: str) -> bytes | None:
        row = self._sides.one("record", space, key, self._moment)
        return None if row is None else str(row[0]).encode()

    def put_record(self, space: Space, key: str, value: bytes, expires_at: int | None) -> None:
        self._sides.send("put_record", space, key, value.decode(), expires_at)

    def drop_record(self, space: Space, key: str) -> None:
        self._sides.send("drop_record", space, key)

    def free_record(self, space: Space, first: str, last: str) -> tuple[str, bytes] | None:
        row = self._sides.one("free_record", space, first, last, self._moment)
        return None if row is None else (row[0], row[1].encode())

    def count_records(self, space: Space, first: str, last: str, most: int) -> int:
        ((count,),) = self._sides.all("count_records", space, first, last, most)
        return int(count)

    def records(self, space: Space, keys: Sequence[str]) -> dict[str, bytes]:
        found = self._sides.all("some_records", space, self._sides.listed(keys))
        return {key: value.encode() for key, value in found}

    def list_records(self, space: Space, first: str, last: str) -> list[tuple[str, bytes]]:
        found = self._sides.all("records_between", space, first, last)
        return [(key, value.encode()) for key, value in found]

    def drop_records(self, space: Space, first: str, last: str) -> None:
        self._sides.send("drop_records_between", space, first, last)


def store_limit(db: Db, limit: Limit, queue: int) -> None:
    """Replace a limit, and apply it to the queue if it is of the queue."""
    key = (limit.queue, mark(limit.tenant), mark(limit.group))
    db.send("delete_limit", *key)
    if not limit.is_default:
        bounds = (limit.concurrency, limit.rate, limit.per_ms, limit.weight, limit.paused)
        db.send("insert_limit", *key, *bounds)
    if limit.tenant is None:
        own = (limit.paused, limit.concurrency, limit.rate, limit.per_ms)
        db.send("limit_queue", *own, queue)
