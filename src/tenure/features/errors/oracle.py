"""Error groups in the reference model."""

from __future__ import annotations

from msgspec.structs import replace

from tenure.engines.memory.memory_store import Part, Store, handles
from tenure.features.errors import data
from tenure.features.errors.data import ErrorGroup, ErrorGroups, ListErrors, MuteError
from tenure.model import ops, states
from tenure.model.job import Failure, Job
from tenure.model.ops import Answer


class Oracle(Part):
    """Counts, lists and mutes error groups."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._groups: dict[tuple[str, str], ErrorGroup] = {}  # by queue and group
        self._muted: set[str] = set()

    def failed(self, job: Job, change: states.Change, failure: Failure) -> states.Change:
        """Count the failure in its group, or in the one for all others if there are too many."""
        one = data.one_failure(job.queue, job.kind, job.id, failure, change.state)
        groups = sum(queue == one.queue for queue, _ in self._groups)
        if self._counted(one) is None and groups >= data.MAX_GROUPS:
            one = data.among_others(one)
        known = self._counted(one)
        self._groups[one.queue, one.group] = one if known is None else known.plus(one)
        return states.in_group(change, one.group)

    def maintained(self, now: int) -> None:
        self._groups = {
            place: one for place, one in self._groups.items() if not self._is_old(one, now)
        }

    def _counted(self, one: ErrorGroup) -> ErrorGroup | None:
        """What has been counted of the group, unless it is to be forgotten."""
        known = self._groups.get((one.queue, one.group))
        return None if known is None or self._is_old(known, one.last_at) else known

    def _is_old(self, one: ErrorGroup, now: int) -> bool:
        keep_ms = self.store.settings.keep_errors_ms
        return keep_ms is not None and one.last_at + keep_ms <= now

    @handles(ListErrors)
    def _list(self, query: ListErrors, now: int) -> ErrorGroups:
        groups = [
            replace(one, muted=one.group in self._muted)
            for one in self._groups.values()
            if query.queue in (None, one.queue) and not self._is_old(one, now)
        ]
        return data.page_of(groups, query.limit, query.cursor)

    @handles(MuteError)
    def _mute(self, op: MuteError, now: int) -> Answer:
        if op.muted:
            self._muted.add(op.group)
        else:
            self._muted.discard(op.group)
        return ops.Ok()
