"""Operations and queries, and their answers, as data.

An operation asks the state machine to move; a query reads one snapshot. Both are plain tagged
structs, so they can be kept, sent, replayed and compared. An operation that cannot be done is
answered with a TenureError as a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tenure.errors import InvalidInput, TenureError
from tenure.model import states
from tenure.model.cron import CatchUp, next_tick
from tenure.model.fields import (
    MAX_JOBS_PER_CALL,
    ClaimLimit,
    Concurrency,
    GroupNames,
    JobIds,
    Label,
    MaintainLimit,
    Moment,
    Name,
    Percent,
    PositiveSpan,
    QueueNames,
    Rate,
    Span,
    Token,
    Weight,
    check_together,
)
from tenure.model.job import Job, JobSpec, State, null

IfExists = Literal["error", "skip"]
NewJobs = Annotated[tuple[JobSpec, ...], Meta(max_length=MAX_JOBS_PER_CALL)]


class Op(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="op", omit_defaults=True):
    """The base of every operation."""


class Enqueue(Op, frozen=True):
    """Add jobs, all or none; with if_exists="skip" those whose id or unique key is held are
    passed over and the holder's id is answered."""

    jobs: NewJobs
    if_exists: IfExists = "error"


class Claim(Op, frozen=True):
    """Lease up to `limit` ready jobs, of the queues in the order given."""

    queues: QueueNames
    worker: Name
    lease_ms: PositiveSpan
    limit: ClaimLimit = 1
    tenant: Label | None = None
    not_groups: GroupNames = ()


class Ack(Op, frozen=True):
    """The job is done; `then` is enqueued in the same transaction. keep=False removes the job."""

    id: Name
    token: Token
    result: msgspec.Raw = msgspec.field(default_factory=null)
    then: NewJobs = ()
    keep: bool = True


class Fail(Op, frozen=True):
    """The attempt failed: pending again after the backoff, or dead, or cancelled."""

    id: Name
    token: Token
    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in_ms: Span | None = None
    fatal: bool = False
    cancel: bool = False

    def event(self) -> states.Failed:
        """What happens to the job."""
        return states.Failed(
            self.message, self.type, self.traceback, self.retry_in_ms, self.fatal, self.cancel
        )


class Extend(Op, frozen=True):
    """The lease now ends `lease_ms` from now."""

    id: Name
    token: Token
    lease_ms: PositiveSpan


class Release(Op, frozen=True):
    """Give the job back with its attempt, for now or after a delay."""

    id: Name
    token: Token
    delay_ms: Span = 0


class Progress(Op, frozen=True):
    """Report how far the work is."""

    id: Name
    token: Token
    percent: Percent
    note: Label | None = None


class Cancel(Op, frozen=True):
    """Cancel those of the jobs that have not ended."""

    ids: JobIds


class Replay(Op, frozen=True):
    """Make those of the jobs that are dead or cancelled pending again."""

    ids: JobIds


class Delete(Op, frozen=True):
    """Remove those of the jobs that are in one of these states (any, if none is named)."""

    ids: JobIds
    states: tuple[State, ...] = ()


class SetLimit(Op, frozen=True):
    """Bound a queue, a tenant of it, or a group; what is None stays as it was.

    A tenant or group "*" is the default for those without a limit of their own.
    """

    queue: Name
    tenant: Label | None = None
    group: Name | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    per_ms: PositiveSpan | None = None
    weight: Weight | None = None

    def check(self) -> None:
        """What the fields must be together."""
        _check_scope(self)
        if (self.rate is None) != (self.per_ms is None):
            raise InvalidInput("rate", "rate and per belong together: rate=100, per=60")
        if self.rate is not None and self.tenant is not None:
            raise InvalidInput("rate", "a rate is of a whole queue, not of a tenant or group")
        if self.weight is not None and (self.tenant is None or self.group is not None):
            raise InvalidInput("weight", "a weight is of a tenant")
        if self.concurrency is None and self.rate is None and self.weight is None:
            raise InvalidInput("limit", "give concurrency, rate and per, or weight")


class ClearLimit(Op, frozen=True):
    """Remove the bounds that SetLimit made."""

    queue: Name
    tenant: Label | None = None
    group: Name | None = None

    def check(self) -> None:
        """What the fields must be together."""
        _check_scope(self)


