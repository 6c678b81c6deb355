"""The audit log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from tenure.features.audit.data import AuditEntry, key_of
from tenure.model import ops
from tenure.model.fields import Label, PageLimit
from tenure.model.job import new_ids
from tenure.model.ops import Op, good
from tenure.model.records import NewRecord, PutRecords
from tenure.queue import Store
from tenure.server.auth import Scope, Token
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


NOTES_PER_HOUR = 100  # that a token which is not an admin's adds to the audit log


class Check:
    """Signs the changes of a token."""

    kinds = (ops.NotedOp, ops.NotedGrantedOp)

    def __init__(self, store: Store, token: Token, *, acts_for_dialect: bool) -> None:
        """acts_for_dialect: what is done is part of another call, and not an operator's change."""
        self._store = store
        self._token = token
        self._is_operator = token.allows(Scope.ADMIN) and not acts_for_dialect
        self._notes_left, self._notes_until = 0, float("-inf")
        self._notes_owed: list[AuditEntry] = []  # about changes that are not recorded

    async def checked(self, batch: Sequence[Op]) -> list[Op]:
        """The operations with the token's name in their notes, which a client cannot choose."""
        signed = list(map(self._signed, batch))
        if self._notes_owed:
            await self._pay_notes()
        return signed

    def _signed(self, op: Op) -> Op:
        """What an admin's token changes is always noted."""
        if isinstance(op, ops.Once):
            return replace(op, ops=tuple(map(self._signed, op.ops)))
        if not isinstance(op, ops.NotedOp | ops.NotedGrantedOp):
            return op
        if not self._is_operator:
            if op.note is None:
                return op
            if not self._may_note():
                return replace(op, note=None)
        note, token = op.note or ops.Note(), self._token
        return replace(op, note=replace(note, by=token.name if token.hash else note.by))

    def _may_note(self) -> bool:
        """Whether a token that is not an admin's may add another entry to the audit log. They are
        optional; without a bound, they could bury the entries of admins."""
        now = self._store.clock.monotonic()
        if now >= self._notes_until:
            if self._notes_left < 0:
                reason = "the changes since the last such entry that were not recorded, at most"
                self._owe_note(reason, -self._notes_left)
            self._notes_left, self._notes_until = NOTES_PER_HOUR, now + 3600
        self._notes_left -= 1
        if self._notes_left == -1:
            self._owe_note(
                f"over {NOTES_PER_HOUR} changes: for an hour, further ones of this token are "
                "carried out, but not recorded one by one"
            )
        return self._notes_left >= 0

    def _owe_note(self, reason: str, count: int | None = None) -> None:
        at, by = self._store.clock.now_ms(), self._token.name
        entry = AuditEntry(at, by, "not_recorded", reason=reason, count=count)
        self._notes_owed.append(entry)

    async def _pay_notes(self) -> None:
        """Record that changes are not recorded, before they are made."""
        owed, self._notes_owed = self._notes_owed, []
        keep_ms = self._store.settings.keep_audit_ms
        keys = [key_of(one, new_ids(one.at, 1)[0]) for one in owed]
        records = [
            NewRecord("audit", key, msgspec.json.encode(one), keep_ms)
            for key, one in zip(keys, owed, strict=True)
        ]
        try:
            (answer,) = await self._store.ado([PutRecords(tuple(records))])
            good(answer, ops.Ok)
        except BaseException:
            self._notes_owed += owed
            raise


ROUTES = [
    Route("GET", "/v1/audit", list_audit, scope=Scope.READ, query=AuditQuery, answer=Entries),
]
