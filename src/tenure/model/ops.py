"""Operations and their results, as data.

An operation changes jobs through the state machine; a query (queries.py) reads one snapshot. Both
are plain tagged structs, so they can be stored, sent, replayed and compared. An operation that
fails returns its TenureError as a value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import compress, groupby
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, UnsetType

from tenure.errors import InvalidInput, PayloadTooLarge, TenureError
from tenure.model import states
from tenure.model.cron import CatchUp, next_tick
from tenure.model.fields import (
    MAX_JOBS_PER_CALL,
    ClaimLimit,
    Concurrency,
    Cron,
    GrantedNames,
    GroupNames,
    JobIds,
    Label,
    MaintainLimit,
    Moment,
    Name,
    Percent,
    PositiveSpan,
    Priority,
    QueueNames,
    Rate,
    Reason,
    Span,
    Token,
    Weight,
    Zone,
    check_together,
)
from tenure.model.job import Job, JobSpec, State, null

T = TypeVar("T")
IfExists = Literal["error", "skip"]
NewJobs = Annotated[tuple[JobSpec, ...], Meta(max_length=MAX_JOBS_PER_CALL)]
MAX_FILTER_BYTES = 16_384  # of a filter in a note: enough for the longest names
MAX_SCHEDULED_BYTES = 65_536  # of the payload of a schedule: all schedules are read together
Needs = Literal["produce", "work", "read", "admin"]  # the scope that a token needs


class Op(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="op", omit_defaults=True):
    """The base of every operation. for_all: every shard gets it; in turn, so that only one of them
    notes who did it. partial: it is enough if some shards could be asked."""

    needs: ClassVar[Needs] = "admin"
    words: ClassVar[str] = ""  # what its caller wants to do, if its name does not say it
    for_all: ClassVar[Literal["at_once", "in_turn"] | None] = None
    partial: ClassVar[bool] = False

    # What checks, limits and counts ask of every operation, so that none of them lists kinds.

    @property
    def adds(self) -> tuple[JobSpec, ...]:
        """The jobs that it enqueues if it succeeds, at once or as follow-ups."""
        return ()

    def added(self, answer: Answer) -> Sequence[JobSpec]:
        """Those that it has enqueued, with this result."""
        return self.adds if type(answer) is Ok else ()

    @property
    def new_queues(self) -> Iterable[str]:
        """The queues that it creates if they do not exist."""
        return [spec.queue for spec in self.adds]


@cache
def raw_fields(kind: type[Op]) -> tuple[str, ...]:
    """The fields of an operation that hold JSON, besides the jobs that it adds."""
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if may_hold(hints[name], msgspec.Raw))


def bytes_in(op: Op) -> int:
    """The bytes of JSON that an operation holds in memory."""
    size = 0
    for job in op.adds:
        size += len(job.payload)
    for name in raw_fields(type(op)):
        raw = getattr(op, name)
        if raw is not msgspec.UNSET:
            size += len(raw)
    return size


@cache
def spec_fields(kind: type[Op]) -> tuple[str, ...]:
    """The fields that hold the jobs that an operation adds."""
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if may_hold(hints[name], JobSpec))


def may_hold(hint: Any, kind: type) -> bool:
    """Whether values of a type may be of this kind, or contain one directly."""
    return hint is kind or any(may_hold(one, kind) for one in get_args(hint))


class Grant(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The queues and tenants whose jobs an operation may see. None: all."""

    queues: GrantedNames | None = None
    tenants: GrantedNames | None = None

    def allows(self, queue: str, tenant: str) -> bool:
        return (self.queues is None or queue in self.queues) and (
            self.tenants is None or tenant in self.tenants
        )

    def within(self, other: Grant | None) -> Grant:
        """What both grants allow."""
        if other is None:
            return self
        return Grant(_both(self.queues, other.queues), _both(self.tenants, other.tenants))


