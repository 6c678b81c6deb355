"""The audit log in the reference model."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from tenure.engines.memory.memory_store import Part, Store, handles
from tenure.features.audit import data
from tenure.features.audit.data import MAX_PAGE_BYTES, AuditEntry, AuditLog, ListAudit
from tenure.model.ops import Answer, Op


class Oracle(Part):
    """Keeps and lists entries."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._entries: list[AuditEntry] = []

    def answered(self, op: Op, answer: Answer, now: int) -> None:
        entry = data.entry_of(op, answer, now)
        if entry is not None:
            self._entries.append(entry)

    @handles(ListAudit)
    def _list(self, query: ListAudit, now: int) -> AuditLog:
        """A cursor is the number of an entry. A service may also have stored some as records."""
        keep_ms = self.store.settings.keep_audit_ms
        stored = [
            msgspec.json.decode(record.value, type=AuditEntry)
            for (space, _), record in self.store.side.items()
            if space == "audit"
        ]
        entries = [
            (n, entry)
            for n, entry in enumerate(sorted([*self._entries, *stored], key=lambda one: one.at))
            if keep_ms is None or entry.at + keep_ms > now
        ]
        if query.cursor is not None:
            entries = [one for one in entries if f"{one[0]:015d}" < query.cursor]
        page = entries[::-1][: query.limit]
        sizes = accumulate(len(msgspec.json.encode(entry)) for _, entry in page)
        page = page[: max(1, sum(size <= MAX_PAGE_BYTES for size in sizes))]
        cursor = f"{page[-1][0]:015d}" if len(entries) > len(page) else None
        return AuditLog([entry for _, entry in page], cursor)
