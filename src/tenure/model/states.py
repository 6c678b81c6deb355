"""The state machine: every move that a job can make, in one table.

`decide(job, event, now)` looks the move up and answers with the change, or None where the table
has no such move. It is pure. Engines apply changes under a guard (the state and the token that
the decision was made on) and spell no move of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from tenure.model.job import FINAL, KEPT_FAILURES, Failure, IfParentFails, State
from tenure.model.retry import DEFAULT_BACKOFF, Backoff


class Facts(Protocol):
    """What a decision is made on; a Job has it, and so has a row of an engine."""

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
    """A worker takes it."""


class Acked(Event, frozen=True):
    """The worker finished it."""


class Failed(Event, frozen=True):
    """The worker could not do it."""

    message: str = ""
    type: str = ""
    traceback: str = ""
    retry_in_ms: int | None = None
    fatal: bool = False
    cancel: bool = False


class Released(Event, frozen=True):
    """The worker gives it back unused, for now or for later."""

    delay_ms: int = 0


class Kept(Event, frozen=True):
    """The worker extends its lease or reports progress."""


class LeaseRanOut(Event, frozen=True):
    """The worker was not heard of until its lease ended."""


class Expired(Event, frozen=True):
    """`expires_at` passed before it was claimed."""


class Cancelled(Event, frozen=True):
    """Somebody cancels it."""


class Replayed(Event, frozen=True):
    """Somebody wants it run again."""


class ParentsDone(Event, frozen=True):
    """The last job it waited for is done."""


class ParentFailed(Event, frozen=True):
    """A job it waits for is dead or cancelled."""


class ParentDeleted(Event, frozen=True):
    """A job it waits for was deleted before it was done."""

    parent: str = ""


class Change(msgspec.Struct, frozen=True):
    """What a move makes of a job."""

    state: State
    attempts: int
    run_at: int
    expires_at: int | None
    worker: str
    errors: tuple[Failure, ...]

    @property
    def final(self) -> bool:
        return self.state in FINAL


Guard = Callable[[Facts, Event, int], bool]


class Move(msgspec.Struct, frozen=True):
    """A row of the table: the first row whose guard holds is the move that is made."""

    source: State
    event: type[Event]
    target: State
    when: str = ""
    guard: Guard | None = None
    attempts: int = 0  # added to the count
    start: Callable[[Facts, Event, int], int] | None = None  # the new run_at
    says: str = ""  # the failure that is noted, where the event does not bring its own


def _fatal(_job: Facts, event: Event, _now: int) -> bool:
    return isinstance(event, Failed) and event.fatal


def _called_off(_job: Facts, event: Event, _now: int) -> bool:
    return isinstance(event, Failed) and event.cancel


def _used_up(job: Facts, _event: Event, _now: int) -> bool:
    return job.attempts >= job.max_attempts


def _too_late(job: Facts, _event: Event, now: int) -> bool:
    return job.expires_at is not None and job.expires_at <= now


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


W, P, L, DONE, DEAD, X = State  # in the order of their life

TABLE: tuple[Move, ...] = (
    Move(W, ParentsDone, P),
    Move(W, ParentFailed, X, "if_parent_fails is cancel", _cancels_with_parent),
    Move(W, ParentFailed, P, "if_parent_fails is run, and it waits for no other", _runs_anyway),
    Move(W, ParentFailed, W, "if_parent_fails is wait"),
    Move(W, ParentDeleted, X, "if_parent_fails is cancel", _cancels_with_parent),
    Move(W, ParentDeleted, P, "if_parent_fails is run, and it waits for no other", _runs_anyway),
    Move(W, ParentDeleted, DEAD, "if_parent_fails is wait", says="a job it waited for was deleted"),
    Move(W, Expired, DEAD, says="expired before it could run"),
    Move(W, Cancelled, X),
    Move(P, Claimed, DEAD, "expires_at passed", _too_late, says="expired before it could run"),
    Move(P, Claimed, L, attempts=+1),
    Move(P, Expired, DEAD, says="expired before it could run"),
    Move(P, Cancelled, X),
    Move(L, Kept, L),
    Move(L, Acked, DONE),
    Move(L, Failed, X, "the worker calls it off", _called_off),
    Move(L, Failed, DEAD, "the failure is fatal", _fatal),
    Move(L, Failed, DEAD, "attempts are used up", _used_up),
    Move(L, Failed, P, "otherwise, after its backoff", start=_after_backoff),
    Move(L, Released, P, "its attempt given back", attempts=-1, start=_after_delay),
    Move(L, LeaseRanOut, DEAD, "attempts are used up", _used_up, says="the lease ran out"),
    Move(L, LeaseRanOut, DEAD, "expires_at passed", _too_late, says="the lease ran out"),
    Move(L, LeaseRanOut, P, "otherwise, at once", start=_now, says="the lease ran out"),
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
    """What `event` makes of `job` at `now`; None when the table has no such move."""
    for move in _MOVES.get((job.state, type(event)), ()):
        if move.guard is None or move.guard(job, event, now):
            return _change(move, job, event, now)
    return None


def allowed(state: State, event: type[Event]) -> bool:
    """Whether the table has a move for `event` out of `state`."""
    return (state, event) in _MOVES


def sources(event: type[Event]) -> frozenset[State]:
    """The states out of which `event` moves a job."""
    return frozenset(state for state, kind in _MOVES if kind is event)


def plain(source: State, event: type[Event]) -> Move:
    """The move whose change is the same for every job, for engines that make it in bulk.

    Rows with a guard on one job (an expiry) are the engine's to look for beforehand.
    """
    return _MOVES[source, event][-1]


def _change(move: Move, job: Facts, event: Event, now: int) -> Change:
    replayed = isinstance(event, Replayed)
    return Change(
        state=move.target,
        attempts=0 if replayed else job.attempts + move.attempts,
        run_at=move.start(job, event, now) if move.start else job.run_at,
        expires_at=None if replayed else job.expires_at,
        worker="" if move.target is State.PENDING else job.worker,
        errors=_noted(move, job, event, now),
    )


def _noted(move: Move, job: Facts, event: Event, now: int) -> tuple[Failure, ...]:
    if isinstance(event, Failed):
        failure = Failure(now, job.attempts, event.message, event.type, event.traceback, job.worker)
    elif move.says:
        says = move.says
        if isinstance(event, ParentDeleted):
            says = f"{says}: {event.parent}"
        failure = Failure(now, job.attempts, says, worker=job.worker)
    else:
        return job.errors
    return (*job.errors, failure)[-KEPT_FAILURES:]
