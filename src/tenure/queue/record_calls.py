"""Calls for what a store keeps besides jobs: error groups, the audit log and rates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import NotFound
from tenure.model import ops, queries
from tenure.model.audit import AuditLog
from tenure.model.error_groups import ErrorGroups
from tenure.model.fields import MAX_LISTED, moment_ms, validated
from tenure.model.ops import Note, Op
from tenure.model.rates import Per, Rates
from tenure.queue.arguments import good
from tenure.queue.sync_async import Doer, Steps, Wanted, Within, awaiting, blocking

_BY_DEFAULT: dict[Per, int] = {"minute": 3_600_000, "hour": 7 * 86_400_000}


class RecordCalls(Doer):
    """A part of Calls."""

    clock: Clock

    def _errors(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Steps[ErrorGroups]:
        """List error groups: failures of the same cause, with their count, when they were first and
        last seen, and a sample. The most recently seen come first. Pass the `cursor` of a page to
        get the next one."""
        return good((yield validated(queries.ListErrors(queue, limit, cursor))), ErrorGroups)

    def _mute_error(self, group: str) -> Steps[None]:
        """Mark an error group as muted. It is still counted and listed. Raises NotFound."""
        yield from self._known_group(group)
        (answer,) = yield [validated(ops.MuteError(group))]
        good(answer, ops.Ok)

    def _unmute_error(self, group: str) -> Steps[None]:
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
        now = self.clock.now_ms()
        start = now - _BY_DEFAULT[per] if since is None else moment_ms("since", since)
        wanted = validated(queries.ListRates(max(0, start), now, queue, per))
        return good((yield wanted), Rates)

    errors: Final = blocking(_errors)
    aerrors: Final = awaiting(_errors)
    mute_error: Final = blocking(_mute_error)
    amute_error: Final = awaiting(_mute_error)
    unmute_error: Final = blocking(_unmute_error)
    aunmute_error: Final = awaiting(_unmute_error)
    audit: Final = blocking(_audit)
    aaudit: Final = awaiting(_audit)
    rates: Final = blocking(_rates)
    arates: Final = awaiting(_rates)


def with_note(wanted: Wanted, note: Note) -> Wanted:
    """The same step, with a note on its operations that can have one."""
    if isinstance(wanted, queries.Query):
        return wanted
    if isinstance(wanted, Within):
        return Within(wanted.connection, noted(wanted.batch, note))
    return noted(wanted, note)


def noted(batch: Sequence[Op], note: Note) -> list[Op]:
    return [_noted(op, note) for op in batch]


def _noted(op: Op, note: Note) -> Op:
    if isinstance(op, ops.Once):
        return replace(op, ops=tuple(noted(op.ops, note)))
    if isinstance(op, ops.NotedOp | ops.NotedGrantedOp) and op.note is None:
        return replace(op, note=note)
    return op
