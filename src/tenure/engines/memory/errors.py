"""Error groups."""

from __future__ import annotations

from msgspec.structs import replace

from tenure.engines.memory.records import Records
from tenure.engines.memory.store import handles
from tenure.model import error_groups, ops, queries
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

    @handles(ops.MuteError)
    def _mute_error(self, op: ops.MuteError, now: int) -> Answer:
        if op.muted:
            self._muted.add(op.group)
        else:
            self._muted.discard(op.group)
        return ops.Ok()
