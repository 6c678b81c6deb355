"""The calls of a Queue: they validate arguments, build operations and queries, unpack the answers.

Every call is written once, as a generator (see sync_async.py), and has two public forms: the
blocking `enqueue()` and the awaitable `aenqueue()`.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import InvalidInput, JobNotFound, TenureError
from tenure.model import ops, queries
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
from tenure.model.ops import IfExists, Op, Schedule
from tenure.model.retry import Backoff
from tenure.observe.tracing import current_trace, sending
from tenure.queue.arguments import (
    Seconds,
    claim_op,
    fail_op,
    failure_text,
    good,
    ids_of,
    lease_of,
    listed,
    of_kind,
    several,
    too_many_jobs,
)
from tenure.queue.editing import Editing
from tenure.queue.insight import Insight
from tenure.queue.job_changes import JobChanges
from tenure.queue.limits import LimitCalls
from tenure.queue.lookup import Lookup
from tenure.queue.matching import Matching
from tenure.queue.record_calls import RecordCalls, with_note
from tenure.queue.slots import SlotCalls
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


class Calls(JobChanges, LimitCalls, SlotCalls, Insight, Lookup, Matching, Editing, RecordCalls):
    """The public calls of a queue. Subclasses implement `do` and `ado`, which carry out a step."""

    settings: Settings
    clock: Clock
    changes: Changes

    def do(self, wanted: Wanted) -> Any:
        """Carry out one step of a call and return its answer, blocking."""
        raise NotImplementedError

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        """Carry out one step of a call; await its answer."""
        raise NotImplementedError

    def _give_back(self, answer: Any) -> None:
        """Release the jobs in the answer of a step: its caller does not get them. For those that
        block; an awaited call that is cancelled does it by itself."""

    def _log_bytes(self) -> int | None:
        """The size of the store's write-ahead log, if it has one."""
        return None

    def _away(self) -> tuple[str, ...]:
        """The shards that are away."""
        return ()

    def audited(self, *, by: str = "", reason: str = "") -> Calls:
        """Return the same calls, with their changes added to the audit log: who makes them, and
        why. An entry is stored together with its change. A service replaces `by` with the name of
        the token."""
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
        """Add up to 10,000 jobs, all or none, and return their ids in order; the list's `created`
        says which of them are new."""
        news = listed("jobs", jobs)
        if len(news) > MAX_JOBS_PER_CALL:  # before any work is done
            raise too_many_jobs(len(news))
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
        op = claim_op(
            tuple(several("queues", queues)),
            worker or default_worker(),
            self.settings.lease if lease is None else lease,
            limit,
            tenant,
            tuple(listed("not_groups", not_groups)),
        )
        (answer,) = yield [op]
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

        then: jobs to enqueue in the same transaction. keep=False: delete the job right away. If
        this claim of the job was acknowledged before, the first time counts, and this call succeeds
        without changing anything.
        """
        (answer,) = yield [self._ack_op(job, result, then, keep)]
        good(answer, object)

    def _ack_many(
        self,
        jobs: Sequence[Job | Lease],
        results: Sequence[Any] | None = None,
        *,
        keep: bool = True,
    ) -> Steps[list[TenureError | None]]:
        """Mark many jobs as done. Returns one entry per job: None, or its error."""
        jobs = listed("jobs", jobs)
        if results is not None and len(results) != len(jobs):
            raise InvalidInput("results", f"{len(results)} for {len(jobs)} jobs")
        if results is None:
            answers = yield [
                ops.Ack(job.id, job.token, NULL, (), keep)
                if type(job) is Job
                else ops.Ack(*lease_of(job), NULL, (), keep)
                for job in jobs
            ]
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
        """Report many failed attempts. Returns one entry per job: None, or its error."""
        answers = yield [fail_op(job, error, retry_in, fatal) for job in listed("jobs", jobs)]
        return _errors(answers)

    def _extend(self, job: Job | Lease, lease: Seconds | None = None) -> Steps[None]:
        """Extend the lease of a job to `lease` seconds from now."""
        (answer,) = yield [ops.Extend(*lease_of(job), self._lease_ms(lease))]
        good(answer, ops.Ok)

    def _extend_many(
        self, jobs: Sequence[Job | Lease], lease: Seconds | None = None
    ) -> Steps[list[TenureError | None]]:
        """Extend many leases. Returns one entry per job: None, or its error."""
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
        """Return when the next delayed job of these queues becomes due, the next lease expires, or
        a rate that ready jobs wait for allows the next claim: in milliseconds since 1970 by this
        machine's clock. This may be in the past."""
        query = queries.NextDue(tuple(several("queues", queues)))
        return good((yield validated(query)), queries.Due).at

    def _oldest_ready(self, queues: str | Sequence[str]) -> Steps[int | None]:
        """Return when the longest-waiting ready job became ready, in milliseconds since 1970 by
        this machine's clock, or None if no job is ready. Only the next job in line of each tenant,
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
        retention. Handles at most `limit` of each kind per queue, in several commits. A queue that
        has had no jobs and no limits for an hour is forgotten."""
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

    def _give_back(self, answer: Any) -> None:
        self._inner._give_back(answer)

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


def _errors(answers: Sequence[Any]) -> list[TenureError | None]:
    if set(map(type, answers)) == {ops.Ok}:  # as most are
        return [None] * len(answers)
    return [answer if isinstance(answer, TenureError) else None for answer in answers]
