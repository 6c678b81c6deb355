"""Calls on error groups."""

from __future__ import annotations

from tenure.errors import NotFound
from tenure.features.errors.data import ErrorGroups, ListErrors, MuteError
from tenure.model import ops
from tenure.model.fields import MAX_LISTED, validated
from tenure.model.ops import good
from tenure.queue.sync_async import Caller, Steps, both


class ErrorCalls(Caller):
    """The error groups of a store: failures of the same cause."""

    def _list(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Steps[ErrorGroups]:
        """List error groups: failures of the same cause, with their count, when they were first and
        last seen, and a sample. The most recently seen come first. Pass the `cursor` of a page to
        get the next one."""
        return good((yield validated(ListErrors(queue, limit, cursor))), ErrorGroups)

    def _mute(self, group: str) -> Steps[None]:
        """Mark an error group as muted. It is still counted and listed. Raises NotFound."""
        yield from self._known_group(group)
        (answer,) = yield [validated(MuteError(group))]
        good(answer, ops.Ok)

    def _unmute(self, group: str) -> Steps[None]:
        """Mark an error group as not muted. Raises NotFound."""
        yield from self._known_group(group)
        (answer,) = yield [validated(MuteError(group, muted=False))]
        good(answer, ops.Ok)

    def _known_group(self, group: str) -> Steps[None]:
        """Raise NotFound if there is no such error group."""
        cursor: str | None = None
        while True:
            query = ListErrors(None, MAX_LISTED, cursor)
            found = good((yield query), ErrorGroups)
            if any(one.group == group for one in found.errors):
                return
            cursor = found.cursor
            if cursor is None:
                raise NotFound(f"there is no error group {group!r:.80}")

    list, alist = both(_list)
    mute, amute = both(_mute)
    unmute, aunmute = both(_unmute)


class HasErrors(Caller):
    """A part of FeatureCalls."""

    @property
    def errors(self) -> ErrorCalls:
        """Calls on error groups: list, mute, unmute."""
        return ErrorCalls(self._store)


CALLS = HasErrors