class Pause(Op, frozen=True):
    """Give out no job of the queue, the tenant or the group."""

    queue: Name
    tenant: Label | None = None
    group: Name | None = None

    def check(self) -> None:
        """What the fields must be together."""
        _check_paused(self)


class Resume(Op, frozen=True):
    """End a pause."""

    queue: Name
    tenant: Label | None = None
    group: Name | None = None

    def check(self) -> None:
        """What the fields must be together."""
        _check_paused(self)


def _check_scope(op: SetLimit | ClearLimit | Pause | Resume) -> None:
    if op.group is not None and op.tenant is None:
        raise InvalidInput("tenant", "name the tenant of the group, or '*' for every tenant")
    check_together("group", op.queue, op.tenant, op.group)


def _check_paused(op: Pause | Resume) -> None:
    _check_scope(op)
    if op.group == "*" or (op.tenant == "*" and op.group is None):
        raise InvalidInput("pause", "pause the whole queue, or one tenant or group by name")


class TakeSlot(Op, frozen=True):
    """Mark that `holder` is active under (scope, key) until the time is over; a second take
    renews. With a limit, taken only while fewer others hold one."""

    scope: Name
    key: Name
    holder: Name
    ttl_ms: PositiveSpan
    limit: Concurrency | None = None

    def check(self) -> None:
        """What the fields must be together."""
        check_together("holder", self.scope, self.key, self.holder)


class DropSlot(Op, frozen=True):
    """Remove the mark."""

    scope: Name
    key: Name
    holder: Name


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that is enqueued at the times of a cron expression."""

    name: Name
    cron: str
    job: JobSpec
    next_at: int = 0
    tz: str = "UTC"
    catch_up: CatchUp = "last"
    last_at: int | None = None

    def check(self) -> None:
        """Whether the expression and the time zone can be understood."""
        next_tick(self.cron, self.tz, 0)


class PutSchedule(Op, frozen=True):
    """Add or replace a schedule. One that exists with the same cron and tz keeps its next time. Of
    another, the store computes it from its own time, unless a copy brings it along."""

    schedule: Schedule


class DropSchedule(Op, frozen=True):
    """Remove a schedule."""

    name: Name


class Fire(Op, frozen=True):
    """Enqueue a schedule's job under this id, if its next time is still `tick` and has come by the
    store's time: of many schedulers that try, one fires. A next time that is too far ahead is
    corrected."""

    name: Name
    tick: Moment
    id: Name


class Maintain(Op, frozen=True):
    """Do what time asks for, at most `limit` of each kind; None keeps finished jobs for good."""

    limit: MaintainLimit = 1000
    keep_done_ms: Span | None = None
    keep_cancelled_ms: Span | None = None
    keep_dead_ms: Span | None = None


class Reconcile(Op, frozen=True):
    """Recount a queue's counters, or a tenant's or group's, from its jobs."""

    queue: Name
    tenant: Label | None = None
    group: Label | None = None


class ReconcileSlots(Op, frozen=True):
    """Recount the slots under (scope, key)."""

    scope: Name
    key: Name


# What a stranger may send, and what a Once may hold.
AnyOp = (
    Enqueue | Claim | Ack | Fail | Extend | Release | Progress | Cancel | Replay | Delete | SetLimit
    | ClearLimit | Pause | Resume | TakeSlot | DropSlot | PutSchedule | DropSchedule | Fire
    | Maintain | Reconcile | ReconcileSlots
)  # fmt: skip


class Once(Op, frozen=True):
    """Run operations unless this key was used before; then answer as the first time, or with a
    Conflict if it was used for other operations. The key is kept for as long as ONCE_MS, with the
    answers. `fingerprint` tells whether operations are the same, where they are not sent exactly
    alike each time; without it, they are compared themselves."""

    key: Name
    ops: tuple[AnyOp, ...]
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


# How a turn is counted, on every engine: serving a tenant moves its place by TURN / weight, so
# that between two turns of one tenant another gets at most its weight.
TURN = 1_000_000


def stride(weight: int | None) -> int:
    """How far a tenant of this weight moves back when it is served."""
    return -(-TURN // (weight or 1))
