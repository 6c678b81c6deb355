"""The history of a job: what is known of its moves."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenure.model.job import FINAL, Job

MOST_MOVES = 20
PAST_MS = 90 * 86_400_000  # how long the actions of operators are kept

PastMove = Literal["cancelled", "cancel_heard", "replayed", "run_now", "updated"]


# How moves of the same millisecond follow each other.
_ORDER = {"created": 0, "claimed": 2, "failed": 3, "done": 4, "dead": 4, "cancelled": 4}


class Past(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action of an operator on a job, or that its worker learned of a cancellation."""

    at: int
    what: PastMove
    by: str = ""


class JobMove(msgspec.Struct, frozen=True, omit_defaults=True):
    """A move of a job. `what`: created, claimed, failed, done, dead, cancelled, cancel_heard (by
    its worker), replayed, run_now or updated. `by`: the worker, or who asked for it, if that is
    known."""

    at: int
    what: str
    by: str = ""
    attempt: int = 0
    message: str = ""
    type: str = ""


def past_key(job_id: str, past: Past) -> str:
    """The key of a record: those of a job sort by time. No id has a NUL, and 0x01 sorts first."""
    return f"{job_id}\x01{past.at:015d}.{past.what}"


def heard_key(job_id: str, token: int) -> str:
    """The key of the record that says that the holder of a lease learned of a cancellation. There
    is one for each lease, however often it is reported. It sorts after keys with a time."""
    return f"{job_id}\x01heard.{token:020d}"


def past_keys(job_id: str) -> tuple[str, str]:
    """The keys before and after those of a job."""
    return f"{job_id}\x01", f"{job_id}\x02"


def history_of(job: Job, past: list[Past]) -> list[JobMove]:
    """The last moves of a job, oldest first: those that its fields record, and what operators did.
    Only the last claim is known, and only the failures that are kept."""
    moves = [JobMove(job.created_at, "created")]
    for one in job.errors:
        moves.append(JobMove(one.at, "failed", one.worker, one.attempt, one.message, one.type))
    if job.started_at is not None:
        moves.append(JobMove(job.started_at, "claimed", job.worker, job.attempts))
    told = {(one.at, one.what) for one in past}
    end = job.finished_at
    if job.state in FINAL and end is not None and (end, job.state.value) not in told:
        moves.append(JobMove(end, job.state.value, job.worker, job.attempts))
    moves += [JobMove(one.at, one.what, one.by) for one in past if one.at >= job.created_at]
    return sorted(moves, key=lambda move: (move.at, _ORDER.get(move.what, 1)))[-MOST_MOVES:]
