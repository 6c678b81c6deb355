"""The state machine: every transition of a job, in one table.

`decide(job, event, now)` looks up the transition and returns the resulting change, or None if the
table has none. It is pure. Engines apply changes guarded by the state and token that the decision
was based on, and define no transitions of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from tenure.model.job import FINAL, KEPT_FAILURES, Failure, IfParentFails, State
from tenure.model.retry import DEFAULT_BACKOFF, Backoff


class Facts(Protocol):
    """The fields a decision is based on. A Job has them, and so does a row of an engine."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def attempts(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def run_at(self) -> int: ...
    @property
    def expires_at(self) -> int | None: ...
    @property
    def token(self) -> int: ...
    @property
    def worker(self) -> str: ...
    @property
    def backoff(self) -> Backoff | None: ...
    @property
    def if_parent_fails(self) -> IfParentFails: ...
    @property
    def errors(self) -> tuple[Failure, ...]: ...


class Event(msgspec.Struct, frozen=True):
    """Something that happens to a job."""


class Claimed(Event, frozen=True):
    """A worker claims the job."""


class Acked(Event, frozen=True):
    """The worker finished the job."""


class Failed(Event, frozen=True):
    """The attempt failed."""

    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in_ms: int | None = None
    fatal: bool = False
    cancel: bool = False


class Released(Event, frozen=True):
    """The worker returns the job unprocessed, for now or for later."""

    delay_ms: int = 0
    message: str = ""
    type: str = ""


class Suspended(Event, frozen=True):
    """The worker returns the job until a time, or until other jobs have ended."""

    run_at: int = 0
    waits: bool = False


class Kept(Event, frozen=True):
    """The worker extends its lease or reports progress."""


class LeaseRanOut(Event, frozen=True):
    """The lease expired before the worker finished or renewed it."""


class Expired(Event, frozen=True):
    """`expires_at` passed before the job was claimed."""


class Cancelled(Event, frozen=True):
    """The job is cancelled."""


class Replayed(Event, frozen=True):
    """The job is to be run again."""


class Hurried(Event, frozen=True):
    """The job is to run now, not at its `run_at`."""


class ParentsDone(Event, frozen=True):
    """The last job it waited for is done."""


class ParentFailed(Event, frozen=True):
    """A job it waits for is dead or cancelled."""


class ParentDeleted(Event, frozen=True):
    """A job it waits for was deleted before it was done."""

    parent: str = ""


class Change(msgspec.Struct, frozen=True):
    """The new values of a job after a transition."""

    state: State
    attempts: int
    run_at: int
    expires_at: int | None
    worker: str
    errors: tuple[Failure, ...]
    failure: Failure | None = None  # the last of the errors, if the transition added it

    @property
    def final(self) -> bool:
        return self.state in FINAL


Guard = Callable[[Facts, Event, int], bool]


class Move(msgspec.Struct, frozen=True):
    """A row of the table. The first row whose guard holds applies."""

    source: State
    event: type[Event]
    target: State
    when: str = ""
    guard: Guard | None = None
    attempts: int = 0  # added to the job's attempts
    start: Callable[[Facts, Event, int], int] | None = None  # the new run_at
    says: str = ""  # the failure to record, if the event has none of its own


def _fatal(_job: Facts, event: Event, _now: int) -> bool:
    return isinstance(event, Failed) and event.fatal


def _called_off(_job: Facts, event: Event, _now: int) -> bool:
    return isinstance(event, Failed) and event.cancel


def _used_up(job: Facts, _event: Event, _now: int) -> bool:
    return job.attempts >= job.max_attempts


def _too_late(job: Facts, _event: Event, now: int) -> bool:
    return job.expires_at is not None and job.expires_at <= now


def _waits(_job: Facts, event: Event, _now: int) -> bool:
    return isinstance(event, Suspended) and event.waits


def _was_suspended(job: Facts, _event: Event, _now: int) -> bool:
    return job.token != 0


def _cancels_with_parent(job: Facts, _event: Event, _now: int) -> bool:
    return job.if_parent_fails == "cancel"


def _runs_anyway(job: Facts, _event: Event, _now: int) -> bool:
    return job.if_parent_fails == "run"


def _now(_job: Facts, _event: Event, now: int) -> int:
    return now


def _after_backoff(job: Facts, event: Event, now: int) -> int:
    assert isinstance(event, Failed)
    if event.retry_in_ms is not None:
        return now + event.retry_in_ms
    return now + (job.backoff or DEFAULT_BACKOFF).delay_ms(job.attempts, job.id)


def _after_delay(_job: Facts, event: Event, now: int) -> int:
    assert isinstance(event, Released)
    return now + event.delay_ms


def _as_told(_job: Facts, event: Event, _now: int) -> int:
    assert isinstance(event, Suspended)
    return event.run_at


LEASE_RAN_OUT = "the lease ran out"

W, P, L, DONE, DEAD, X = State  # in the order of a job's life