def _both(ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    return tuple(name for name in ours if name in theirs)


class GrantedOp(Op, frozen=True, kw_only=True):
    """The base of operations that name existing jobs or schedules. Those that the grant does not
    allow are treated as if they did not exist. The store applies it in the transaction."""

    grant: Grant | None = None


class Note(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Who changes something and why, for the audit log. filter: what selected the jobs, if a
    filter did."""

    by: Label = ""
    reason: Reason = ""
    filter: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.filter is not None and len(msgspec.json.encode(self.filter)) > MAX_FILTER_BYTES:
            raise InvalidInput("filter", f"is larger than {MAX_FILTER_BYTES:,} bytes")


class NotedOp(Op, frozen=True, kw_only=True):
    """The base of operations by an operator. With a note, an entry is added to the audit log if
    something was changed."""

    note: Note | None = None


class NotedGrantedOp(GrantedOp, frozen=True, kw_only=True):
    """The same for operations that name existing jobs or schedules."""

    note: Note | None = None


class Enqueue(GrantedOp, frozen=True):
    """Add jobs, all or none. With if_exists="skip", jobs whose id or unique key is taken are
    skipped, and the id of the existing job is returned instead."""

    needs: ClassVar[Needs] = "produce"
    jobs: NewJobs
    if_exists: IfExists = "error"

    @property
    def adds(self) -> tuple[JobSpec, ...]:
        return self.jobs

    def added(self, answer: Answer) -> Sequence[JobSpec]:
        if not isinstance(answer, Enqueued):
            return ()
        return self.jobs if all(answer.created) else tuple(compress(self.jobs, answer.created))


class Claim(Op, frozen=True):
    """Lease up to `limit` ready jobs, trying the queues in the order given."""

    needs: ClassVar[Needs] = "work"
    queues: QueueNames
    worker: Name
    lease_ms: PositiveSpan
    limit: ClaimLimit = 1
    tenant: Label | None = None
    not_groups: GroupNames = ()


class LeaseOp(GrantedOp, frozen=True):
    """The base of operations by the holder of a lease: the token must still be valid. keeps: the
    job stays leased."""

    keeps: ClassVar[bool] = False
    needs: ClassVar[Needs] = "work"
    id: Name
    token: Token


class JobsOp(NotedGrantedOp, frozen=True):
    """The base of operations on jobs by their ids."""

    ids: JobIds


class Ack(LeaseOp, frozen=True):
    """Mark the job as done and enqueue `then` in the same transaction. keep=False deletes the
    job. If the job is done by an earlier ack with this token, that one counts: nothing is changed,
    and the result is Moved instead of Ok."""

    result: msgspec.Raw = msgspec.field(default_factory=null)
    then: NewJobs = ()
    keep: bool = True

    @property
    def adds(self) -> tuple[JobSpec, ...]:
        return self.then


class Fail(LeaseOp, frozen=True):
    """Record a failed attempt: the job is retried after its backoff, or is dead, or cancelled."""

    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in_ms: Span | None = None
    fatal: bool = False
    cancel: bool = False

    def event(self) -> states.Failed:
        """The state machine event for this failure."""
        return states.Failed(
            self.message, self.type, self.traceback, self.retry_in_ms, self.fatal, self.cancel
        )


class Extend(LeaseOp, frozen=True):
    """Set the lease to expire `lease_ms` from now."""

    keeps = True
    lease_ms: PositiveSpan


UNKNOWN_KIND = "UnknownKind"  # the type of a release by a worker that has no task for the job


class Release(LeaseOp, frozen=True):
    """Return the job to its queue without using up the attempt, optionally after a delay. A message
    is added to the job's errors, unless the last error is the same."""

    delay_ms: Span = 0
    message: str = ""
    type: str = ""

    def event(self) -> states.Released:
        """The state machine event for this release."""
        return states.Released(self.delay_ms, self.message, self.type)


class Progress(LeaseOp, frozen=True):
    """Report the progress of a job."""

    keeps = True
    percent: Percent
    note: Label | None = None


class Cancel(JobsOp, frozen=True):
    """Cancel the jobs that have not finished."""

    needs: ClassVar[Needs] = "produce"


class Replay(JobsOp, frozen=True):
    """Make dead and cancelled jobs pending again."""


class Update(JobsOp, frozen=True):
    """Change jobs that were not claimed: their priority, when they may run, their payload. Fields
    that are not given stay unchanged."""

    priority: Priority | None = None
    run_at: Moment | None = None
    delay_ms: Span | None = None
    payload: msgspec.Raw | UnsetType = msgspec.UNSET

    def check(self) -> None:
        """Validate rules that span several fields."""
        if self.run_at is not None and self.delay_ms is not None:
            raise InvalidInput("run_at", "give run_at or delay, not both")
        if (self.priority, self.run_at, self.delay_ms) == (None, None, None) and isinstance(
            self.payload, UnsetType
        ):
            raise InvalidInput("update", "say what to change: priority, run_at, delay or payload")


class ReplayEdited(NotedGrantedOp, frozen=True):
    """Enqueue a finished job again as a new one with these changes. The new job has the options of
    the old one, except its id, parents and expiry. `replay_of` names the old one."""

    id: Name
    new_id: Name
    priority: Priority | None = None
    delay_ms: Span = 0
    payload: msgspec.Raw | UnsetType = msgspec.UNSET

    def spec_of(self, job: Job) -> JobSpec:
        """The new job."""
        return JobSpec(
            id=self.new_id,
            queue=job.queue,
            payload=job.raw_payload if isinstance(self.payload, UnsetType) else self.payload,
            kind=job.kind,
            tenant=job.tenant,
            group=job.group,
            priority=job.priority if self.priority is None else self.priority,
            max_attempts=job.max_attempts,
            delay_ms=self.delay_ms,
            unique_key=job.unique_key,
            timeout_ms=job.timeout_ms,
            backoff=job.backoff,
            replay_of=job.id,
        )


class Delete(JobsOp, frozen=True):
    """Delete the jobs that are in one of these states (in any state, if empty)."""

    states: tuple[State, ...] = ()


class SetLimit(NotedOp, frozen=True):
    """Limit a queue, one of its tenants, or a group. Fields that are None stay unchanged.

    A tenant or group of "*" is the default for those without a limit of their own.
    """

    queue: Name
    tenant: Label | None = None
    group: Name | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    per_ms: PositiveSpan | None = None
    weight: Weight | None = None

    @property
    def new_queues(self) -> Iterable[str]:
        return (self.queue,)

    def check(self) -> None:
        """Validate rules that span several fields."""
        _check_scope(self)
        if (self.rate is None) != (self.per_ms is None):
            raise InvalidInput("rate", "rate and per belong together: rate=100, per=60")
        if self.rate is not None and self.tenant is not None:
            raise InvalidInput("rate", "a rate applies to a whole queue, not to a tenant or group")
        if self.weight is not None and (self.tenant is None or self.group is not None):
            raise InvalidInput("weight", "a weight applies to a tenant")
        if self.concurrency is None and self.rate is None and self.weight is None:
            raise InvalidInput("limit", "give concurrency, rate and per, or weight")


class ClearLimit(NotedOp, frozen=True):
    """Remove the limits that SetLimit made."""

    queue: Name
    tenant: Label | None = None
    group: Name | None = None

    def check(self) -> None:
        """Validate rules that span several fields."""
        _check_scope(self)


class Pause(NotedOp, frozen=True):
    """Stop claims of jobs of the queue, the tenant or the group."""

    queue: Name
    tenant: Label | None = None
    group: Name | None = None

    @property
    def new_queues(self) -> Iterable[str]:
        return (self.queue,)

    def check(self) -> None:
        """Validate rules that span several fields."""
        _check_paused(self)


class Resume(NotedOp, frozen=True):
    """End a pause."""

    queue: Name
    tenant: Label | None = None
    group: Name | None = None

    def check(self) -> None:
        """Validate rules that span several fields."""
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
    """Take a slot under (scope, key) for `holder`. The slot expires after `ttl_ms`; taking it again
    renews it. With a limit, it is taken only while fewer others hold one."""

    needs: ClassVar[Needs] = "work"
    partial = True
    scope: Name
    key: Name
    holder: Name
    ttl_ms: PositiveSpan
    limit: Concurrency | None = None

    def check(self) -> None:
        """Validate rules that span several fields."""
        check_together("holder", self.scope, self.key, self.holder)


class DropSlot(Op, frozen=True):
    """Give up a slot."""

    needs: ClassVar[Needs] = "work"
    partial = True
    scope: Name
    key: Name
    holder: Name


def check_own_scope(scope: str) -> None:
    """Reject a scope of slots that is reserved for Tenure itself. A client that takes the slot of
    the janitor could switch off maintenance."""
    if scope == "tenure" or scope.startswith(("tenure.", "tenure/")):
        raise InvalidInput("scope", f"{scope!r:.80} is reserved for Tenure itself")


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that is enqueued whenever a cron expression matches.

    owner: the app that declares it in its code, if any. disabled: it does not fire.
    """

    name: Name
    cron: Cron
    job: JobSpec
    next_at: int = 0
    tz: Zone = "UTC"
    catch_up: CatchUp = "last"
    last_at: int | None = None
    owner: Label = ""
    disabled: bool = False

    def check(self) -> None:
        """Validate the cron expression, the time zone and the size of the payload."""
        next_tick(self.cron, self.tz, 0)
        if len(self.job.payload) > MAX_SCHEDULED_BYTES:
            reason = f"of a schedule has at most {MAX_SCHEDULED_BYTES:,} bytes"
            raise PayloadTooLarge("payload", reason)


class PutSchedule(NotedGrantedOp, frozen=True):
    """Add or replace a schedule. If cron and tz are unchanged, the schedule keeps its next time,
    unless it is being enabled again: missed times are not caught up on. Otherwise the store
    computes the next time by its own clock, unless a copy from another store sets it."""

    schedule: Schedule


class DropSchedule(NotedGrantedOp, frozen=True):
    """Remove a schedule."""

    name: Name


class Fire(GrantedOp, frozen=True):
    """Enqueue a schedule's job under this id, if the schedule's next time is still `tick` and is
    due by the store's clock. When several schedulers try, exactly one fires. A next time that is
    too far ahead is corrected."""

    name: Name
    tick: Moment
    id: Name


class Maintain(Op, frozen=True):
    """Run a step of maintenance: in the queues whose names sort after `after`, at most `limit` jobs
    of each kind per queue. A keep_*_ms of None keeps finished jobs forever.

    Queues are visited in the order of their names. To keep transactions short, a step looks at
    QUEUES_PER_STEP queues, processes those that have something due, and ends early once it has
    processed `limit` jobs. The result says where to continue. Among the queues that it looks at, it
    forgets the turns of tenants without jobs, and queues that have had no jobs and no limits for
    FORGET_MS.
    """

    for_all = "at_once"
    partial = True

    limit: MaintainLimit = 1000
    keep_done_ms: Span | None = None
    keep_cancelled_ms: Span | None = None
    keep_dead_ms: Span | None = None
    after: Label = ""

    @property
    def keeps(self) -> tuple[tuple[State, int | None], ...]:
        """The states of finished jobs, and for how long each is kept."""
        return (
            (State.DONE, self.keep_done_ms),
            (State.CANCELLED, self.keep_cancelled_ms),
            (State.DEAD, self.keep_dead_ms),
        )


class Reconcile(NotedOp, frozen=True):
    """Recount the counters of a queue, a tenant or a group from its jobs."""

    queue: Name
    tenant: Label | None = None
    group: Label | None = None


class ReconcileSlots(NotedOp, frozen=True):
    """Recount the slots under (scope, key)."""

    scope: Name
    key: Name


# Operations that the server accepts from clients, and that a Once may contain.
AnyOp = (
    Enqueue | Claim | Ack | Fail | Extend | Release | Progress | Cancel | Replay | Delete
    | Update | ReplayEdited | SetLimit | ClearLimit | Pause | Resume | TakeSlot | DropSlot
    | PutSchedule | DropSchedule | Fire | Maintain | Reconcile | ReconcileSlots
)  # fmt: skip


class Once(Op, frozen=True):
    """Run operations once per key. If the key was used before, return the stored results, or a
    Conflict if it was used for different operations. Keys and results are kept for ONCE_MS. Of
    claimed jobs only the leases are stored: a repeated claim returns the jobs that it still holds.

    `fingerprint` identifies the operations if their encoding may differ between retries. Without
    it, the operations themselves are compared. `kept` is stored with the results: a repetition gets
    what the first call gave. Shards keep the routes of a call there.
    """

    key: Name
    ops: tuple[Op, ...]
    fingerprint: str = ""
    kept: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A job with everything a store knows about it: what another store needs to take it over.
    beside: the records of its steps, by key. A program that copies jobs adds them."""

    job: Job
    ready: bool = False  # pending job: it has already become ready
    waits_for: tuple[str, ...] = ()  # waiting job: the jobs that have not finished
    beside: dict[str, str] = {}


def in_order(job: Job, waits_for: Collection[str]) -> tuple[str, ...]:
    """The jobs that a job waits for: its parents, and those that it was suspended for."""
    first = [one for one in job.after if one in waits_for]
    return (*first, *sorted(set(waits_for) - set(first)))


class Import(Op, frozen=True):
    """Add jobs from another store unchanged, in the order given, all or none. Jobs whose id exists
    are skipped. Later claims of a job get greater tokens than the one it came with."""

    entries: tuple[Entry, ...]


def bytes_of_entry(entry: Entry) -> int:
    """The size of the parts of an entry that can be large."""
    job = entry.job
    return len(job.raw_payload) + len(job.raw_result) + sum(map(len, entry.beside.values()))


ONCE_MS = 15 * 60_000  # by then, the caller has the result or has given up
FORGET_MS = 3600_000  # so that a queue does not vanish right after it was drained
QUEUES_PER_STEP = 500
BACK_MS = 10 * 60_000  # a store's clock may be set back this far without a schedule firing twice

# Operations after which other processes need no wake-up.
QUIET = (Claim, Extend, Progress, TakeSlot, DropSlot)


def flat(batch: Sequence[Op]) -> Iterable[Op]:
    """The operations of a batch, including those inside a Once."""
    return _flat(batch) if Once in map(type, batch) else batch


def _flat(batch: Sequence[Op]) -> Iterator[Op]:
    for op in batch:
        if isinstance(op, Once):
            yield from op.ops
        else:
            yield op


def is_upkeep(batch: Iterable[Op]) -> bool:
    """Whether these are operations of a scheduler, which must go on with the other parts of a
    store if one hangs."""
    return all(
        isinstance(op, Maintain | Fire)
        or (isinstance(op, TakeSlot | DropSlot) and op.scope == "tenure")
        for op in batch
    )


def answered(batch: Sequence[Op], answers: Sequence[Answer]) -> Iterator[tuple[Op, Answer]]:
    """The `flat` operations of a batch, each with its result."""
    if Once in map(type, batch):
        return _answered(batch, answers)
    return zip(batch, answers, strict=True)


def _answered(batch: Sequence[Op], answers: Sequence[Answer]) -> Iterator[tuple[Op, Answer]]:
    for op, answer in zip(batch, answers, strict=True):
        if not isinstance(op, Once):
            yield op, answer
        elif isinstance(answer, Answers):
            yield from zip(op.ops, answer.answers, strict=True)
        else:
            yield from ((one, answer) for one in op.ops)


def count_added(batch: Sequence[Op], answers: Sequence[Answer]) -> dict[str, int]:
    """How many jobs operations have enqueued, by queue."""
    counts: dict[str, int] = {}
    for op, answer in answered(batch, answers):
        if op.adds:
            for spec in op.added(answer):
                counts[spec.queue] = counts.get(spec.queue, 0) + 1
    return counts


def runs(
    batch: Sequence[Op], answers: Sequence[Answer]
) -> Iterator[tuple[type[Op], Sequence[Any], Sequence[Answer]]]:
    """The `flat` operations of a batch: those of one kind that are adjacent, and their results."""
    if Once in map(type, batch):
        pairs = list(_answered(batch, answers))
        batch, answers = [op for op, _ in pairs], [answer for _, answer in pairs]
    start = 0
    for kind, some in groupby(map(type, batch)):
        end = start + len(list(some))
        yield kind, batch[start:end], answers[start:end]
        start = end


# Answers ----------------------------------------------------------------------------------------


class Ok(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Success, without further data."""


class Enqueued(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The ids in the order given. created[i] is False if the job already existed."""

    ids: list[str]
    created: list[bool]
    at: int


class Leased(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The claimed jobs."""

    jobs: list[Job]


class Moved(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The job's new state."""

    state: State
    run_at: int


class Changed(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """How many jobs changed; ids that do not exist; ids whose unique key is taken, with the
    holder."""

    count: int
    missing: tuple[str, ...] = ()
    refused: dict[str, str] = {}


class Recorded(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The result that a step has. created: this operation has recorded it. signalled: it is the
    value of the signal that the step waits for."""

    result: msgspec.Raw
    created: bool
    signalled: bool = False


class Recalled(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The steps of a job, as JSON."""

    steps: msgspec.Raw


class Slots(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """How many slots are held now, and whether this holder has one."""

    count: int
    held: bool


class Fired(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """Whether this call fired the schedule. Also False if the time was skipped."""

    fired: bool


class Maintained(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """How many of each kind were processed. If `after` is not None, there may be more queues after
    this one."""

    promoted: int = 0
    leases: int = 0
    expired: int = 0
    slots: int = 0
    purged: int = 0
    after: str | None = None

    @property
    def total(self) -> int:
        return self.promoted + self.leases + self.expired + self.slots + self.purged

    def __add__(self, later: Maintained) -> Maintained:
        """The sum of two steps in a row."""
        return Maintained(
            self.promoted + later.promoted,
            self.leases + later.leases,
            self.expired + later.expired,
            self.slots + later.slots,
            self.purged + later.purged,
            later.after,
        )


class Answers(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """The result of each operation of a Once, and what was kept with them."""

    answers: list[Answer]
    kept: str = ""


class Corrected(msgspec.Struct, frozen=True, tag=True, tag_field="answer"):
    """What was added to each counter that was wrong."""

    by: dict[str, int]


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a queue (tenant and group None), a tenant (group None) or a group."""

    queue: str
    tenant: str | None = None
    group: str | None = None
    concurrency: int | None = None
    rate: int | None = None
    per_ms: int | None = None
    weight: int | None = None
    paused: bool = False

    @property
    def is_default(self) -> bool:
        """Whether nothing is limited or paused. Such a limit is not stored."""
        return self == Limit(self.queue, self.tenant, self.group)

    @property
    def rate_of(self) -> tuple[int | None, int | None]:
        return self.rate, self.per_ms


Answer = (
    Ok
    | Enqueued
    | Leased
    | Moved
    | Changed
    | Recorded
    | Recalled
    | Slots
    | Fired
    | Maintained
    | Corrected
    | Answers
    | TenureError
)


def good(answer: Any, kind: type[T]) -> T:
    """Return the answer, or raise it if it is an error."""
    if isinstance(answer, TenureError):
        raise answer
    assert isinstance(answer, kind)
    return answer


# How turns are counted, on every engine: serving a tenant moves its place back by TURN / weight.
# Between two turns of one tenant, another tenant gets at most its weight in turns.
TURN = 1_000_000


def stride(weight: int | None) -> int:
    """How far a tenant of this weight moves back each time it is served."""
    return -(-TURN // (weight or 1))
