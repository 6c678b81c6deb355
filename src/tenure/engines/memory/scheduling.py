"""Slots and schedules."""

from __future__ import annotations

from msgspec.structs import replace

from tenure.engines.memory.memory_store import handles, is_outside
from tenure.engines.memory.operating import Operator
from tenure.errors import (
    Forbidden,
    InvalidInput,
    ScheduleNotFound,
    TenureError,
)
from tenure.model import ops
from tenure.model.cron import LATE_MS, last_tick, next_tick
from tenure.model.ops import Answer


class Schedules(Operator):
    """Slots and schedules."""

    @handles(ops.TakeSlot)
    def _take_slot(self, op: ops.TakeSlot, now: int) -> Answer:
        slots = self._current_slots(op.scope, op.key, now)
        others = len(slots) - (op.holder in slots)
        held = op.limit is None or others < op.limit
        if held:
            slots[op.holder] = now + op.ttl_ms
        else:
            slots.pop(op.holder, None)
        return ops.Slots(len(slots), held)

    @handles(ops.DropSlot)
    def _drop_slot(self, op: ops.DropSlot, now: int) -> Answer:
        slots = self._current_slots(op.scope, op.key, now)
        slots.pop(op.holder, None)
        return ops.Slots(len(slots), False)

    def _current_slots(self, scope: str, key: str, now: int) -> dict[str, int]:
        slots = self._slots[scope, key]
        for holder in [h for h, expires_at in slots.items() if expires_at <= now]:
            del slots[holder]
        return slots

    @handles(ops.PutSchedule)
    def _put_schedule(self, op: ops.PutSchedule, now: int) -> Answer:
        new, old = op.schedule, self._schedules.get(op.schedule.name)
        if old is not None and self._is_hidden_schedule(op):
            return Forbidden(f"the name {new.name!r} is taken by another schedule")
        same = old is not None and (old.cron, old.tz) == (new.cron, new.tz)
        if old is not None and same and (new.disabled or not old.disabled):
            new = replace(new, next_at=old.next_at, last_at=old.last_at)
        elif new.next_at == 0:
            try:
                new = replace(new, next_at=next_tick(new.cron, new.tz, now))
            except InvalidInput as error:
                return error
        self._schedules[new.name] = new
        return ops.Ok()

    def _is_hidden_schedule(self, op: ops.PutSchedule | ops.DropSchedule | ops.Fire) -> bool:
        name = op.schedule.name if isinstance(op, ops.PutSchedule) else op.name
        return is_outside(op.grant, self._schedules[name].job)

    @handles(ops.DropSchedule)
    def _drop_schedule(self, op: ops.DropSchedule, now: int) -> Answer:
        if op.name in self._schedules and self._is_hidden_schedule(op):
            return ScheduleNotFound(op.name)
        if self._schedules.pop(op.name, None) is None:
            return ScheduleNotFound(op.name)
        return ops.Ok()

    @handles(ops.Fire)
    def _fire(self, op: ops.Fire, now: int) -> Answer:
        schedule = self._schedules.get(op.name)
        if schedule is None or self._is_hidden_schedule(op):
            return ScheduleNotFound(op.name)
        if schedule.next_at != op.tick or schedule.disabled:
            return ops.Fired(False)
        try:
            if op.tick > now:
                self._correct(schedule, now)
                return ops.Fired(False)
            return self._fire_due(schedule, op.id, now)
        except InvalidInput as error:
            return error

    def _correct(self, schedule: ops.Schedule, now: int) -> None:
        """Correct a schedule that waits for a time later than its next one, because a clock was
        ahead. Times within BACK_MS may have fired already, before the clock was set back."""
        latest = next_tick(schedule.cron, schedule.tz, now + ops.BACK_MS)
        if schedule.next_at > latest:
            next_at = next_tick(schedule.cron, schedule.tz, now)
            self._schedules[schedule.name] = replace(schedule, next_at=next_at)

    def _fire_due(self, schedule: ops.Schedule, id: str, now: int) -> Answer:
        cron, tz, tick = schedule.cron, schedule.tz, schedule.next_at
        if schedule.catch_up != "all":
            tick = last_tick(cron, tz, tick, now)
        fires = schedule.catch_up != "none" or now <= tick + LATE_MS
        if fires:
            run_at = tick + schedule.job.delay_ms
            job = replace(schedule.job, id=id, delay_ms=0, run_at=run_at, made_up_id=False)
            answer = self._enqueue(ops.Enqueue((job,), "skip"), now)
            if isinstance(answer, TenureError):
                return answer
        self._schedules[schedule.name] = replace(
            schedule, next_at=next_tick(cron, tz, tick), last_at=schedule.next_at
        )
        return ops.Fired(fires)
