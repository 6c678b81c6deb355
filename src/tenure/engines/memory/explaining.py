"""What holds a job back. The model finds out by claiming everything that it can from a copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from typing import Any

import msgspec

from tenure.engines.memory.memory_store import Record, handles, is_outside
from tenure.engines.memory.reading import Reads
from tenure.errors import JobNotFound
from tenure.features.live_workers import data as worker_records
from tenure.features.steps.data import decode_head, head_key
from tenure.features.why import data as why
from tenure.features.why.data import Explain
from tenure.model import ops, pause_records
from tenure.model.history import Past, heard_key
from tenure.model.job import FINAL, Job, State
from tenure.model.ops import Grant, Limit
from tenure.model.record_queries import ListRecords

_NOBODY = ""  # no job has this id: a job that waits for it waits forever


class Explaining(Reads):
    """Explains."""

    @handles(Explain)
    def _explain(self, query: Explain, now: int) -> Any:
        record = self._records.get(query.id)
        if record is None or is_outside(query.grant, record.job):
            return JobNotFound(query.id)
        swept = self._copy()
        swept._sweep(record.job.queue, self._sweep_limit, now)
        claimed = swept._claims_all(record.job.queue, now)
        after = swept._records[query.id]
        reasons = list(swept._reasons(record.job, after, query.grant, now))
        return why.explained(record.job, now, query.id in claimed, reasons)

    def _copy(self) -> Explaining:
        """A copy to try things on. Jobs that end in it do not make others ready: a claim is
        explained by what is ready, due or expired now."""
        twin = copy(self)
        twin._parts = []  # which must not count what is only tried
        for name, value in vars(self).items():
            if isinstance(value, dict | set | deque):
                setattr(twin, name, copy(value))
        twin._records = {}
        for record in self._records.values():
            own = twin._records[record.job.id] = copy(record)
            own.waits_for = record.waits_for | {_NOBODY}
        twin._live = {job_id: twin._records[job_id] for job_id in self._live}
        twin._queues = {name: copy(book) for name, book in self._queues.items()}
        return twin

    def _claims_all(self, queue: str, now: int) -> set[str]:
        """The jobs that a claim without a limit of its own takes. Changes only a copy."""
        twin = self._copy()
        op = ops.Claim((queue,), "nobody", 1)
        return {record.job.id for record in twin._pick(queue, op, len(twin._live) + 1, now)}

    def _reasons(
        self, job: Job, after: Record, grant: Grant | None, now: int
    ) -> Iterator[why.AnyReason]:
        """job: as stored. after: the same job after a sweep."""
        if job.state in FINAL:
            yield why.Finished(job.finished_at or 0, job.worker, self._heard_at(job))
            return
        if job.state is State.LEASED:
            until = job.lease_until or 0
            if after.job.state is State.LEASED:
                yield why.Running(job.worker, job.started_at, until)
                return
            yield why.LeaseOver(job.worker, until, after.job.state is State.DEAD)
            if after.job.state is State.DEAD:
                return
        elif after.job.state is State.DEAD:
            yield why.Expired(job.expires_at or 0)
            return
        yield from self._pauses(job, grant)
        suspended = list(self._suspended(after.job))
        if after.job.state is State.WAITING:
            yield from suspended
            yield self._waits_for(after, grant)
        elif not after.ready:
            delayed = why.Delayed(after.job.run_at, after.job.attempts, after.job.max_attempts)
            yield from suspended or [delayed]
        else:
            yield from self._in_line(after, grant, now)

    def _suspended(self, job: Job) -> Iterator[why.AnyReason]:
        kept = self.side.get(("step", head_key(job.id)))
        found = None if kept is None else decode_head(kept.value).suspended
        if found is not None and found.token == job.token:
            yield why.Suspended(found.kind, found.name, found.at, found.until)

    def _heard_at(self, job: Job) -> int | None:
        """When its worker learned that it was cancelled."""
        record = self.side.get(("past", heard_key(job.id, job.token)))
        if record is None or job.state is not State.CANCELLED or not job.worker:
            return None
        return msgspec.json.decode(record.value, type=Past).at

    def _pauses(self, job: Job, grant: Grant | None = None) -> Iterator[why.AnyReason]:
        if self._limit(job.queue).paused:
            yield self._paused("queue", job, grant)
        if self._limit(job.queue, job.tenant).paused:
            yield self._paused("tenant", job, grant, job.tenant)
        for tenant in (job.tenant, "*"):
            if job.group and self._limit(job.queue, tenant, job.group).paused:
                yield self._paused("group", job, grant, tenant, job.group)

    def _paused(
        self,
        scope: why.Scope,
        job: Job,
        grant: Grant | None,
        tenant: str | None = None,
        group: str | None = None,
    ) -> why.Paused:
        record = self.side.get(("pause", pause_records.pause_key(job.queue, tenant, group)))
        of_others = grant is not None and grant.tenants is not None and tenant != job.tenant
        if record is None or of_others:
            return why.Paused(scope, tenant, group)
        note = pause_records.decode(record.value)
        return why.Paused(scope, tenant, group, note.since, note.by, note.reason)

    def _waits_for(self, record: Record, grant: Grant | None) -> why.AnyReason:
        ids = sorted(record.waits_for - {_NOBODY})
        states = {id: self._records[id].job.state for id in ids[: why.PARENTS_LOOKED_AT]}
        failed = [id for id in states if states[id] in (State.DEAD, State.CANCELLED)]
        rest = [id for id in states if id not in failed]
        parents = [
            why.Parent(id, None if self._is_hidden(grant, id) else states[id])
            for id in failed + rest
        ]
        return why.WaitsFor(parents[: why.MOST_PARENTS], len(ids))

    # A job that is ready ------------------------------------------------------------------------

    def _in_line(self, record: Record, grant: Grant | None, now: int) -> Iterator[why.AnyReason]:
        job = record.job
        of_others = grant is not None and grant.tenants is not None
        rooms: list[int] = []
        free = not list(self._pauses(job))
        for scope, limit, holders in self._limits_of(job):
            if limit is None or limit.concurrency is None:
                continue
            hidden = of_others and scope == "queue"
            room = limit.concurrency - len(holders)
            if not hidden:
                rooms.append(room)
            if room <= 0:
                free = False
                held = [x.id for x in holders if not is_outside(grant, x)][: why.MOST_HOLDERS]
                used = None if hidden else len(holders)
                most = None if hidden else limit.concurrency
                yield why.Limited(scope, used, most, held, limit.tenant, limit.group)
        limit = self._limit(job.queue)
        if limit.rate is not None and limit.per_ms is not None:
            room = self._rate_room(job.queue, now)
            if not of_others:
                rooms.append(room)
            if room <= 0:
                free = False
                at = self._rate_allows_at(job.queue, now)
                yield why.RateLimited(None if of_others else at)
        ahead = min(self._ahead(job, now), why.MOST_AHEAD)
        tenants = None if of_others else min(self._tenants_ahead(job, now), why.MOST_AHEAD)
        claimable = free and job.id in self._claims_all(job.queue, now)
        if not of_others:
            yield from self._no_worker(job.queue, now)
        if claimable and not ahead and not tenants:
            yield why.Next()
        else:
            yield why.InLine(ahead, tenants, max(0, min(rooms)) if rooms else None)

    def _no_worker(self, queue: str, now: int) -> Iterator[why.AnyReason]:
        """Says so if no worker of the queue is alive, and none of its jobs is leased."""
        records = self._list_records(ListRecords("worker", limit=1_000_000), now)
        live = [worker_records.decode(r.value) for r in records if r.key.startswith("live/")]
        if any(queue in stored.worker.queues for stored in live):
            return
        if any(r.job.queue == queue and r.job.lease_until for r in self._live.values()):
            return
        seen = [r for r in records if r.key.rpartition("/")[0] == f"seen/{queue}"]
        yield why.NoWorker(max([int(record.value) for record in seen], default=None))

    def _limits_of(self, job: Job) -> Iterator[tuple[why.Scope, Limit | None, list[Job]]]:
        """The concurrency limits that apply, each with the jobs that hold it."""
        leased = [r for r in self._live.values() if r.job.state is State.LEASED]
        leased.sort(key=lambda r: (r.job.lease_until, r.seq))
        jobs = [r.job for r in leased if r.job.queue == job.queue]
        yield "queue", self._limit(job.queue), jobs
        jobs = [x for x in jobs if x.tenant == job.tenant]
        yield "tenant", self._first(job.queue, (job.tenant, None), ("*", None)), jobs
        jobs = [x for x in jobs if x.group == job.group]
        scopes = ((job.tenant, job.group), (job.tenant, "*"), ("*", job.group), ("*", "*"))
        yield "group", self._first(job.queue, *scopes) if job.group else None, jobs

    def _first(self, queue: str, *scopes: tuple[str, str | None]) -> Limit | None:
        limits = [self._limit(queue, *scope) for scope in scopes]
        return next((one for one in limits if one.concurrency is not None), None)

    def _lifted(self, queue: str, *scopes: tuple[str | None, str | None]) -> Explaining:
        """A copy in which these limits, and that of the queue, hold nothing back."""
        twin = self._copy()
        for scope in ((None, None), *scopes):
            twin._limits[queue, *scope] = Limit(queue, *scope, 2**31)
        return twin

    def _ahead(self, job: Job, now: int) -> int:
        """How many jobs of its tenant come before a ready job: all of its own group, and of other
        groups as many as their limits allow to start."""
        own = (job.tenant, None), (job.tenant, job.group), ("*", job.group)
        op = ops.Claim((job.queue,), "nobody", 1, tenant=job.tenant)
        picked = self._lifted(job.queue, *own)._pick(job.queue, op, len(self._live), now)
        return [record.job.id for record in picked].index(job.id)

    def _tenants_ahead(self, job: Job, now: int) -> int:
        """How many other tenants have a job that could start, and their turn earlier."""
        twin, mine = self._lifted(job.queue), (self._turns[job.queue, job.tenant], job.tenant)
        count = 0
        for queue, tenant in self._turns:
            if queue == job.queue and (self._turns[queue, tenant], tenant) < mine:
                op = ops.Claim((queue,), "nobody", 1, tenant=tenant)
                count += bool(twin._pick(queue, op, 1, now))
        return count
