"""What features add to the rules. `features/operate.py` adds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tenure.core.transaction import Transaction
from tenure.model import states
from tenure.model.job import Failure
from tenure.model.ops import Answer, Op

# Adjacent operations of the same kind are run together.
Operation = Callable[[Any, Any], list[Answer]]
Failed = Callable[[Transaction[Any], Any, states.Change, Failure], states.Change]


OfJob = Callable[[Transaction[Any], Any], None]


class Rules(NamedTuple):
    """The rules of a feature. failed: sees each failure before it is stored, and may change what is
    stored. noted: sees the operations that have a note. ending: runs at the end of a transaction.
    given_up, replayed, removed: see each job with steps that is dead or cancelled, is about to be
    replayed, or was deleted."""

    operations: Mapping[type[Op], Operation] = {}
    failed: Failed | None = None
    noted: Callable[[Transaction[Any], list[Any], list[Answer]], None] | None = None
    ending: Callable[[Transaction[Any]], None] | None = None
    given_up: OfJob | None = None
    replayed: OfJob | None = None
    removed: OfJob | None = None


ALL: dict[str, Rules] = {}  # by module


def failed(tx: Transaction[Any], job: Any, change: states.Change) -> states.Change:
    """A change of a job that failed, as it is to be stored."""
    for one in ALL.values():
        if one.failed is not None and change.failure is not None:
            change = one.failed(tx, job, change, change.failure)
    return change


def noted(tx: Transaction[Any], batch: list[Any], answers: list[Answer]) -> None:
    """Operations with notes were run."""
    for one in ALL.values():
        if one.noted is not None:
            one.noted(tx, batch, answers)


class GivenUp(list[Any]):
    """The jobs with steps that became dead or cancelled, until `give_up` has seen them."""


def note_given_up(tx: Transaction[Any], job: Any) -> None:
    """A job with steps is dead or cancelled. Call `give_up` afterwards."""
    tx.kept.setdefault(GivenUp, GivenUp()).append(job)


def give_up(tx: Transaction[Any]) -> None:
    """Let features see the jobs that were noted."""
    jobs = tx.kept.pop(GivenUp, ())
    for job in jobs:
        for one in ALL.values():
            if one.given_up is not None:
                one.given_up(tx, job)


def replayed(tx: Transaction[Any], job: Any) -> None:
    """A job with steps is about to be replayed."""
    for one in ALL.values():
        if one.replayed is not None:
            one.replayed(tx, job)


def removed(tx: Transaction[Any], job: Any) -> None:
    """A job with steps was deleted."""
    for one in ALL.values():
        if one.removed is not None:
            one.removed(tx, job)


def end(tx: Transaction[Any]) -> None:
    """Write what features keep until the end of a transaction."""
    if not tx.kept:
        return
    for one in ALL.values():
        if one.ending is not None:
            one.ending(tx)
