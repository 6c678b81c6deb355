"""Error groups: how often failures of the same cause happened, and when.

Each writer counts in records of its own, so that failures in several processes do not wait for each
other; a reader adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from tenure.features.errors.fingerprint import MAX_MESSAGE, group_of, other_group
from tenure.model.fields import Label, Name, PageLimit
from tenure.model.job import Failure, State
from tenure.model.ops import NotedOp
from tenure.model.queries import Query
from tenure.model.record_queries import Read, every

MAX_GROUPS = 3_000  # of one queue; further failures are counted together
HOUR_MS = 3_600_000
MOST_HOURS = 24
OTHER = "(errors beyond the number of groups that a queue may have)"


class ErrorGroup(msgspec.Struct, frozen=True):
    """Failures of one queue that have the same cause.

    message and sample are those of the last failure. dead: how many of the failures made the job
    dead. muted: an operator has silenced it. hours: failures in each of the hours up to that of
    last_at, at most MOST_HOURS.
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
    hours: tuple[int, ...] = ()

    def plus(self, later: ErrorGroup) -> ErrorGroup:
        """The sum of two counts of the same group."""
        is_last = (later.last_at, later.sample) >= (self.last_at, self.sample)
        last = later if is_last else self
        return ErrorGroup(
            self.group, self.queue, last.kind, last.type, last.message, self.count + later.count,
            min(self.first_at, later.first_at), last.last_at, last.sample, self.dead + later.dead,
            hours=_hours_of(self, later),
        )  # fmt: skip


def _hours_of(one: ErrorGroup, later: ErrorGroup) -> tuple[int, ...]:
    """The failures of two groups by hour."""
    ends = one.last_at // HOUR_MS, later.last_at // HOUR_MS
    if ends[0] == ends[1] and len(later.hours) == 1 and one.hours:  # as for almost all failures
        return (*one.hours[:-1], one.hours[-1] + later.hours[0])
    sums = [0] * MOST_HOURS  # the last hour first
    for group, end in zip((one, later), ends, strict=True):
        for ago, count in enumerate(reversed(group.hours), max(ends) - end):
            if ago < MOST_HOURS:
                sums[ago] += count
    while sums and not sums[-1]:
        sums.pop()
    return tuple(reversed(sums))


class ListErrors(Query, frozen=True):
    """Error groups of one queue, or of all queues, the most recently seen first."""

    by_queue = True

    queue: Name | None = None
    limit: PageLimit = 100
    cursor: Label | None = None


class MuteError(NotedOp, frozen=True):
    """Mute or unmute an error group."""

    for_all = "in_turn"

    group: Name
    muted: bool = True


class ErrorGroups(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A page of error groups, and the cursor of the next page."""

    errors: list[ErrorGroup]
    cursor: str | None = None


def one_failure(
    queue: str, kind: str, job_id: str, failure: Failure, state: State, group: str = ""
) -> ErrorGroup:
    """A single failure, as a group. state: the state of the job afterwards."""
    found = group or group_of(queue, kind, failure)
    return ErrorGroup(
        found, queue, kind, failure.type, failure.message[:MAX_MESSAGE], 1, failure.at, failure.at,
        job_id, int(state is State.DEAD), hours=(1,),
    )  # fmt: skip


def among_others(one: ErrorGroup) -> ErrorGroup:
    """The same failure, counted in the group for errors beyond MAX_GROUPS."""
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


# As records ---------------------------------------------------------------------------------------

_COUNT, _MUTE = "g", "m"  # the first character of a key
_END, _PAST = "\x01", "\x02"  # ends the name of a queue
_decode = msgspec.json.Decoder(ErrorGroup).decode


def key_of(one: ErrorGroup, writer: str) -> str:
    """The key of a writer's count of a group."""
    return f"{_COUNT}{one.queue}{_END}{one.group}.{writer}"


def keys_of(queue: str | None) -> tuple[str, str]:
    """The first and the last key of the counts of a queue, or of all queues."""
    if queue is None:
        return _COUNT, f"{_COUNT}\U0010ffff"
    return f"{_COUNT}{queue}{_END}", f"{_COUNT}{queue}{_PAST}"


def keys_of_group(one: ErrorGroup) -> tuple[str, str]:
    """The first and the last key of the counts of a group, of all writers."""
    return key_of(one, ""), key_of(one, "\U0010ffff")


def mute_key(group: str) -> str:
    """The key of the record that mutes a group."""
    return f"{_MUTE}{group}"


def is_count(key: str) -> bool:
    """Whether this is the key of a count."""
    return key.startswith(_COUNT)


def list_errors(read: Read, query: ListErrors) -> ErrorGroups:
    """Add up what each writer has counted."""
    found: dict[tuple[str, str], ErrorGroup] = {}
    for record in every(read, "error", *keys_of(query.queue)):
        one = _decode(record.value)
        known = found.get((one.queue, one.group))
        found[one.queue, one.group] = one if known is None else known.plus(one)
    muted = {record.key[1:] for record in every(read, "error", _MUTE, f"{_MUTE}\U0010ffff")}
    groups = [
        replace(one, muted=one.group in muted)
        for one in found.values()
        if query.queue in (None, one.queue)
    ]
    return page_of(groups, query.limit, query.cursor)
