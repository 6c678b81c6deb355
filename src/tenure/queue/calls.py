"""The calls of a Queue: they validate arguments, build operations and queries, unpack the answers.

Every call is written once, as a generator (see sync_async.py), and has two public forms: the
blocking `enqueue()` and the awaitable `aenqueue()`.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import InvalidInput, JobNotFound, TenureError
from tenure.features.calls import FeatureCalls
from tenure.model import ops, queries
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
    Lease,
    NewJob,
    State,
    encode_json,
)
from tenure.model.ops import IfExists, Op, good
from tenure.model.retry import Backoff
from tenure.observe.tracing import sending
from tenure.queue.arguments import (
    Seconds,
    claim_op,
    fail_op,
    failure_text,
    ids_of,
    lease_of,
    listed,
    several,
    too_many_jobs,
)
from tenure.queue.insight import Insight
from tenure.queue.job_changes import JobChanges
from tenure.queue.limit_calls import LimitCalls, Pausing
from tenure.queue.listing import Listing
from tenure.queue.lookup import Lookup
from tenure.queue.open_store import Audited, Store, Within
from tenure.queue.schedule_calls import ScheduleCalls
from tenure.queue.slot_calls import SlotCalls
from tenure.queue.sync_async import Steps, awaiting, both
from tenure.queue.wakeups import Changes
from tenure.settings import Settings

_check_if_exists = checker(IfExists)


class EnqueuedIds(list[str]):
    """Job ids in the order they were submitted; `created[i]` is False if the i-th job already
    existed."""

    def __init__(self, ids: Iterable[str] = (), created: Iterable[bool] = ()) -> None:
        super().__init__(ids)
        self.created: list[bool] = list(created)


class Calls(Pausing, Insight, Lookup, FeatureCalls, JobChanges, Listing):
    """The calls of a queue, within the bounds of what carries them out."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.settings: Settings = store.settings
        self.clock: Clock = store.clock
        self.changes: Changes = store.changes  # notifies when jobs may be ready or finished

    @property
    def schedules(self) -> ScheduleCalls:
        """Calls on schedules: list, put, drop, fire, timetable."""
        return ScheduleCalls(self._store)

    @property
    def limits(self) -> LimitCalls:
        """Calls on the limits of queues, tenants and groups: list, set, clear."""
        return LimitCalls(self._store)

    @property
    def slots(self) -> SlotCalls:
        """Calls on slots: list, take, drop, reconcile."""
        return SlotCalls(self._store)

    def audited(self, *, by: str = "", reason: str = "") -> Calls:
        """Return the same calls, with their changes added to the audit log: who makes them, and
        why. An entry is stored together with its change. A service replaces `by` with the name of
        the token."""
        return Calls(Audited(self._store, validated(ops.Note(by, reason))))

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
            (spec,) = self._store.prepare([new], its_trace)
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
            specs = self._store.prepare(news, its_trace)
            batch = [ops.Enqueue(tuple(specs), if_exists)]
            (answer,) = yield batch if connection is None else Within(connection, batch)
            enqueued = good(answer, ops.Enqueued)
        return EnqueuedIds(enqueued.ids, enqueued.created)

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
        jobs = tuple(self._store.prepare(listed("then", then))) if then != () else ()
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
        log, away = self._store.log_bytes(), self._store.away()
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

    enqueue, aenqueue = both(_enqueue)
    _aenqueue_new = awaiting(_enqueue_new)  # for the service, which parses a NewJob
    enqueue_many, aenqueue_many = both(_enqueue_many)
    claim, aclaim = both(_claim)
    ack, aack = both(_ack)
    ack_many, aack_many = both(_ack_many)
    fail, afail = both(_fail)
    fail_many, afail_many = both(_fail_many)
    extend, aextend = both(_extend)
    extend_many, aextend_many = both(_extend_many)
    release, arelease = both(_release)
    progress, aprogress = both(_progress)
    get, aget = both(_get)
    find_ids, afind_ids = both(_find_ids)
    next_due, anext_due = both(_next_due)
    oldest_ready, aoldest_ready = both(_oldest_ready)
    stats, astats = both(_stats)
    tenants, atenants = both(_tenants)
    groups, agroups = both(_groups)
    group_totals, agroup_totals = both(_group_totals)
    maintain, amaintain = both(_maintain)
    reconcile, areconcile = both(_reconcile)


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
