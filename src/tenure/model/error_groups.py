"""Error groups: how often failures of the same cause happened, and when.

Each writer counts in records of its own, so that failures in several processes do not wait for each
other; a reader adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from tenure.model.fingerprint import MAX_MESSAGE, group_of, other_group
from tenure.model.job import Failure, State

MAX_GROUPS = 3_000  # of one queue; further failures are counted together
OTHER = "(errors beyond the number of groups that a queue may have)"


class ErrorGroup(msgspec.Struct, frozen=True):
    """Failures of one queue that have the same cause.

    message and sample are of the last failure. dead: after how many of the failures the job was
    dead. muted: an operator does not want to be reminded of it.
    """

    group: str
    queue: str
    kind: str
    type: str
    message: str
    count: int
    first_at: int
    last_at: int
    sample: str
    dead: int = 0
    muted: bool = False

    def plus(self, later: ErrorGroup) -> ErrorGroup:
        """The sum of two counts of the same group."""
        is_last = (later.last_at, later.sample) >= (self.last_at, self.sample)
        last = later if is_last else self
        return ErrorGroup(
            self.group, self.queue, last.kind, last.type, last.message, self.count + later.count,
            min(self.first_at, later.first_at), last.last_at, last.sample, self.dead + later.dead,
        )  # fmt: skip


class ErrorGroups(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of error groups, and the cursor of the next page."""

    errors: list[ErrorGroup]
    cursor: str | None = None


def one_failure(
    queue: str, kind: str, job_id: str, failure: Failure, state: State, group: str = ""
) -> ErrorGroup:
    """A single failure, as a group. state: of the job afterwards."""
    found = group or group_of(queue, kind, failure)
    return ErrorGroup(
        found, queue, kind, failure.type, failure.message[:MAX_MESSAGE], 1, failure.at, failure.at,
        job_id, int(state is State.DEAD),
    )  # fmt: skip


def among_others(one: ErrorGroup) -> ErrorGroup:
    """The same failure as one of the group for those beyond MAX_GROUPS."""
    return replace(one, group=other_group(one.queue), kind="", type="", message=OTHER)


def page_of(groups: Iterable[ErrorGroup], limit: int, cursor: str | None) -> ErrorGroups:
    """The groups after the cursor, the most recently seen first."""
    ordered = sorted(groups, key=_place, reverse=True)
    if cursor is not None:
        ordered = [one for one in ordered if cursor_of(one) < cursor]
    page = ordered[:limit]
    return ErrorGroups(page, cursor_of(page[-1]) if len(ordered) > limit else None)


def _place(one: ErrorGroup) -> tuple[int, str]:
    return one.last_at, one.group


def cursor_of(one: ErrorGroup) -> str:
    """The position of a group in the list. Cursors sort like positions."""
    return f"{one.last_at:015d}.{one.group}"
