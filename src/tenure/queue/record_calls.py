"""Calls for what a store keeps besides jobs: error groups, the audit log and rates."""

from __future__ import annotations

from datetime import datetime

from tenure.errors import NotFound
from tenure.model import ops, queries
from tenure.model.audit import AuditLog
from tenure.model.error_groups import ErrorGroups
from tenure.model.fields import MAX_LISTED, moment_ms, validated
from tenure.model.rates import Per, Rates
from tenure.queue.arguments import good
from tenure.queue.sync_async import Caller, Steps, both

_BY_DEFAULT: dict[Per, int] = {"minute": 3_600_000, "hour": 7 * 86_400_000}


class ErrorCalls(Caller):
    """The error groups of a store: failures of the same cause."""

    def _list(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Steps[ErrorGroups]:
        """List error groups: failures of the same cause, with their count, when they were first and
        last seen, and a sample. The most recently seen come first. Pass the `cursor` of a page to
        get the next one."""
        return good((yield validated(queries.ListErrors(queue, limit, cursor))), ErrorGroups)

    def _mute(self, group: str) -> Steps[None]:
        """Mark an error group as muted. It is still counted and listed. Raises NotFound."""
        yield from self._known_group(group)
        (answer,) = yield [validated(ops.MuteError(group))]
        good(answer, ops.Ok)

    def _unmute(self, group: str) -> Steps[None]:
        """Mark an error group as not muted. Raises NotFound."""
        yield from self._known_group(group)
        (answer,) = yield [validated(ops.MuteError(group, muted=False))]
        good(answer, ops.Ok)

    def _known_group(self, group: str) -> Steps[None]:
        """Raise NotFound if there is no such error group."""
        cursor: str | None = None
        while True:
            query = queries.ListErrors(None, MAX_LISTED, cursor)
            found = good((yield query), ErrorGroups)
            if any(one.group == group for one in found.errors):
                return
            cursor = found.cursor
            if cursor is None:
                raise NotFound(f"there is no error group {group!r:.80}")

    list, alist = both(_list)
    mute, amute = both(_mute)
    unmute, aunmute = both(_unmute)


class RecordCalls(Caller):
    """A part of Calls."""

    def _audit(self, *, limit: int = 100, cursor: str | None = None) -> Steps[AuditLog]:
        """List the audit log, newest first: who changed what, and why (see `audited`). Pass the
        `cursor` of a page to get the next one."""
        return good((yield validated(queries.ListAudit(limit, cursor))), AuditLog)

    def _rates(
        self, queue: str | None = None, *, per: Per = "minute", since: datetime | None = None
    ) -> Steps[Rates]:
        """Return what happened in one queue, or in all: jobs enqueued, claimed, done, failed and
        dead, and how long they waited and ran, by minute or by hour. since: by default, an hour
        ago, or a week ago if by hour. Minutes are kept for a day, hours for 90 days."""
        now = self._store.clock.now_ms()
        start = now - _BY_DEFAULT[per] if since is None else moment_ms("since", since)
        wanted = validated(queries.ListRates(max(0, start), now, queue, per))
        return good((yield wanted), Rates)

    audit, aaudit = both(_audit)
    rates, arates = both(_rates)
