"""Operations and queries, and their answers, as data.

An operation asks the state machine to move; a query reads one snapshot. Both are plain tagged
structs, so they can be kept, sent, replayed and compared. An operation that cannot be done is
answered with a TenureError as a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from tenure import states
from tenure.cron import CatchUp
from tenure.errors import InvalidInput, TenureError
from tenure.job import Job, JobSpec, State, null

IfExists = Literal["error", "skip"]


class Op(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="op", omit_defaults=True):
    """The base of every operation."""


class Enqueue(Op, frozen=True):
    """Add jobs, all or none; with if_exists="skip" those whose id or unique key is held are
    passed over and the holder's id is answered."""

    jobs: tuple[JobSpec, ...]
    if_exists: IfExists = "error"


class Claim(Op, frozen=True):
    """Lease up to `limit` ready jobs, of the queues in the order given."""

    queues: tuple[str, ...]
    worker: str
    lease_ms: int
    limit: int = 1
    tenant: str | None = None
    not_groups: tuple[str, ...] = ()


class Ack(Op, frozen=True):
    """The job is done; `then` is enqueued in the same transaction. keep=False removes the job."""

    id: str
    token: int
    result: msgspec.Raw = msgspec.field(default_factory=null)
    then: tuple[JobSpec, ...] = ()
    keep: bool = True


class Fail(Op, frozen=True):
    """The attempt failed: pending again after the backoff, or dead, or cancelled."""

    id: str
    token: int
    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in_ms: int | None = None
    fatal: bool = False
    cancel: bool = False

    def event(self) -> states.Failed:
        """What happens to the job."""
        return states.Failed(
            self.message, self.type, self.traceback, self.retry_in_ms, self.fatal, self.cancel
        )


class Extend(Op, frozen=True):
    """The lease now ends `lease_ms` from now."""

    id: str
    token: int
    lease_ms: int


class Release(Op, frozen=True):
    """Give the job back with its attempt, for now or after a delay."""

    id: str
    token: int
    delay_ms: int = 0


class Progress(Op, frozen=True):
    """Report how far the work is."""

    id: str
    token: int
    percent: int
    note: str | None = None


class Cancel(Op, frozen=True):
    """Cancel those of the jobs that have not ended."""

    ids: tuple[str, ...]


class Replay(Op, frozen=True):
    """Make those of the jobs that are dead or cancelled pending again."""

    ids: tuple[str, ...]


class Delete(Op, frozen=True):
    """Remove those of the jobs that are in one of these states (any, if none is named)."""

    ids: tuple[str, ...]
    states: tuple[State, ...] = ()


class SetLimit(Op, frozen=True):
    """Bound a queue, a tenant of it, or a group; what is None stays as it was.

    A tenant or group "*" is the default for those without a limit of their own.
    """

    queue: str
    tenant: str | None = None
    group: str | None = None
    concurrency: int | None = None
    rate: int | None = None
    per_ms: int | None = None
    weight: int | None = None


class ClearLimit(Op, frozen=True):
    """Remove the bounds that SetLimit made."""

    queue: str
    tenant: str | None = None
    group: str | None = None


class Pause(Op, frozen=True):
    """Give out no job of the queue, the tenant or the group."""

    queue: str
    tenant: str | None = None
    group: str | None = None


class Resume(Op, frozen=True):
    """End a pause."""

    queue: str
    tenant: str | None = None
    group: str | None = None


class TakeSlot(Op, frozen=True):
    """Mark that `holder` is active under (scope, key) until the time is over; a second take
    renews. With a limit, taken only while fewer others hold one."""

    scope: str
    key: str
    holder: str
    ttl_ms: int
    limit: int | None = None


class DropSlot(Op, frozen=True):
    """Remove the mark."""

    scope: str
    key: str
    holder: str


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that is enqueued at the times of a cron expression."""

    name: str
    cron: str
    job: JobSpec
    next_at: int = 0
    tz: str = "UTC"
    catch_up: CatchUp = "last"
    last_at: int | None = None


class PutSchedule(Op, frozen=True):
    """Add or replace a schedule. One that exists with the same cron and tz keeps its next time. Of
    another, the store computes it from its own time, unless a copy brings it along."""

    schedule: Schedule


class DropSchedule(Op, frozen=True):
    """Remove a schedule."""

    name: str


class Fire(Op, frozen=True):
    """Enqueue a schedule's job under this id, if its next time is still `tick` and has come by the
    store's time: of many schedulers that try, one fires. A next time that is too far ahead is
    corrected."""

    name: str
    tick: int
    id: str


class Maintain(Op, frozen=True):
    """Do what time asks for, at most `limit` of each kind; None keeps finished jobs for good."""

    limit: int = 1000
    keep_done_ms: int | None = None
    keep_cancelled_ms: int | None = None
    keep_dead_ms: int | None = None


class Reconcile(Op, frozen=True):
    """Recount a queue's counters, or a tenant's or group's, from its jobs."""

    queue: str
    tenant: str | None = None
    group: str | None = None


