"""Error groups, and the audit log."""

from __future__ import annotations

from itertools import accumulate

import msgspec
from msgspec.structs import replace

from tenure.engines.memory.records import Records
from tenure.engines.memory.store import handles
from tenure.model import error_groups, ops, queries
from tenure.model.audit import MAX_PAGE_BYTES, AuditEntry, AuditLog
from tenure.model.error_groups import ErrorGroups
from tenure.model.ops import Answer


class Errors(Records):
    """Lists and mutes error groups. They are counted where jobs move (store.py)."""

    @handles(queries.ListErrors)
    def _list_errors(self, query: queries.ListErrors, now: int) -> ErrorGroups:
        groups = [
            replace(one, muted=one.group in self._muted)
            for one in self._errors.values()
            if query.queue in (None, one.queue) and not self._is_old(one, now)
        ]
        return error_groups.page_of(groups, query.limit, query.cursor)

    @handles(queries.ListAudit)
    def _list_audit(self, query: queries.ListAudit, now: int) -> AuditLog:
        """A cursor is the number of an entry. A service may also have stored some as records."""
        stored = [
            msgspec.json.decode(record.value, type=AuditEntry)
            for (space, _), record in self._side.items()
            if space == "audit"
        ]
        entries = [
            (n, entry)
            for n, entry in enumerate(sorted([*self._audit, *stored], key=lambda one: one.at))
            if self._keep_audit_ms is None or entry.at + self._keep_audit_ms > now
        ]
        if query.cursor is not None:
            entries = [one for one in entries if f"{one[0]:015d}" < query.cursor]
        page = entries[::-1][: query.limit]
        sizes = accumulate(len(msgspec.json.encode(entry)) for _, entry in page)
        page = page[: max(1, sum(size <= MAX_PAGE_BYTES for size in sizes))]
        cursor = f"{page[-1][0]:015d}" if len(entries) > len(page) else None
        return AuditLog([entry for _, entry in page], cursor)

    @handles(ops.MuteError)
    def _mute_error(self, op: ops.MuteError, now: int) -> Answer:
        if op.muted:
            self._muted.add(op.group)
        else:
            self._muted.discard(op.group)
        return ops.Ok()
