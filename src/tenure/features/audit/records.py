"""The audit log as records: their keys, and the list that is built from them."""

from __future__ import annotations

import msgspec

from tenure.features.audit.data import MAX_PAGE_BYTES, AuditEntry, AuditLog, ListAudit
from tenure.model.record_queries import LAST_KEY, ListRecords, Read
from tenure.model.records import Record

_PART = 200  # records that are read together
_decode = msgspec.json.Decoder(AuditEntry).decode


def key_of(entry: AuditEntry, unique: str) -> str:
    """Keys sort by time."""
    return f"{entry.at:015d}.{unique}"


def list_audit(read: Read, query: ListAudit) -> AuditLog:
    """The newest entries before the cursor, as far as they fit into a page."""
    last = LAST_KEY if query.cursor is None else query.cursor
    page: list[Record] = []
    size = 0
    while True:
        found = read(ListRecords("audit", "", last, _PART, newest_first=True))
        for record in found:
            if record.key == last:
                continue
            size += len(record.value)
            if len(page) == query.limit or (page and size > MAX_PAGE_BYTES):
                return AuditLog([_decode(one.value) for one in page], page[-1].key)
            page.append(record)
        if len(found) < _PART:
            return AuditLog([_decode(one.value) for one in page], None)
        last = found[-1].key