class ReconcileSlots(Op, frozen=True):
    """Recount the slots under (scope, key)."""

    scope: str
    key: str


class Once(Op, frozen=True):
    """Run operations unless this key was used before; then answer as the first time, or with a
    Conflict if it was used for other operations. The key is kept for as long as ONCE_MS, with the
    answers. `fingerprint` tells whether operations are the same, where they are not sent exactly
    alike each time; without it, they are compared themselves."""

    key: str
    ops: tuple[
        Enqueue
        | Claim
        | Ack
        | Fail
        | Extend
        | Release
        | Progress
        | Cancel
        | Replay
        | Delete
        | SetLimit
        | ClearLimit
        | Pause
        | Resume
        | TakeSlot
        | DropSlot
        | PutSchedule
        | DropSchedule
        | Fire
        | Maintain
        | Reconcile
        | ReconcileSlots,
        ...,
    ]
    fingerprint: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job, and what its store knows about it besides: all that it takes to have it elsewhere."""

    job: Job
    ready: bool = False  # of a pending job: its time was seen to have come
    waits_for: tuple[str, ...] = ()  # those of `after` that a waiting job still waits for


class Import(Op, frozen=True):
    """Add jobs of another store as they are, in the order given, all or none; those whose id is
    there are skipped. Later claims of a job have greater tokens than the one it brought."""

    entries: tuple[Entry, ...]


ONCE_MS = 15 * 60_000  # by then, whoever asked has the answer or has given up
BACK_MS = 10 * 60_000  # a store's clock may be set back so far, and no schedule fires again

# Those after which there is nothing for others to look at.
QUIET = (Claim, Extend, Progress, TakeSlot, DropSlot)


def flat(batch: Sequence[Op]) -> Iterator[Op]:
    """The operations of a batch, also those that are to be done once."""
    for op in batch:
        if isinstance(op, Once):
            yield from op.ops
        else:
            yield op


def answered(batch: Sequence[Op], answers: Sequence[Answer]) -> Iterator[tuple[Op, Answer]]:
    """The `flat` operations of a batch, each with its answer."""
    for op, answer in zip(batch, answers, strict=True):
        if not isinstance(op, Once):
            yield op, answer
        elif isinstance(answer, Answers):
            yield from zip(op.ops, answer.answers, strict=True)
        else:
            yield from ((one, answer) for one in op.ops)


# Answers ----------------------------------------------------------------------------------------


class Ok(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """It is done."""


class Enqueued(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The ids in the order asked; created[i] is False where the job existed."""

    ids: list[str]
    created: list[bool]
    at: int


