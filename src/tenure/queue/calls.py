"""The calls of a Queue: they validate arguments, build operations and queries, unpack the answers.

Every call is written once, as a generator (see sync_async.py), and has two public forms: the
blocking `enqueue()` and the awaitable `aenqueue()`.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import Duplicate, InvalidInput, JobNotFound, TenureError
from tenure.model import ops, queries, states
from tenure.model.cron import CatchUp
from tenure.model.fields import (
    MAX_JOBS_PER_CALL,
    POSITIVE_SPAN,
    checker,
    percent_of,
    span_ms,
    validated,
)
from tenure.model.job import (
    FINAL,
    NULL,
    IfParentFails,
    Job,
    JobSpec,
    Lease,
    NewJob,
    State,
    encode_json,
    new_ids,
    prepare,
)
from tenure.model.ops import IfExists, Limit, Op, Schedule
from tenure.model.queries import Filter, Slot
from tenure.model.retry import Backoff
from tenure.observe.tracing import current_trace, sending
from tenure.queue.arguments import (
    Seconds,
    fail_op,
    failure_text,
    filter_of,
    good,
    ids_of,
    lease_of,
    listed,
    of_kind,
    scope_of,
    several,
    some_jobs,
    states_of,
)
from tenure.queue.editing import Editing
from tenure.queue.insight import Insight
from tenure.queue.lookup import Lookup
from tenure.queue.matching import Matching
from tenure.queue.record_calls import RecordCalls, with_note
from tenure.queue.sync_async import Steps, Wanted, Within, awaiting, blocking
from tenure.queue.wakeups import Changes
from tenure.settings import Settings

_check_if_exists = checker(IfExists)


class EnqueuedIds(list[str]):
    """Job ids in the order they were submitted; `created[i]` is False if the i-th job already
    existed."""

    def __init__(self, ids: Iterable[str] = (), created: Iterable[bool] = ()) -> None:
        super().__init__(ids)
        self.created: list[bool] = list(created)


PAGE = 1000  # jobs changed per operation when a filter selects them


class Calls(Insight, Lookup, Matching, Editing, RecordCalls):
    """The public calls of a queue. Subclasses implement `do` and `ado`, which carry out a step."""

    settings: Settings
    clock: Clock
    changes: Changes

    def do(self, wanted: Wanted) -> Any:
        """Carry out one step of a call and return its answer, blocking."""
        raise NotImplementedError

    async def ado(self, wanted: Wanted) -> Any:
        """Carry out one step of a call and return its answer."""
        raise NotImplementedError

    def _log_bytes(self) -> int | None:
        """The size of the store's write-ahead log, if it has one."""
        return None

    def _away(self) -> tuple[str, ...]:
        """The shards that are away."""
        return ()

    def audited(self, *, by: str = "", reason: str = "") -> Calls:
        """The same calls, whose changes are added to the audit log: who makes them, and why. The
        entry is stored together with the change. A service replaces `by` by the name of the
        token."""
        return _Audited(self, validated(ops.Note(by, reason)))

    # Producing ----------------------------------------------------------------------------------

    def _enqueue(
        self,
        queue: str,
        payload: Any = None,
        *,
        kind: str = "",
        tenant: str = "",
        group: str = "",
        priority: int = 0,
        delay: Seconds = 0,
        run_at: datetime | None = None,
        id: str | None = None,
        unique_key: str | None = None,
        after: Sequence[str | Job] = (),
        if_parent_fails: IfParentFails = "wait",
        max_attempts: int = 3,
        backoff: Backoff | None = None,
        expires_in: Seconds | None = None,
        timeout: Seconds | None = None,
        trace: str | None = None,
        if_exists: IfExists = "error",
        connection: Any = None,
    ) -> Steps[Job]:
        """Add a job and return it once it is durable.

        priority: lower values run first. delay, expires_in, timeout: in seconds. after: jobs that
        must be done before this one runs; if_parent_fails says what happens if one of them fails.
        unique_key: at most one unfinished job per queue and tenant can have it. if_exists="skip":
        if the id or unique key is taken, return the existing job instead of raising Duplicate.
        connection: write on this connection, inside its open transaction. trace: a traceparent to
        use instead of the caller's.
        """
        new = NewJob(
            queue=queue,
            payload=payload,
            kind=kind,
            tenant=tenant,
            group=group,
            priority=priority,
            delay=delay,
            run_at=run_at,
            id=id,
            unique_key=unique_key,
            after=ids_of(after, "after") if after else (),
            if_parent_fails=if_parent_fails,
            max_attempts=max_attempts,
            backoff=backoff,
            expires_in=expires_in,
            timeout=timeout,
            trace=trace,
        )
        return (yield from self._enqueue_new(new, if_exists, connection))

    def _enqueue_new(
        self, new: NewJob, if_exists: IfExists = "error", connection: Any = None
    ) -> Steps[Job]:
        """Add the job that a NewJob describes, and return it."""
        _check_if_exists("if_exists", if_exists)
        with sending([new]) as its_trace:
            (spec,) = self.prepare([new], its_trace)
            batch = [ops.Enqueue((spec,), if_exists)]
            (answer,) = yield batch if connection is None else Within(connection, batch)
            enqueued = good(answer, ops.Enqueued)
        if connection is None and (spec.after or not enqueued.created[0]):
            found = yield queries.GetJob(enqueued.ids[0])
            if not isinstance(found, JobNotFound):  # it may have finished and been removed since
                return good(found, Job)
        # A new job need not be read back, and in another connection's transaction it cannot be.
        state = State.WAITING if spec.after else State.PENDING
        job = spec.to_job(state, enqueued.at)
        return job if job.id == enqueued.ids[0] else replace(job, id=enqueued.ids[0])

    def _enqueue_many(
        self,
        jobs: Iterable[NewJob],
        *,
        if_exists: IfExists = "error",
        connection: Any = None,
    ) -> Steps[EnqueuedIds]:
        """Add many jobs, all or none, and return their ids in order; the list's `created` says
        which of them are new."""
        news = listed("jobs", jobs)
        if len(news) > MAX_JOBS_PER_CALL:  # before any work is done
            raise InvalidInput("jobs", f"{len(news):,} in one call; at most {MAX_JOBS_PER_CALL:,}")
        if not news:
            return EnqueuedIds()
        _check_if_exists("if_exists", if_exists)
        with sending(news) as its_trace:
            specs = self.prepare(news, its_trace)
            batch = [ops.Enqueue(tuple(specs), if_exists)]
            (answer,) = yield batch if connection is None else Within(connection, batch)
            enqueued = good(answer, ops.Enqueued)
        return EnqueuedIds(enqueued.ids, enqueued.created)

    def prepare(self, jobs: Sequence[NewJob], trace: str | None = None) -> list[JobSpec]:
        """Validate jobs and return them as operations carry them. Jobs without a trace get this
        one, or the caller's. Raises InvalidInput."""
        specs = prepare(jobs, self.clock.now_ms(), self.settings.payload_limit)
        trace = trace or current_trace()
        if trace is not None:
            specs = [spec if spec.trace else replace(spec, trace=trace) for spec in specs]
        return specs

    # Working ------------------------------------------------------------------------------------

    def _claim(
        self,
        queues: str | Sequence[str],
        *,
        limit: int = 1,
        lease: Seconds | None = None,
        worker: str | None = None,
        tenant: str | None = None,
        not_groups: Sequence[str] = (),
    ) -> Steps[list[Job]]:
        """Lease up to `limit` ready jobs for `lease` seconds and return them.

        Several queues are tried in the order given. Tenants take turns. tenant: only claim this
        tenant's jobs. not_groups: skip jobs of these groups.
        """
        op = ops.Claim(
            tuple(several("queues", queues)),
            worker or default_worker(),
            self._lease_ms(lease),
            limit,
            tenant,
            tuple(listed("not_groups", not_groups)),
        )
        (answer,) = yield [validated(op)]
        return good(answer, ops.Leased).jobs

    def _ack(
        self,
        job: Job | Lease,
        result: Any = None,
        *,
        then: Iterable[NewJob] = (),
        keep: bool = True,
    ) -> Steps[None]:
        """Mark a claimed job as done, with its result.

        then: jobs to enqueue in the same transaction. keep=False: delete the job right away.
        """
        (answer,) = yield [self._ack_op(job, result, then, keep)]
        good(answer, ops.Ok)

    def _ack_many(
        self,
        jobs: Sequence[Job | Lease],
        results: Sequence[Any] | None = None,
        *,
        keep: bool = True,
    ) -> Steps[list[TenureError | None]]:
        """Mark many jobs as done. Returns one entry per job: None, or the error it met."""
        jobs = listed("jobs", jobs)
        if results is not None and len(results) != len(jobs):
            raise InvalidInput("results", f"{len(results)} for {len(jobs)} jobs")
        if results is None:
            answers = yield [ops.Ack(*lease_of(job), NULL, (), keep) for job in jobs]
        else:
            pairs = zip(jobs, results, strict=True)
            answers = yield [self._ack_op(job, result, (), keep) for job, result in pairs]
        return _errors(answers)

    def _ack_op(self, job: Job | Lease, result: Any, then: Iterable[NewJob], keep: bool) -> Op:
        limit = self.settings.payload_limit
        raw = NULL if result is None else encode_json("result", result, limit)
        jobs = tuple(self.prepare(listed("then", then))) if then != () else ()
        return ops.Ack(*lease_of(job), raw, jobs, keep)

    def _fail(
        self,
        job: Job | Lease,
        error: str | BaseException = "",
        *,
        retry_in: Seconds | None = None,
        fatal: bool = False,
        cancel: bool = False,
    ) -> Steps[State]:
        """Report that the attempt failed, and return the job's new state.

        The job is retried after its backoff, or after `retry_in` seconds; it is dead if it has no
        attempts left. fatal: make it dead right away. cancel: cancel it instead.
        """
        (answer,) = yield [fail_op(job, error, retry_in, fatal, cancel)]
        return good(answer, ops.Moved).state

    def _fail_many(
        self,
        jobs: Sequence[Job | Lease],
        error: str | BaseException = "",
        *,
        retry_in: Seconds | None = None,
        fatal: bool = False,
    ) -> Steps[list[TenureError | None]]:
        """Report many failed attempts. Returns one entry per job: None, or the error it met."""
        answers = yield [fail_op(job, error, retry_in, fatal) for job in listed("jobs", jobs)]
        return _errors(answers)

    def _extend(self, job: Job | Lease, lease: Seconds | None = None) -> Steps[None]:
        """Extend the lease of a job to `lease` seconds from now."""
        (answer,) = yield [ops.Extend(*lease_of(job), self._lease_ms(lease))]
        good(answer, ops.Ok)

    def _extend_many(
        self, jobs: Sequence[Job | Lease], lease: Seconds | None = None
    ) -> Steps[list[TenureError | None]]:
        """Extend many leases. Returns one entry per job: None, or the error it met."""
        lease_ms = self._lease_ms(lease)
        answers = yield [ops.Extend(*lease_of(job), lease_ms) for job in listed("jobs", jobs)]
        return _errors(answers)

    def _release(self, job: Job | Lease, *, delay: Seconds = 0, reason: str = "") -> Steps[None]:
        """Give a job back to the queue, to run now or after `delay` seconds. The attempt does not
        count. reason: added to the job's errors, unless the last one is the same."""
        delay_ms = span_ms("delay", delay)
        (answer,) = yield [ops.Release(*lease_of(job), delay_ms, failure_text(reason))]
        good(answer, ops.Moved)

    def _progress(self, job: Job | Lease, percent: float, note: str | None = None) -> Steps[None]:
        """Report progress: a percentage from 0 to 100 and an optional note."""
        (answer,) = yield [validated(ops.Progress(*lease_of(job), percent_of(percent), note))]
        good(answer, ops.Ok)

    def _lease_ms(self, lease: Seconds | None) -> int:
        return span_ms("lease", self.settings.lease if lease is None else lease, POSITIVE_SPAN)

    # Looking ------------------------------------------------------------------------------------

    def _get(self, id: str) -> Steps[Job]:
        """Return a job by its id. Raises JobNotFound."""
        return good((yield validated(queries.GetJob(id))), Job)

    def _find_ids(self, prefix: str, *, limit: int = 10) -> Steps[list[str]]:
        """List the ids that start with `prefix`, sorted."""
        query = validated(queries.FindByPrefix(prefix, limit))
        return good((yield query), queries.Ids).ids

    def _next_due(self, queues: str | Sequence[str]) -> Steps[int | None]:
        """When the next delayed job of these queues becomes due or the next lease expires, in
        milliseconds since 1970 by this machine's clock. This can lie in the past."""
        query = queries.NextDue(tuple(several("queues", queues)))
        return good((yield validated(query)), queries.Due).at

    def _oldest_ready(self, queues: str | Sequence[str]) -> Steps[int | None]:
        """When the longest-waiting ready job became ready, in milliseconds since 1970 by this
        machine's clock, or None if no job is ready. Only the next job in line of each tenant,
        group and priority is considered."""
        query = queries.OldestReady(tuple(several("queues", queues)))
        return good((yield validated(query)), queries.Due).at

    def _stats(self, queue: str | None = None) -> Steps[queries.Stats]:
        """Count jobs by state, in total and per queue. Raises QueueNotFound."""
        query = validated(queries.GetStats(queue))
        found: list[queries.QueueStats] = good((yield query), list)
        stats = queries.overall(found)
        log, away = self._log_bytes(), self._away()
        return replace(stats, log_bytes=log, away=away) if log is not None or away else stats

    def _tenants(
        self, queue: str, *, limit: int = 100, after: str | None = None
    ) -> Steps[list[queries.TenantStats]]:
        """Count jobs per tenant of a queue, ordered by name, starting after the tenant `after`."""
        return good((yield validated(queries.ListTenants(queue, limit, after))), list)

    def _groups(
        self, queue: str, *, tenant: str = "", limit: int = 100, after: str | None = None
    ) -> Steps[list[queries.GroupStats]]:
        """Count jobs per group of a tenant, ordered by name, starting after the group `after`."""
        return good((yield validated(queries.ListGroups(queue, tenant, limit, after))), list)

    def _group_totals(
        self, queue: str, *, group: str | None = None, limit: int = 100, after: str | None = None
    ) -> Steps[list[queries.GroupTotal]]:
        """Count jobs per group of a queue, all tenants together, ordered by name, starting after
        the group `after`; or only of one group. Groups without jobs are left out."""
        query = queries.ListGroupTotals(queue, limit, after, group)
        return good((yield validated(query)), list)

    # Operating ----------------------------------------------------------------------------------

    def _cancel(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
    ) -> Steps[int]:
        """Cancel one job, several, or all that match, and return how many were cancelled. Finished
        jobs are left alone. Raises JobNotFound if a single job does not exist."""
        where = filter_of(
            queue, tuple(sorted(states.sources(states.Cancelled))), tenant, group, kind
        )
        some_jobs("cancel", jobs, queue, tenant, group, kind)
        return (yield from self._change(jobs, where, ops.Cancel))

    def _replay(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        state: str = State.DEAD,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        error: str | None = None,
    ) -> Steps[int]:
        """Run dead or cancelled jobs again from attempt 0: one, several, or all that match.
        error: the group of their last error, as in `errors()`. Returns how many."""
        where = filter_of(queue, states_of(state), tenant, group, kind, error)
        if jobs is not None:
            some_jobs("replay", jobs, queue, tenant, group, kind, error)
        elif not set(where.states) <= states.sources(states.Replayed):
            raise InvalidInput("state", "only dead and cancelled jobs can be replayed")
        return (yield from self._change(jobs, where, ops.Replay))

    def _run_now(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
    ) -> Steps[int]:
        """Make delayed jobs, and those that wait for their next attempt, ready now: one, several,
        or all that match. Their attempts stay as they are. Returns how many."""
        where = filter_of(queue, (State.PENDING,), tenant, group, kind)
        some_jobs("run_now", jobs, queue, tenant, group, kind)
        return (yield from self._change(jobs, where, ops.RunNow))

    def _delete(
        self,
        jobs: str | Job | Sequence[str | Job] | None = None,
        *,
        queue: str | None = None,
        state: str | Sequence[str] | None = None,
        tenant: str | None = None,
        group: str | None = None,
        kind: str | None = None,
        error: str | None = None,
    ) -> Steps[int]:
        """Delete jobs permanently: one, several, or all that match. error: the group of their last
        error, as in `errors()`. Returns how many."""
        where = filter_of(queue, states_of(state), tenant, group, kind, error)
        filters = (queue, tenant, group, kind, error)
        some_jobs("delete", jobs, *filters, *([] if jobs is not None else where.states))
        return (yield from self._change(jobs, where, _deleting(where.states)))

    def _purge(
        self,
        older_than: Seconds,
        *,
        queue: str | None = None,
        state: str | Sequence[str] = (State.DONE, State.CANCELLED),
    ) -> Steps[int]:
        """Delete jobs that finished more than `older_than` seconds ago, and return how many. Dead
        jobs are kept unless `state` names them."""
        before = self.clock.now_ms() - span_ms("older_than", older_than)
        ended = states_of(state)
        for one in ended:
            if one not in FINAL:
                raise InvalidInput("state", f"{one.value} jobs have not ended")
        removed = 0
        for one in ended:
            where = replace(filter_of(queue, (one,)), finished_before=before)
            removed += yield from self._change(None, where, _deleting((one,)))
        return removed

    def _change(
        self,
        jobs: str | Job | Sequence[str | Job] | None,
        where: Filter,
        op: Callable[[tuple[str, ...]], Op],
    ) -> Steps[int]:
        """Change jobs by id in one operation, or those that a filter matches page by page."""
        if isinstance(jobs, str | Job):
            (one,) = ids = ids_of([jobs], "jobs")
            (answer,) = yield [op(ids)]
            changed = good(answer, ops.Changed)
            if changed.missing:
                raise JobNotFound(one)
            if changed.refused:
                job = good((yield queries.GetJob(one)), Job)
                raise Duplicate("unique_key", job.unique_key or "", changed.refused[one])
            return changed.count
        if jobs is not None:
            (answer,) = yield [op(ids_of(jobs, "jobs"))]
            return good(answer, ops.Changed).count
        count, cursor = 0, None
        while True:
            found = good((yield queries.FindIds(where, PAGE, cursor)), queries.Ids)
            if found.ids:
                (answer,) = yield [op(tuple(found.ids))]
                count += good(answer, ops.Changed).count
            cursor = found.cursor
            if cursor is None:
                return count

    # Flow control -------------------------------------------------------------------------------

    def _set_limit(
        self,
        queue: str,
        *,
        tenant: str | None = None,
        group: str | None = None,
        concurrency: int | None = None,
        rate: int | None = None,
        per: Seconds | None = None,
        weight: int | None = None,
    ) -> Steps[None]:
        """Set limits on a queue, a tenant or a group. Limits left out stay as they are.

        concurrency: how many jobs can be leased at once. rate: how many jobs of the queue can be
        claimed per `per` seconds. weight: the tenant's share of turns. tenant="*" or group="*"
        sets the default for each tenant or group.
        """
        per_ms = None if per is None else span_ms("per", per, POSITIVE_SPAN)
        bounds = (concurrency, rate, per_ms, weight)
        op = ops.SetLimit(queue, *scope_of(tenant, group), *bounds)
        (answer,) = yield [validated(op)]
        good(answer, ops.Ok)

    def _clear_limit(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[None]:
        """Remove the limits set on a queue, a tenant or a group. A pause stays in place."""
        (answer,) = yield [validated(ops.ClearLimit(queue, *scope_of(tenant, group)))]
        good(answer, ops.Ok)

    def _limits(self, queue: str | None = None) -> Steps[list[Limit]]:
        """List all limits and pauses."""
        return good((yield validated(queries.ListLimits(queue))), list)

    def _pause(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[None]:
        """Stop handing out jobs of a queue, or of one of its tenants or groups, until `resume`."""
        (answer,) = yield [validated(ops.Pause(queue, *scope_of(tenant, group)))]
        good(answer, ops.Ok)

    def _resume(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[None]:
        """End a pause. Raises QueueNotFound."""
        (answer,) = yield [validated(ops.Resume(queue, *scope_of(tenant, group)))]
        good(answer, ops.Ok)

    # Slots --------------------------------------------------------------------------------------

    def _take_slot(
        self, scope: str, key: str, holder: str, ttl: Seconds, *, limit: int | None = None
    ) -> Steps[ops.Slots]:
        """Take a slot under (scope, key) for `holder`, for `ttl` seconds, or renew it.

        With a limit, the slot is only taken or renewed if fewer than `limit` others are held.
        Returns the count and whether the holder has a slot.
        """
        op = ops.TakeSlot(scope, key, holder, span_ms("ttl", ttl, POSITIVE_SPAN), limit)
        (answer,) = yield [validated(op)]
        return good(answer, ops.Slots)

    def _drop_slot(self, scope: str, key: str, holder: str) -> Steps[int]:
        """Give up a holder's slot, and return how many are left."""
        (answer,) = yield [validated(ops.DropSlot(scope, key, holder))]
        return good(answer, ops.Slots).count

    def _slots(self, scope: str, key: str) -> Steps[list[Slot]]:
        """List the slots held under (scope, key)."""
        return good((yield validated(queries.ListSlots(scope, key))), list)

    # Schedules ----------------------------------------------------------------------------------

    def _put_schedule(
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
        (spec,) = self.prepare([job])
        # The store's clock decides when it fires.
        schedule = Schedule(name, cron, spec, tz=tz, catch_up=catch_up, owner=owner)
        (answer,) = yield [validated(ops.PutSchedule(schedule))]
        good(answer, ops.Ok)

    def _drop_schedule(self, name: str) -> Steps[None]:
        """Delete a schedule. Raises ScheduleNotFound."""
        (answer,) = yield [validated(ops.DropSchedule(name))]
        good(answer, ops.Ok)

    def _schedules(self) -> Steps[list[Schedule]]:
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
        (fresh,) = new_ids(self.clock.now_ms(), 1)
        (answer,) = yield [ops.Fire(schedule.name, schedule.next_at, fresh)]
        return good(answer, ops.Fired).fired

    # Upkeep -------------------------------------------------------------------------------------

    def _maintain(self, *, limit: int = 1000) -> Steps[ops.Maintained]:
        """Run due maintenance: delayed jobs that are due, expired leases, jobs and slots, and
        retention. Handles at most `limit` of each kind per queue, in steps of their own commits. A
        queue that has been without jobs and limits for an hour is forgotten."""
        keep = self.settings
        op = ops.Maintain(
            limit,
            None if keep.keep_done is None else span_ms("keep_done", keep.keep_done),
            None if keep.keep_cancelled is None else span_ms("keep_cancelled", keep.keep_cancelled),
            None if keep.keep_dead is None else span_ms("keep_dead", keep.keep_dead),
        )
        total = ops.Maintained(after="")
        while total.after is not None:
            (answer,) = yield [validated(replace(op, after=total.after))]
            total += good(answer, ops.Maintained)
        return total

    def _reconcile(
        self, queue: str, *, tenant: str | None = None, group: str | None = None
    ) -> Steps[dict[str, int]]:
        """Recount the counters of a queue, a tenant or a group. Returns the correction applied to
        each counter that was wrong."""
        (answer,) = yield [validated(ops.Reconcile(queue, tenant, group))]
        return good(answer, ops.Corrected).by

    def _reconcile_slots(self, scope: str, key: str) -> Steps[int]:
        """Recount the slots under (scope, key). Returns the correction."""
        (answer,) = yield [validated(ops.ReconcileSlots(scope, key))]
        return good(answer, ops.Corrected).by.get("slots", 0)

    # The public forms ---------------------------------------------------------------------------

    enqueue: Final = blocking(_enqueue)
    aenqueue: Final = awaiting(_enqueue)
    _aenqueue_new = awaiting(_enqueue_new)  # for the service, which parses a NewJob
    enqueue_many: Final = blocking(_enqueue_many)
    aenqueue_many: Final = awaiting(_enqueue_many)
    claim: Final = blocking(_claim)
    aclaim: Final = awaiting(_claim)
    ack: Final = blocking(_ack)
    aack: Final = awaiting(_ack)
    ack_many: Final = blocking(_ack_many)
    aack_many: Final = awaiting(_ack_many)
    fail: Final = blocking(_fail)
    afail: Final = awaiting(_fail)
    fail_many: Final = blocking(_fail_many)
    afail_many: Final = awaiting(_fail_many)
    extend: Final = blocking(_extend)
    aextend: Final = awaiting(_extend)
    extend_many: Final = blocking(_extend_many)
    aextend_many: Final = awaiting(_extend_many)
    release: Final = blocking(_release)
    arelease: Final = awaiting(_release)
    progress: Final = blocking(_progress)
    aprogress: Final = awaiting(_progress)
    get: Final = blocking(_get)
    aget: Final = awaiting(_get)
    find_ids: Final = blocking(_find_ids)
    afind_ids: Final = awaiting(_find_ids)
    next_due: Final = blocking(_next_due)
    anext_due: Final = awaiting(_next_due)
    oldest_ready: Final = blocking(_oldest_ready)
    aoldest_ready: Final = awaiting(_oldest_ready)
    stats: Final = blocking(_stats)
    astats: Final = awaiting(_stats)
    tenants: Final = blocking(_tenants)
    atenants: Final = awaiting(_tenants)
    groups: Final = blocking(_groups)
    agroups: Final = awaiting(_groups)
    group_totals: Final = blocking(_group_totals)
    agroup_totals: Final = awaiting(_group_totals)
    cancel: Final = blocking(_cancel)
    acancel: Final = awaiting(_cancel)
    replay: Final = blocking(_replay)
    areplay: Final = awaiting(_replay)
    run_now: Final = blocking(_run_now)
    arun_now: Final = awaiting(_run_now)
    delete: Final = blocking(_delete)
    adelete: Final = awaiting(_delete)
    purge: Final = blocking(_purge)
    apurge: Final = awaiting(_purge)
    set_limit: Final = blocking(_set_limit)
    aset_limit: Final = awaiting(_set_limit)
    clear_limit: Final = blocking(_clear_limit)
    aclear_limit: Final = awaiting(_clear_limit)
    limits: Final = blocking(_limits)
    alimits: Final = awaiting(_limits)
    pause: Final = blocking(_pause)
    apause: Final = awaiting(_pause)
    resume: Final = blocking(_resume)
    aresume: Final = awaiting(_resume)
    take_slot: Final = blocking(_take_slot)
    atake_slot: Final = awaiting(_take_slot)
    drop_slot: Final = blocking(_drop_slot)
    adrop_slot: Final = awaiting(_drop_slot)
    slots: Final = blocking(_slots)
    aslots: Final = awaiting(_slots)
    put_schedule: Final = blocking(_put_schedule)
    aput_schedule: Final = awaiting(_put_schedule)
    drop_schedule: Final = blocking(_drop_schedule)
    adrop_schedule: Final = awaiting(_drop_schedule)
    schedules: Final = blocking(_schedules)
    aschedules: Final = awaiting(_schedules)
    timetable: Final = blocking(_timetable)
    atimetable: Final = awaiting(_timetable)
    fire: Final = blocking(_fire)
    afire: Final = awaiting(_fire)
    maintain: Final = blocking(_maintain)
    amaintain: Final = awaiting(_maintain)
    reconcile: Final = blocking(_reconcile)
    areconcile: Final = awaiting(_reconcile)
    reconcile_slots: Final = blocking(_reconcile_slots)
    areconcile_slots: Final = awaiting(_reconcile_slots)


class _Audited(Calls):
    """Adds a note to the operations of each call."""

    def __init__(self, inner: Calls, note: ops.Note) -> None:
        self.settings, self.clock, self.changes = inner.settings, inner.clock, inner.changes
        self._inner = inner
        self._note = note

    def do(self, wanted: Wanted) -> Any:
        return self._inner.do(with_note(wanted, self._note))

    async def ado(self, wanted: Wanted) -> Any:
        return await self._inner.ado(with_note(wanted, self._note))

    def _log_bytes(self) -> int | None:
        return self._inner._log_bytes()

    def _away(self) -> tuple[str, ...]:
        return self._inner._away()


@functools.cache
def _worker_of(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}"


def default_worker() -> str:
    """The default worker name: host name and process id."""
    return _worker_of(os.getpid())


def _errors(answers: Iterable[Any]) -> list[TenureError | None]:
    return [answer if isinstance(answer, TenureError) else None for answer in answers]


def _deleting(only: tuple[State, ...]) -> Callable[[tuple[str, ...]], Op]:
    return lambda ids: ops.Delete(ids, only)
