"""Calls on the audit log."""

from __future__ import annotations

from tenure.features.audit.data import AuditLog, ListAudit
from tenure.model.fields import validated
from tenure.model.ops import good
from tenure.queue.sync_async import Caller, Steps, both


class HasAudit(Caller):
    """A part of FeatureCalls."""

    def _audit(self, *, limit: int = 100, cursor: str | None = None) -> Steps[AuditLog]:
        """List the audit log, newest first: who changed what, and why (see `audited`). Pass the
        `cursor` of a page to get the next one."""
        return good((yield validated(ListAudit(limit, cursor))), AuditLog)

    audit, aaudit = both(_audit)


CALLS = HasAudit
