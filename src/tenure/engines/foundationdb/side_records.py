"""Records: side data beside the jobs. Not to be confused with the record of a job."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.tx import Tx
from tenure.model.record_queries import ListRecords
from tenure.model.records import Record, Space


def get(tx: Tx, space: Space, key: str) -> bytes | None:
    value = tx.tr.get(tx.keys.pack(k.RECORD, space, key)).value
    if value is None:
        return None
    found = _decoded(key, bytes(value))
    return None if _is_over(found, tx.now) else found.value


def put(tx: Tx, space: Space, key: str, value: bytes, expires_at: int | None) -> None:
    _forget_end(tx, space, key)
    end = "" if expires_at is None else str(expires_at)
    tx.set(tx.keys.pack(k.RECORD, space, key), f"{end} ".encode() + value)
    if expires_at is not None:
        tx.set(tx.keys.pack(k.RECORD_END, expires_at, space, key))


def get_several(tx: Tx, space: Space, keys: Iterable[str]) -> dict[str, bytes]:
    """The values of records that do not expire, read at once."""
    asked = [(key, tx.tr.get(tx.keys.pack(k.RECORD, space, key))) for key in keys]
    found = [(key, one.value) for key, one in asked]
    return {key: _decoded(key, bytes(value)).value for key, value in found if value is not None}


def between(tx: Tx, space: Space, first: str, last: str) -> list[tuple[str, bytes]]:
    """Records that do not expire, with keys between these two."""
    rows = list(tx.tr.get_range(*_span(tx, space, first, last)))
    found = [(tx.keys.unpack(bytes(row.key))[1], bytes(row.value)) for row in rows]
    return [(key, _decoded(key, value).value) for key, value in found]


def put_forever(tx: Tx, space: Space, key: str, value: bytes) -> None:
    """Store a record that does not expire, and did not before."""
    tx.set(tx.keys.pack(k.RECORD, space, key), b" " + value)


def drop_between(tx: Tx, space: Space, first: str, last: str) -> None:
    """Delete records that do not expire, with keys between these two."""
    tx.tr.clear_range(*_span(tx, space, first, last))
    tx.wrote = True


def _span(tx: Tx, space: Space, first: str, last: str) -> tuple[bytes, bytes]:
    end: bytes = tx.keys.pack(k.RECORD, space, last)
    return tx.keys.pack(k.RECORD, space, first), end + b"\x00"


def drop(tx: Tx, space: Space, key: str) -> None:
    _forget_end(tx, space, key)
    tx.clear(tx.keys.pack(k.RECORD, space, key))


def _forget_end(tx: Tx, space: Space, key: str) -> None:
    """Delete the RECORD_END key of a stored value. It is read without a conflict range, so that
    writers do not conflict: a key that is left behind is deleted when it expires."""
    stored = tx.tr.snapshot.get(tx.keys.pack(k.RECORD, space, key)).value
    if stored is not None:
        expires_at = _decoded(key, bytes(stored)).expires_at
        if expires_at is not None:
            tx.clear(tx.keys.pack(k.RECORD_END, expires_at, space, key))


def drop_expired(tx: Tx, limit: int) -> None:
    """Delete records whose end has passed, unless they were replaced meanwhile."""
    begin, _ = tx.keys.span(k.RECORD_END)
    ended = list(tx.scan(begin, tx.keys.pack(k.RECORD_END, tx.now + 1), limit=limit))
    asked = [tx.tr.get(tx.keys.pack(k.RECORD, space, key)) for _, space, key in ended]
    for (expires_at, space, key), one in zip(ended, asked, strict=True):
        value = one.value
        if value is not None and _is_over(_decoded(key, bytes(value)), tx.now):
            tx.clear(tx.keys.pack(k.RECORD, space, key))
        tx.clear(tx.keys.pack(k.RECORD_END, expires_at, space, key))


def count(tx: Tx, space: Space, first: str, last: str, most: int) -> int:
    begin, end = _span(tx, space, first, last)
    return sum(1 for _ in tx.tr.snapshot.get_range(begin, end, limit=most))


def list_records(tx: Tx, query: ListRecords) -> list[Record]:
    """Expired records are few, since maintenance deletes them: they are read and left out."""
    begin, end = _span(tx, query.space, query.first, query.last)
    found: list[Record] = []
    for row in tx.tr.snapshot.get_range(begin, end, reverse=query.newest_first):
        _, key = tx.keys.unpack(bytes(row.key))
        record = _decoded(key, bytes(row.value))
        if not _is_over(record, tx.now):
            found.append(record)
        if len(found) == query.limit:
            break
    return found


def _decoded(key: str, stored: bytes) -> Record:
    end, _, value = stored.partition(b" ")
    return Record(key, value, int(end) if end else None)


def _is_over(record: Record, now: int) -> bool:
    return record.expires_at is not None and record.expires_at <= now
