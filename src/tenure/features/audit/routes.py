"""The audit log."""

from __future__ import annotations

import msgspec

from tenure.features.audit.data import AuditEntry
from tenure.model.fields import Label, PageLimit
from tenure.server.auth import Scope
from tenure.server.bodies import Body
from tenure.server.route import Call, Route


class AuditQuery(Body):
    limit: PageLimit = 100
    cursor: Label | None = None


class Entries(msgspec.Struct):
    entries: list[AuditEntry]
    cursor: str | None = None


async def list_audit(call: Call, query: AuditQuery) -> Entries:
    """List what operators changed, newest first. A change made by a token with the scope `admin` is
    recorded with the token's name, and with the reason in the header Tenure-Reason, if any."""
    found = await call.queue.aaudit(limit=query.limit, cursor=query.cursor)
    return Entries(found.entries, found.cursor)


ROUTES = [
    Route("GET", "/v1/audit", list_audit, scope=Scope.READ, query=AuditQuery, answer=Entries),
]
