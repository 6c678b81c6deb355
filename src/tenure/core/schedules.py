"""Schedules, decided by the store's clock. A client's clock decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tenure.core.enqueue import enqueue
from tenure.core.transaction import J, Transaction
from tenure.errors import Forbidden, InvalidInput, ScheduleNotFound, TenureError
from tenure.model import ops
from tenure.model.cron import due_tick, next_tick
from tenure.model.job import JobSpec
from tenure.model.ops import BACK_MS, Answer, Fire, PutSchedule, Schedule


class Firing(NamedTuple):
    """The effect of a Fire."""

    schedule: Schedule  # the updated schedule
    jobs: tuple[JobSpec, ...]


def put_schedule(tx: Transaction[J], batch: Sequence[PutSchedule]) -> list[Answer]:
    return [_put(tx, op) for op in batch]


def _put(tx: Transaction[J], op: PutSchedule) -> Answer:
    with tx.by_store_time():
        try:
            old = tx.schedule(op.schedule.name)
            if old is not None and hides(op.grant, old):
                return Forbidden(f"the name {old.name!r} is taken by another schedule")
            new = updated(op, old, tx.now)
        except InvalidInput as error:
            return error
        tx.put_schedule(new)
    return ops.Ok()


def drop_schedule(tx: Transaction[J], batch: Sequence[ops.DropSchedule]) -> list[Answer]:
    return [_drop(tx, op) for op in batch]


def _drop(tx: Transaction[J], op: ops.DropSchedule) -> Answer:
    if op.grant is not None:
        old = tx.schedule(op.name)
        if old is None or hides(op.grant, old):
            return ScheduleNotFound(op.name)
    return ops.Ok() if tx.drop_schedule(op.name) else ScheduleNotFound(op.name)


def fire(tx: Transaction[J], batch: Sequence[Fire]) -> list[Answer]:
    return [_fire(tx, op) for op in batch]


def _fire(tx: Transaction[J], op: Fire) -> Answer:
    with tx.by_store_time():
        schedule = tx.schedule(op.name)
        if schedule is None or hides(op.grant, schedule):
            return ScheduleNotFound(op.name)
        try:
            firing = fired(op, schedule, tx.now)
        except InvalidInput as error:
            return error
        if firing is None:
            return ops.Fired(False)
        if firing.jobs:
            (answer,) = enqueue(tx, [ops.Enqueue(firing.jobs, "skip")])
            if isinstance(answer, TenureError):
                return answer
        tx.put_schedule(firing.schedule)
        return ops.Fired(bool(firing.jobs))


def hides(grant: ops.Grant | None, schedule: Schedule) -> bool:
    """Whether the grant hides an existing schedule."""
    return grant is not None and not grant.allows(schedule.job.queue, schedule.job.tenant)


def updated(op: PutSchedule, old: Schedule | None, now: int) -> Schedule:
    """The schedule to store; raises InvalidInput."""
    new = op.schedule
    if old is not None and _continues(old, new):
        return replace(new, next_at=old.next_at, last_at=old.last_at)
    if not new.next_at:
        return replace(new, next_at=next_tick(new.cron, new.tz, now))
    return new


def _continues(old: Schedule, new: Schedule) -> bool:
    """Whether the new schedule keeps the next time of the old one."""
    enabled_again = old.disabled and not new.disabled
    return (old.cron, old.tz) == (new.cron, new.tz) and not enabled_again


def fired(op: Fire, schedule: Schedule, now: int) -> Firing | None:
    """The effect of a Fire, if any; raises InvalidInput."""
    if schedule.next_at != op.tick or schedule.disabled:
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
    """Whether the next time skips an earlier one that is still to come, because a clock was ahead.
    Times up to BACK_MS from now may have been fired before the clock was set back."""
    soon = now + BACK_MS
    return schedule.next_at > soon and (
        schedule.next_at > next_tick(schedule.cron, schedule.tz, soon)
    )


def _job(job: JobSpec, job_id: str, tick: int) -> JobSpec:
    return replace(job, id=job_id, delay_ms=0, run_at=tick + job.delay_ms, made_up_id=False)
