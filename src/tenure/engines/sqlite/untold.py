"""Children that have not been told yet that a parent has ended.

A file has one writer, so everybody waits while a transaction notifies the children of a job. It
notifies at most TOLD_PER_STEP of them, in the order of their numbers, and stores which others are
due. The next claims and maintenance go on, each with as many. Meanwhile these children still wait
for a parent that is done, has failed or is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenure.core.moves import PARENT_FAILED, PARENTS_DONE
from tenure.model import states

TOLD_PER_STEP = 1_000  # by all operations of a transaction together: about 15 ms

_DONE, _FAILED, _DELETED = range(3)


class Untold:
    """What happened to a parent, and which of its children have to be told: those with numbers
    after `after` up to `last`. Later ones were enqueued after it happened."""

    __slots__ = ("after", "event", "id", "is_left", "last", "parent")

    def __init__(self, parent: int, id: str, event: states.Event, after: int, last: int) -> None:
        self.parent = parent  # its number
        self.id = id
        self.event = event
        self.after = after
        self.last = last
        self.is_left = False  # whether there are more than could be told now

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Untold:
        parent, id, code, after, last = row
        events = {_DONE: PARENTS_DONE, _FAILED: PARENT_FAILED, _DELETED: states.ParentDeleted(id)}
        return cls(parent, id, events[code], after, last)

    @property
    def row(self) -> tuple[int, str, int, int, int]:
        code = {PARENTS_DONE: _DONE, PARENT_FAILED: _FAILED}.get(self.event, _DELETED)
        return self.parent, self.id, code, self.after, self.last
