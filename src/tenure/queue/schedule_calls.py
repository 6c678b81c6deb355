"""Calls on schedules."""

from __future__ import annotations

from tenure.errors import InvalidInput
from tenure.model import ops, queries
from tenure.model.cron import CatchUp
from tenure.model.fields import validated
from tenure.model.job import NewJob, new_ids
from tenure.model.ops import Schedule, good
from tenure.queue.arguments import of_kind
from tenure.queue.sync_async import Caller, Steps, both


class ScheduleCalls(Caller):
    """The schedules of a store: jobs that are enqueued at the times of cron expressions."""

    def _put(
        self,
        name: str,
        cron: str,
        job: NewJob,
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
        owner: str = "",
    ) -> Steps[None]:
        """Create or replace a schedule that enqueues a job at the times of a cron expression. If
        the times do not change, the schedule continues where it was. owner: the app that declares
        it in its code."""
        of_kind("job", job, NewJob)
        if job.id is not None:
            raise InvalidInput("id", "must not be set: each firing creates a new job")
        (spec,) = self._store.prepare([job])
        # The store's clock decides when it fires.
        schedule = Schedule(name, cron, spec, tz=tz, catch_up=catch_up, owner=owner)
        (answer,) = yield [validated(ops.PutSchedule(schedule))]
        good(answer, ops.Ok)

    def _drop(self, name: str) -> Steps[None]:
        """Delete a schedule. Raises ScheduleNotFound."""
        (answer,) = yield [validated(ops.DropSchedule(name))]
        good(answer, ops.Ok)

    def _list(self) -> Steps[list[Schedule]]:
        """List all schedules, ordered by name."""
        return good((yield queries.ListSchedules()), list)

    def _timetable(self) -> Steps[queries.Timetable]:
        """List all schedules, ordered by name, with the store's current time."""
        return good((yield queries.GetTimetable()), queries.Timetable)

    def _fire(self, schedule: Schedule) -> Steps[bool]:
        """Enqueue the job of a schedule that is due by the store's clock, with run_at set to the
        scheduled time. Returns whether it fired.

        catch_up decides which missed times count. If several callers fire the same `next_at`, only
        one succeeds. A `next_at` that skips times, left by a wrong clock, is corrected.
        """
        of_kind("schedule", schedule, Schedule)
        (fresh,) = new_ids(self._store.clock.now_ms(), 1)
        (answer,) = yield [ops.Fire(schedule.name, schedule.next_at, fresh)]
        return good(answer, ops.Fired).fired

    put, aput = both(_put)
    drop, adrop = both(_drop)
    list, alist = both(_list)
    timetable, atimetable = both(_timetable)
    fire, afire = both(_fire)