class Leased(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The jobs that were claimed."""

    jobs: list[Job]


class Moved(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """What became of the job."""

    state: State
    run_at: int


class Changed(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """How many changed; ids that do not exist; ids whose unique key is held, and by whom."""

    count: int
    missing: tuple[str, ...] = ()
    refused: dict[str, str] = {}


class Slots(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """How many hold a slot now, and whether this one does."""

    count: int
    held: bool


class Fired(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Whether this call was the one that fired. False if the time was skipped, too."""

    fired: bool


class Maintained(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """How many of each kind were found."""

    promoted: int = 0
    leases: int = 0
    expired: int = 0
    slots: int = 0
    purged: int = 0

    @property
    def total(self) -> int:
        return self.promoted + self.leases + self.expired + self.slots + self.purged


class Answers(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """What each operation of a Once was answered."""

    answers: list[Answer]


class Corrected(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """What was added to each counter that was wrong."""

    by: dict[str, int]


# Queries and what they answer -------------------------------------------------------------------


class Query(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="query", omit_defaults=True):
    """The base of every query."""


class Filter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which jobs; what is None or empty does not matter."""

    queue: str | None = None
    states: tuple[State, ...] = ()
    tenant: str | None = None
    group: str | None = None
    kind: str | None = None
    finished_before: int | None = None


class GetJob(Query, frozen=True):
    """One job by its id."""

    id: str


class ListJobs(Query, frozen=True):
    """Jobs, newest first; of one final state, the last to finish first."""

    filter: Filter = Filter()
    limit: int = 50
    cursor: str | None = None


class FindIds(Query, frozen=True):
    """Like ListJobs, but only the ids."""

    filter: Filter = Filter()
    limit: int = 1000
    cursor: str | None = None


class NextDue(Query, frozen=True):
    """When the next delayed job of these queues is due or a lease of theirs ends."""

    queues: tuple[str, ...]


class OldestReady(Query, frozen=True):
    """Since when the ready job of these queues waits that waits longest; of each tenant, group
    and priority, the next in line counts."""

    queues: tuple[str, ...]


class GetStats(Query, frozen=True):
    """Counts of one queue or of all."""

    queue: str | None = None


class ListTenants(Query, frozen=True):
    """Counts of a queue's tenants in the order of their names, or of one of them."""

    queue: str
    limit: int = 100
    after: str | None = None
    tenant: str | None = None


class ListGroups(Query, frozen=True):
    """Counts of the groups of a queue's tenant in the order of their names."""

    queue: str
    tenant: str = ""
    limit: int = 100
    after: str | None = None


class ListLimits(Query, frozen=True):
    """Limits and pauses of one queue or of all."""

    queue: str | None = None


class ListSlots(Query, frozen=True):
    """Who holds a slot under (scope, key), by name."""

    scope: str
    key: str


class ListSchedules(Query, frozen=True):
    """All schedules by name."""


class GetTimetable(Query, frozen=True):
    """All schedules by name, and the store's time."""


class Export(Query, frozen=True):
    """Jobs with all that Import needs, in the order in which they were enqueued, from after the
    cursor on."""

    limit: int = 1000
    cursor: str | None = None


class Page(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Some jobs, and the cursor that continues after them."""

    jobs: list[Job]
    cursor: str | None = None


class Ids(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Some ids, and the cursor that continues after them."""

    ids: list[str]
    cursor: str | None = None


class Exported(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Some jobs, fewer than asked for at the end, and the cursor that continues after them."""

    entries: list[Entry]
    cursor: str | None


class Due(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """A time, which may have passed already; None if there is none."""

    at: int | None


class Counts(msgspec.Struct, frozen=True):
    """Jobs by state. A pending job is `delayed` until its time has come, then `ready`."""

    waiting: int = 0
    delayed: int = 0
    ready: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def pending(self) -> int:
        """Delayed and ready."""
        return self.delayed + self.ready

    @property
    def unfinished(self) -> int:
        """All that has not ended."""
        return self.waiting + self.delayed + self.ready + self.leased


class QueueStats(Counts, frozen=True, kw_only=True):
    """The counts of a queue."""

    queue: str
    paused: bool = False


class Stats(Counts, frozen=True, kw_only=True):
    """The counts of all queues together, and of each. log_bytes: how long the write-ahead log of
    a SQLite file is; it grows while some program leaves a transaction open."""

    queues: dict[str, QueueStats]
    log_bytes: int | None = None


def as_counts(counts: Counts) -> dict[str, int]:
    """The counts by name."""
    return {field.name: getattr(counts, field.name) for field in msgspec.structs.fields(Counts)}


def add(one: Counts, other: Counts) -> Counts:
    """Two counts together."""
    theirs = as_counts(other)
    return Counts(**{name: count + theirs[name] for name, count in as_counts(one).items()})


def overall(queues: list[QueueStats]) -> Stats:
    """Add the counts up."""
    names = [field.name for field in msgspec.structs.fields(Counts)]
    sums = {name: sum(getattr(one, name) for one in queues) for name in names}
    return Stats(**sums, queues={one.queue: one for one in queues})


class TenantStats(Counts, frozen=True, kw_only=True):
    """The counts of a tenant in a queue."""

    queue: str
    tenant: str


class GroupStats(Counts, frozen=True, kw_only=True):
    """The counts of a group of a tenant in a queue."""

    queue: str
    tenant: str
    group: str


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What bounds a queue (tenant and group None), a tenant (group None) or a group."""

    queue: str
    tenant: str | None = None
    group: str | None = None
    concurrency: int | None = None
    rate: int | None = None
    per_ms: int | None = None
    weight: int | None = None
    paused: bool = False

    @property
    def rate_of(self) -> tuple[int | None, int | None]:
        return self.rate, self.per_ms


class Slot(msgspec.Struct, frozen=True):
    """One mark."""

    holder: str
    expires_at: int


class Timetable(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Schedules, and the store's time, by which they are due."""

    now: int
    schedules: list[Schedule]


Answer = (
    Ok
    | Enqueued
    | Leased
    | Moved
    | Changed
    | Slots
    | Fired
    | Maintained
    | Corrected
    | Answers
    | TenureError
)
Found = (
    Job
    | Page
    | Ids
    | Exported
    | Due
    | list[QueueStats]
    | list[TenantStats]
    | list[GroupStats]
    | list[Limit]
    | list[Slot]
    | list[Schedule]
    | Timetable
    | TenureError
)


def parse_cursor(cursor: str, parts: int) -> list[int] | InvalidInput:
    """The place in a list that a cursor stands for."""
    try:
        start = [int(part) for part in cursor.split(".")] if cursor.isascii() else []
    except ValueError:
        start = []
    if len(start) == parts and all(0 <= part < 2**63 for part in start):
        return start
    return InvalidInput("cursor", f"{cursor!r} is not one that a list gave")


# How a turn is counted, on every engine: serving a tenant moves its place by TURN / weight, so
# that between two turns of one tenant another gets at most its weight.
TURN = 1_000_000
MAX_WEIGHT = 1_000


def stride(weight: int | None) -> int:
    """How far a tenant of this weight moves back when it is served."""
    return -(-TURN // (weight or 1))
