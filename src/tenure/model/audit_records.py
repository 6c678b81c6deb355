"""The audit log as records: their keys, and the list that is built from them."""

from __future__ import annotations

import msgspec

from tenure.model.audit import AuditEntry, AuditLog
from tenure.model.queries import ListAudit
from tenure.model.record_queries import LAST_KEY, ListRecords, Read

_decode = msgspec.json.Decoder(AuditEntry).decode


def key_of(entry: AuditEntry, unique: str) -> str:
    """Keys sort by time."""
    return f"{entry.at:015d}.{unique}"


def list_audit(read: Read, query: ListAudit) -> AuditLog:
    """The newest entries before the cursor."""
    last = LAST_KEY if query.cursor is None else query.cursor
    found = read(ListRecords("audit", "", last, query.limit + 2, newest_first=True))
    found = [record for record in found if record.key != query.cursor]
    page = found[: query.limit]
    entries = [_decode(record.value) for record in page]
    return AuditLog(entries, page[-1].key if len(found) > query.limit else None)
