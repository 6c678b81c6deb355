"""What becomes of a schedule, by the time of its store: pure, and the same on every engine.

A client's clock decides nothing here. The model has rules of its own, to compare these with.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from tenure.cron import due_tick, next_tick
from tenure.job import JobSpec
from tenure.ops import BACK_MS, Fire, PutSchedule, Schedule


class Firing(NamedTuple):
    """What a Fire does."""

    schedule: Schedule  # as it is from then on
    jobs: tuple[JobSpec, ...]


def put(op: PutSchedule, old: Schedule | None, now: int) -> Schedule:
    """The schedule to be stored; raises InvalidInput."""
    new = op.schedule
    if old is not None and (old.cron, old.tz) == (new.cron, new.tz):
        return replace(new, next_at=old.next_at, last_at=old.last_at)
    if not new.next_at:
        return replace(new, next_at=next_tick(new.cron, new.tz, now))
    return new


def fire(op: Fire, schedule: Schedule, now: int) -> Firing | None:
    """What is to be done, if anything is; raises InvalidInput."""
    if schedule.next_at != op.tick:
        return None
    if is_too_far(schedule, now):
        next_at = next_tick(schedule.cron, schedule.tz, now)
        return Firing(replace(schedule, next_at=next_at), ())
    if op.tick > now:
        return None
    tick, next_at = due_tick(schedule.cron, schedule.tz, schedule.catch_up, op.tick, now)
    moved = replace(schedule, next_at=next_at, last_at=op.tick)
    return Firing(moved, () if tick is None else (_job(schedule.job, op.id, tick),))


def is_too_far(schedule: Schedule, now: int) -> bool:
    """Whether the next time skips one that is to come: a clock that was ahead has left it behind.
    Times up to BACK_MS from now may have been fired before the clock was set back."""
    soon = now + BACK_MS
    return schedule.next_at > soon and (
        schedule.next_at > next_tick(schedule.cron, schedule.tz, soon)
    )


def _job(job: JobSpec, job_id: str, tick: int) -> JobSpec:
    return replace(job, id=job_id, delay_ms=0, run_at=tick + job.delay_ms, made_up_id=False)