TABLE: tuple[Move, ...] = (
    Move(W, ParentsDone, P),
    Move(W, ParentFailed, P, "it was suspended and no other job is left", _was_suspended),
    Move(W, ParentFailed, X, "if_parent_fails is cancel", _cancels_with_parent),
    Move(W, ParentFailed, P, "if_parent_fails is run and no other parent is left", _runs_anyway),
    Move(W, ParentFailed, W, "if_parent_fails is wait"),
    Move(W, ParentDeleted, P, "it was suspended and no other job is left", _was_suspended),
    Move(W, ParentDeleted, X, "if_parent_fails is cancel", _cancels_with_parent),
    Move(W, ParentDeleted, P, "if_parent_fails is run and no other parent is left", _runs_anyway),
    Move(W, ParentDeleted, DEAD, "if_parent_fails is wait", says="a job it waited for was deleted"),
    Move(W, Expired, DEAD, says="expired before it could run"),
    Move(W, Cancelled, X),
    Move(P, Claimed, DEAD, "expires_at passed", _too_late, says="expired before it could run"),
    Move(P, Claimed, L, attempts=+1),
    Move(P, Expired, DEAD, says="expired before it could run"),
    Move(P, Cancelled, X),
    Move(P, Hurried, P, "at once, with its attempts", start=_now),
    Move(L, Kept, L),
    Move(L, Acked, DONE),
    Move(L, Failed, X, "the worker cancels it", _called_off),
    Move(L, Failed, DEAD, "the failure is fatal", _fatal),
    Move(L, Failed, DEAD, "attempts are used up", _used_up),
    Move(L, Failed, P, "otherwise, after its backoff", start=_after_backoff),
    Move(L, Released, P, "the attempt is not counted", attempts=-1, start=_after_delay),
    Move(L, Suspended, W, "it waits for jobs", _waits, attempts=-1, start=_as_told),
    Move(L, Suspended, P, "the attempt is not counted", attempts=-1, start=_as_told),
    Move(L, LeaseRanOut, DEAD, "attempts are used up", _used_up, says=LEASE_RAN_OUT),
    Move(L, LeaseRanOut, DEAD, "expires_at passed", _too_late, says=LEASE_RAN_OUT),
    Move(L, LeaseRanOut, P, "otherwise, at once", start=_now, says=LEASE_RAN_OUT),
    Move(L, Cancelled, X),
    Move(DEAD, Replayed, P, "with attempts 0 and no expiry", start=_now),
    Move(X, Replayed, P, "with attempts 0 and no expiry", start=_now),
)

_MOVES: dict[tuple[State, type[Event]], tuple[Move, ...]] = {
    (move.source, move.event): tuple(
        m for m in TABLE if (m.source, m.event) == (move.source, move.event)
    )
    for move in TABLE
}


def decide(job: Facts, event: Event, now: int) -> Change | None:
    """The change that `event` makes to `job` at `now`; None if the table has no such transition."""
    for move in _MOVES.get((job.state, type(event)), ()):
        if move.guard is None or move.guard(job, event, now):
            return _change(move, job, event, now)
    return None


def allowed(state: State, event: type[Event]) -> bool:
    """Whether the table has a transition for `event` from `state`."""
    return (state, event) in _MOVES


def sources(event: type[Event]) -> frozenset[State]:
    """The states from which `event` moves a job."""
    return frozenset(state for state, kind in _MOVES if kind is event)


def plain(source: State, event: type[Event]) -> Move:
    """The transition whose change is the same for every job, for engines that apply it in bulk.

    The engine must first handle rows with a guard on single jobs (such as an expiry).
    """
    return _MOVES[source, event][-1]


def is_plain(job: Facts, event: Event, now: int) -> bool:
    """Whether the transition that `plain` returns is the one for this job: no guard holds."""
    for move in _MOVES[job.state, type(event)]:
        if move.guard is not None and move.guard(job, event, now):
            return False
    return True


def _change(move: Move, job: Facts, event: Event, now: int) -> Change:
    replayed = isinstance(event, Replayed)
    begun = isinstance(event, Replayed | Suspended)
    failure = _failure(move, job, event, now)
    return Change(
        state=move.target,
        attempts=0 if replayed else job.attempts + move.attempts,
        run_at=move.start(job, event, now) if move.start else job.run_at,
        expires_at=None if begun else job.expires_at,
        worker="" if move.target in (State.PENDING, State.WAITING) else job.worker,
        errors=job.errors if failure is None else (*job.errors, failure)[-KEPT_FAILURES:],
        failure=failure,
    )


def _failure(move: Move, job: Facts, event: Event, now: int) -> Failure | None:
    """The failure to record, if any."""
    if isinstance(event, Failed):
        return Failure(now, job.attempts, event.message, event.type, event.traceback, job.worker)
    if isinstance(event, Released):
        if not event.message or _is_last(job.errors, event):
            return None
        return Failure(now, job.attempts, event.message, event.type, worker=job.worker)
    if not move.says:
        return None
    says = f"{move.says}: {event.parent}" if isinstance(event, ParentDeleted) else move.says
    return Failure(now, job.attempts, says, worker=job.worker)


def in_group(change: Change, group: str) -> Change:
    """The same change, with the error group of the failure that it adds."""
    assert change.failure is not None
    failure = msgspec.structs.replace(change.failure, group=group)
    return msgspec.structs.replace(change, errors=(*change.errors[:-1], failure), failure=failure)


def _is_last(errors: tuple[Failure, ...], event: Released) -> bool:
    """Whether the last error is the same: it is kept, with the time when it was first seen."""
    return bool(errors) and (errors[-1].message, errors[-1].type) == (event.message, event.type)
