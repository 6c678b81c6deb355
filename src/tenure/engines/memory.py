"""The reference model: plain Python, written to be read.

Every other engine is compared against it, and it serves as a store for users' unit tests. It counts
by counting and searches linearly; its behaviour defines the contract.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from typing import Any

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import (
    Conflict,
    DependencyCycle,
    DependencyNotFound,
    Duplicate,
    Forbidden,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    QueueNotFound,
    ScheduleNotFound,
    TenureError,
)
from tenure.model import ops, queries, states
from tenure.model.cron import LATE_MS, last_tick, next_tick
from tenure.model.job import FINAL, Job, JobSpec, State, check_cycles
from tenure.model.ops import Answer, Limit, Op
from tenure.model.queries import Filter, Found, Query
from tenure.settings import Settings, without_secrets


class Record:
    """A job with the model's own bookkeeping."""

    def __init__(self, job: Job, seq: int, waits_for: set[str]) -> None:
        self.job = job
        self.seq = seq  # its place in enqueue order
        self.waits_for = waits_for
        self.ready: bool = job.state is State.PENDING and job.run_at <= job.created_at

    @property
    def order(self) -> tuple[int, int]:
        return self.job.priority, self.seq

    @property
    def entry(self) -> ops.Entry:
        waits_for = tuple(parent for parent in self.job.after if parent in self.waits_for)
        return ops.Entry(self.job, self.count_as == "ready", waits_for)

    @property
    def count_as(self) -> str:
        if self.job.state is State.PENDING:
            return "ready" if self.ready else "delayed"
        return self.job.state.value


class QueueBook:
    """A queue's own state, besides its jobs."""

    def __init__(self) -> None:
        self.served = 0  # the place of the last turn served
        self.tokens = 0  # of the rate limit; a claim costs `per_ms`
        self.tokens_at = 0


def _is_outside(grant: ops.Grant | None, job: Job | JobSpec) -> bool:
    """Whether a job belongs to a queue or tenant that the grant does not name."""
    if grant is None:
        return False
    return (grant.queues is not None and job.queue not in grant.queues) or (
        grant.tenants is not None and job.tenant not in grant.tenants
    )


class Plan:
    """A validated Enqueue."""

    def __init__(self) -> None:
        self.accepted: dict[str, JobSpec] = {}
        self.ids: list[str] = []
        self.created: list[bool] = []


class MemoryEngine:
    """Jobs in dictionaries, under one lock."""

    in_flight = 1

    def __init__(self, clock: Clock, sweep: int = 1000) -> None:
        self._clock = clock
        self._sweep_limit = sweep
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._live: dict[str, Record] = {}
        # Jobs by queue and tenant, and by queue and group: people count those most often.
        self._of_tenant: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        self._in_group: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        self._unique: dict[tuple[str, str, str], str] = {}
        self._queues: dict[str, QueueBook] = {}
        self._emptied: dict[str, int] = {}  # queues that maintenance found empty, and when
        self._turns: dict[tuple[str, str], int] = {}
        self._limits: dict[tuple[str, str | None, str | None], Limit] = {}
        self._slots: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._schedules: dict[str, ops.Schedule] = {}
        self._answered: dict[str, tuple[int, object, ops.Answers]] = {}
        self._token = 0
        self._news: deque[tuple[str, states.Event]] = deque()
        self._telling = False
        self._operations: dict[type[Op], Callable[[Any, int], Answer]] = {
            ops.Enqueue: self._enqueue,
            ops.Claim: self._claim,
            ops.Ack: self._ack,
            ops.Fail: self._fail,
            ops.Extend: self._extend,
            ops.Release: self._release,
            ops.Progress: self._progress,
            ops.Cancel: self._cancel,
            ops.Replay: self._replay,
            ops.RunNow: self._run_now,
            ops.Delete: self._delete,
            ops.SetLimit: self._set_limit,
            ops.ClearLimit: self._clear_limit,
            ops.Pause: self._pause,
            ops.Resume: self._resume,
            ops.TakeSlot: self._take_slot,
            ops.DropSlot: self._drop_slot,
            ops.PutSchedule: self._put_schedule,
            ops.DropSchedule: self._drop_schedule,
            ops.Fire: self._fire,
            ops.Maintain: self._maintain,
            ops.Reconcile: self._reconcile,
            ops.ReconcileSlots: self._reconcile_slots,
            ops.Once: self._once,
            ops.Import: self._import,
        }
        self._queries: dict[type[Query], Callable[[Any, int], Found]] = {
            queries.GetJob: self._get_job,
            queries.ListJobs: self._list_jobs,
            queries.FindIds: self._find_ids,
            queries.FindByPrefix: self._find_by_prefix,
            queries.NextDue: self._next_due,
            queries.OldestReady: self._oldest_ready,
            queries.GetStats: self._get_stats,
            queries.ListTenants: self._list_tenants,
            queries.ListGroups: self._list_groups,
            queries.ListGroupTotals: self._list_group_totals,
            queries.ListLimits: self._list_limits,
            queries.ListSlots: self._list_slots,
            queries.ListSchedules: self._list_schedules,
            queries.GetTimetable: self._get_timetable,
            queries.Export: self._export,
        }

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> MemoryEngine:
        if url not in ("memory:", "memory://"):
            raise InvalidInput(
                "url", f"{without_secrets(url)!r}: a memory queue has no name; use memory://"
            )
        return cls(clock, settings.sweep)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        with self._lock:
            now = self._clock.now_ms()
            return [self._operations[type(op)](op, now) for op in batch]

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        raise InvalidInput("connection", "a memory queue has no connections to share")

    def read(self, query: Query) -> Found:
        with self._lock:
            return self._queries[type(query)](query, self._clock.now_ms())

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return lambda: None  # no other process can reach these jobs

    def close(self) -> None:
        pass

    def _once(self, op: ops.Once, now: int) -> Answer:
        said = op.fingerprint or op.ops
        if op.key not in self._answered:
            answer = ops.Answers(self._in_order(op.ops, now))
            self._answered[op.key] = (now, said, answer)
            return answer
        _, first, answer = self._answered[op.key]
        if first != said:
            return Conflict(
                f"the key {op.key!r} was used for other operations; nothing was changed"
            )
        return ops.Answers([self._still_held(one) for one in answer.answers])

    def _still_held(self, answer: Answer) -> Answer:
        """What a claim returns when it is repeated: of its jobs, those it still holds."""
        if not isinstance(answer, ops.Leased):
            return answer
        held = {
            (job.id, job.token): job
            for job in (record.job for record in self._live.values())
            if job.state is State.LEASED
        }
        leases = [(job.id, job.token) for job in answer.jobs]
        return ops.Leased([held[lease] for lease in leases if lease in held])

    def _in_order(self, batch: Sequence[Op], now: int) -> list[Answer]:
        return [self._operations[type(one)](one, now) for one in batch]

    # Enqueue ------------------------------------------------------------------------------------

    def _enqueue(self, op: ops.Enqueue, now: int) -> Answer:
        plan = self._plan(op)
        return plan if isinstance(plan, TenureError) else self._carry_out(plan, now)

    def _plan(self, op: ops.Enqueue, leaving: str = "") -> Plan | TenureError:
        """The jobs an Enqueue would add. `leaving` is about to end, so its unique key is free."""
        plan = Plan()
        keys: dict[tuple[str, str, str], str] = {}
        for spec in op.jobs:
            held = self._held(spec, plan.accepted, keys, leaving)
            by_others = held and held.field == "id" and self._is_hidden(op.grant, held.job_id)
            if held is not None and (op.if_exists == "error" or by_others):
                return held
            plan.ids.append(spec.id if held is None else held.job_id)
            plan.created.append(held is None)
            if held is None:
                plan.accepted[spec.id] = spec
                if spec.unique_key is not None:
                    keys[spec.queue, spec.tenant, spec.unique_key] = spec.id
        return self._bad_parents(plan.accepted, op.grant) or plan

    def _carry_out(self, plan: Plan, now: int) -> Answer:
        for spec in plan.accepted.values():
            self._insert(spec, now)
        for spec in plan.accepted.values():
            for parent in spec.after:
                if self._records[parent].job.state in (State.DEAD, State.CANCELLED):
                    self._tell_child(self._records[spec.id], parent, states.ParentFailed(), now)
        return ops.Enqueued(plan.ids, plan.created, now)

    def _held(
        self,
        spec: JobSpec,
        accepted: dict[str, JobSpec],
        keys: dict[tuple[str, str, str], str],
        leaving: str,
    ) -> Duplicate | None:
        if spec.id in self._records or spec.id in accepted:
            return Duplicate("id", spec.id, spec.id)
        if spec.unique_key is not None:
            key = (spec.queue, spec.tenant, spec.unique_key)
            holder = keys.get(key) or self._unique.get(key)
            if holder is not None and holder != leaving:
                return Duplicate("unique_key", spec.unique_key, holder)
        return None

    def _is_hidden(self, grant: ops.Grant | None, job_id: str) -> bool:
        """Whether a job exists, and belongs to others than those the grant names."""
        record = self._records.get(job_id)
        return record is not None and _is_outside(grant, record.job)

    def _bad_parents(
        self, accepted: dict[str, JobSpec], grant: ops.Grant | None
    ) -> TenureError | None:
        for spec in accepted.values():
            for parent in spec.after:
                if parent in accepted:
                    continue
                if parent not in self._records or self._is_hidden(grant, parent):
                    return DependencyNotFound(parent)
        try:
            check_cycles(list(accepted.values()))
        except DependencyCycle as cycle:
            return cycle
        return None

    def _insert(self, spec: JobSpec, now: int) -> None:
        waits_for = {
            parent
            for parent in spec.after
            if parent not in self._records or self._records[parent].job.state is not State.DONE
        }
        job = spec.to_job(State.WAITING if waits_for else State.PENDING, now)
        self._add(job, waits_for)

    def _add(self, job: Job, waits_for: set[str]) -> Record:
        """Add a job at the next place."""
        last = next(reversed(self._records.values()), None)
        seq = 1 if last is None else last.seq + 1
        record = self._records[job.id] = Record(job, seq, waits_for)
        self._of_tenant[job.queue, job.tenant][job.id] = record
        if job.group:
            self._in_group[job.queue, job.group][job.id] = record
        self._queues.setdefault(job.queue, QueueBook())
        self._emptied.pop(job.queue, None)
        self._turns.setdefault((job.queue, job.tenant), 0)
        if job.state not in FINAL:
            self._live[job.id] = record
            if job.unique_key is not None:
                self._unique[job.queue, job.tenant, job.unique_key] = job.id
        return record

    # Moving a store -----------------------------------------------------------------------------

    def _import(self, op: ops.Import, now: int) -> Answer:
        new: dict[str, ops.Entry] = {}
        created: list[bool] = []
        for entry in op.entries:
            created.append(entry.job.id not in self._records and entry.job.id not in new)
            if created[-1]:
                new[entry.job.id] = entry
        problem = self._held_key(new) or self._lost_parent(new)
        if problem is not None:
            return problem
        for entry in new.values():
            self._add(entry.job, set(entry.waits_for)).ready = entry.ready
            self._token = max(self._token, entry.job.token)
        for entry in new.values():
            for parent in entry.waits_for:  # which may have ended here meanwhile
                self._tell_end(self._records[entry.job.id], self._records[parent].job, now)
        return ops.Enqueued([entry.job.id for entry in op.entries], created, now)

    def _held_key(self, new: dict[str, ops.Entry]) -> TenureError | None:
        held = dict(self._unique)
        for job in (entry.job for entry in new.values()):
            if job.unique_key is not None and job.state not in FINAL:
                holder = held.setdefault((job.queue, job.tenant, job.unique_key), job.id)
                if holder != job.id:
                    return Duplicate("unique_key", job.unique_key, holder)
        return None

    def _lost_parent(self, new: dict[str, ops.Entry]) -> TenureError | None:
        for entry in new.values():
            for parent in entry.waits_for:
                if parent not in self._records and parent not in new:
                    return DependencyNotFound(parent)
        return None

    def _tell_end(self, child: Record, parent: Job, now: int) -> None:
        if parent.state in FINAL:
            done = parent.state is State.DONE
            event = states.ParentsDone() if done else states.ParentFailed()
            self._tell_child(child, parent.id, event, now)

    def _export(self, query: queries.Export, now: int) -> Found:
        start = [0] if query.cursor is None else queries.parse_cursor(query.cursor, 1)
        if isinstance(start, InvalidInput):
            return start
        later = [record for record in self._records.values() if record.seq > start[0]]
        page = later[: query.limit]
        cursor = str(page[-1].seq) if page else query.cursor
        return queries.Exported([record.entry for record in page], cursor)

    # Moves --------------------------------------------------------------------------------------

    def _move(self, record: Record, event: states.Event, now: int) -> bool:
        """Apply the transition that the table has for this event, if any."""
        change = states.decide(record.job, event, now)
        if change is None:
            return False
        job = record.job
        record.job = replace(
            job,
            state=change.state,
            attempts=change.attempts,
            run_at=change.run_at,
            expires_at=change.expires_at,
            worker=change.worker,
            errors=change.errors,
            updated_at=now,
            lease_until=job.lease_until if change.state is State.LEASED else None,
            finished_at=now if change.final else None,
        )
        record.ready = change.state is State.PENDING and change.run_at <= now
        if change.final:
            self._ended(record, now)
        else:
            self._live[job.id] = record
        return True

    def _ended(self, record: Record, now: int) -> None:
        job = record.job
        record.waits_for.clear()
        self._live.pop(job.id, None)
        if job.unique_key is not None:
            self._unique.pop((job.queue, job.tenant, job.unique_key), None)
        event = states.ParentsDone() if job.state is State.DONE else states.ParentFailed()
        self._tell_children(job.id, event, now)

    def _tell_children(self, parent: str, event: states.Event, now: int) -> None:
        """Notify the jobs that wait for a job, and those that wait for them in turn."""
        self._news.append((parent, event))
        if not self._telling:
            self._settle(now)

    def _settle(self, now: int) -> None:
        self._telling = True  # further notifications are appended to the queue
        while self._news:
            parent, event = self._news.popleft()
            for child in [r for r in self._live.values() if parent in r.waits_for]:
                self._tell_child(child, parent, event, now)
        self._telling = False

    def _tell_child(self, child: Record, parent: str, event: states.Event, now: int) -> None:
        change = states.decide(child.job, event, now)
        if change is None or change.state is State.WAITING:
            return
        child.waits_for.discard(parent)
        if change.state is not State.PENDING or not child.waits_for:
            self._move(child, event, now)

    # Claim --------------------------------------------------------------------------------------

    def _claim(self, op: ops.Claim, now: int) -> Answer:
        leased: list[Job] = []
        picked = 0
        for queue in sorted(set(op.queues)):
            if queue in self._queues:
                self._sweep(queue, self._sweep_limit, now)
        for queue in dict.fromkeys(op.queues):
            for record in self._pick(queue, op, op.limit - picked, now):
                picked += 1
                self._move(record, states.Claimed(), now)
                if record.job.state is State.LEASED:
                    record.job = replace(
                        record.job,
                        token=self._token + 1,
                        worker=op.worker,
                        started_at=now,
                        lease_until=now + op.lease_ms,
                        progress=None,
                        note=None,
                    )
                    leased.append(record.job)
        if picked:
            self._token += 1
        return ops.Leased(leased)

    def _pick(self, queue: str, op: ops.Claim, room: int, now: int) -> list[Record]:
        """The jobs to give out: tenants take turns, each tenant's jobs in order, within all
        limits."""
        if queue not in self._queues or room <= 0:
            return []
        book, limit = self._queues[queue], self._limit(queue)
        if limit.paused:
            return []
        live = [r for r in self._live.values() if r.job.queue == queue]
        leased = [r for r in live if r.job.state is State.LEASED]
        if limit.concurrency is not None:
            room = min(room, limit.concurrency - len(leased))
        room = min(room, self._tokens(queue, now))
        held: Counter[tuple[str, str | None]] = Counter((r.job.tenant, None) for r in leased)
        held.update((r.job.tenant, r.job.group) for r in leased)
        lines: dict[str, list[Record]] = defaultdict(list)
        not_groups = frozenset(op.not_groups)
        for record in sorted((r for r in live if r.ready), key=lambda r: r.order):
            wanted = op.tenant is None or record.job.tenant == op.tenant
            if wanted and record.job.group not in not_groups:
                lines[record.job.tenant].append(record)
        picked: list[Record] = []
        while len(picked) < room:
            turns = sorted(
                (self._turns[queue, tenant], tenant)
                for tenant in lines
                if self._next(queue, tenant, lines, held) is not None
            )
            if not turns:
                break
            _, tenant = turns[0]
            first = self._next(queue, tenant, lines, held)
            assert first is not None
            lines[tenant].remove(first)
            held.update([(tenant, None), (tenant, first.job.group)])
            picked.append(first)
            if op.tenant is None:
                place = max(self._turns[queue, tenant], book.served + 1)
                book.served = place
                self._turns[queue, tenant] = place + ops.stride(self._weight(queue, tenant))
        if limit.rate is not None and limit.per_ms is not None:
            book.tokens -= len(picked) * limit.per_ms
        return picked

    def _next(
        self,
        queue: str,
        tenant: str,
        lines: dict[str, list[Record]],
        held: Counter[tuple[str, str | None]],
    ) -> Record | None:
        """The tenant's first job that no limit holds back."""
        bound = self._tenant_bound(queue, tenant)
        if bound is not None and held[tenant, None] >= bound:
            return None
        for record in lines[tenant]:
            bound = self._group_bound(queue, tenant, record.job.group)
            if bound is None or held[tenant, record.job.group] < bound:
                return record
        return None

    def _tokens(self, queue: str, now: int) -> int:
        """How many claims the rate limit allows now."""
        book, limit = self._queues[queue], self._limit(queue)
        if limit.rate is None or limit.per_ms is None:
            return 2**31
        gained = max(0, now - book.tokens_at) * limit.rate
        book.tokens = min(book.tokens + gained, limit.rate * limit.per_ms)
        book.tokens_at = now
        return book.tokens // limit.per_ms

    def _sweep(self, queue: str, limit: int, now: int) -> tuple[int, int, int]:
        """Handle expired leases, due delayed jobs, and expired jobs."""
        live = [r for r in self._live.values() if r.job.queue == queue]
        overdue = [r for r in live if r.job.lease_until is not None and r.job.lease_until <= now]
        overdue.sort(key=lambda r: (r.job.lease_until, r.seq))
        for record in overdue[:limit]:
            self._move(record, states.LeaseRanOut(), now)
        due = [
            r for r in live if r.job.state is State.PENDING and not r.ready and r.job.run_at <= now
        ]
        due.sort(key=lambda r: (r.job.run_at, r.seq))
        for record in due[:limit]:
            record.ready = True
        expired = [
            r
            for r in live
            if r.job.state in (State.WAITING, State.PENDING)
            and r.job.expires_at is not None
            and r.job.expires_at <= now
        ]
        expired.sort(key=lambda r: (r.job.expires_at, r.seq))
        self._telling = True  # all expired jobs end before any child is notified
        for record in expired[:limit]:
            self._move(record, states.Expired(), now)
        self._settle(now)
        return len(due[:limit]), len(overdue[:limit]), len(expired[:limit])

    # What the holder of a lease does ------------------------------------------------------------

    def _leased(
        self, job_id: str, token: int, grant: ops.Grant | None = None
    ) -> Record | TenureError:
        record = self._records.get(job_id)
        if record is None or self._is_hidden(grant, job_id):
            return JobNotFound(job_id)
        if record.job.state is not State.LEASED or record.job.token != token:
            return LeaseLost(job_id, record.job.state.value)
        return record

    def _ack(self, op: ops.Ack, now: int) -> Answer:
        record = self._leased(op.id, op.token, op.grant)
        if isinstance(record, TenureError):
            return record
        plan = self._plan(ops.Enqueue(op.then, grant=op.grant), leaving=op.id)
        if isinstance(plan, TenureError):
            return plan
        self._move(record, states.Acked(), now)
        record.job = replace(record.job, raw_result=op.result)
        self._carry_out(plan, now)
        if not op.keep:
            self._forget(op.id)
        return ops.Ok()

    def _fail(self, op: ops.Fail, now: int) -> Answer:
        return self._give_back(op, op.event(), now)

    def _release(self, op: ops.Release, now: int) -> Answer:
        return self._give_back(op, op.event(), now)

    def _give_back(self, op: ops.LeaseOp, event: states.Event, now: int) -> Answer:
        record = self._leased(op.id, op.token, op.grant)
        if isinstance(record, TenureError):
            return record
        self._move(record, event, now)
        return ops.Moved(record.job.state, record.job.run_at)

    def _extend(self, op: ops.Extend, now: int) -> Answer:
        return self._keep(op, now, lease_until=now + op.lease_ms)

    def _progress(self, op: ops.Progress, now: int) -> Answer:
        return self._keep(op, now, progress=op.percent, note=op.note)

    def _keep(self, op: ops.LeaseOp, now: int, **fields: Any) -> Answer:
        record = self._leased(op.id, op.token, op.grant)
        if isinstance(record, TenureError):
            return record
        self._move(record, states.Kept(), now)
        record.job = replace(record.job, **fields)
        return ops.Ok()

    # What an operator does ----------------------------------------------------------------------

    def _cancel(self, op: ops.Cancel, now: int) -> Answer:
        return self._change(op, lambda record: self._move(record, states.Cancelled(), now))

    def _replay(self, op: ops.Replay, now: int) -> Answer:
        refused: dict[str, str] = {}

        def replay(record: Record) -> bool:
            job = record.job
            if job.unique_key is not None and states.allowed(job.state, states.Replayed):
                key = (job.queue, job.tenant, job.unique_key)
                if key in self._unique:
                    refused[job.id] = self._unique[key]
                    return False
                self._unique[key] = job.id
            return self._move(record, states.Replayed(), now)

        changed = self._change(op, replay)
        return replace(changed, refused=refused)

    def _run_now(self, op: ops.RunNow, now: int) -> Answer:
        def hurry(record: Record) -> bool:
            return record.job.run_at > now and self._move(record, states.Hurried(), now)

        return self._change(op, hurry)

    def _delete(self, op: ops.Delete, now: int) -> Answer:
        def delete(record: Record) -> bool:
            if op.states and record.job.state not in op.states:
                return False
            self._remove(record, now)
            return True

        return self._change(op, delete)

    def _change(self, op: ops.JobsOp, change: Callable[[Record], bool]) -> ops.Changed:
        count, missing = 0, []
        for job_id in dict.fromkeys(op.ids):
            if job_id in self._records and not self._is_hidden(op.grant, job_id):
                count += change(self._records[job_id])
            else:
                missing.append(job_id)
        return ops.Changed(count, tuple(missing))

    def _forget(self, job_id: str) -> Job:
        job = self._records.pop(job_id).job
        for jobs, key in (
            (self._of_tenant, (job.queue, job.tenant)),
            (self._in_group, (job.queue, job.group)),
        ):
            jobs[key].pop(job_id, None)
            if not jobs[key]:
                del jobs[key]
        return job

    def _remove(self, record: Record, now: int) -> None:
        job = self._forget(record.job.id)
        if self._live.pop(job.id, None) is not None and job.unique_key is not None:
            self._unique.pop((job.queue, job.tenant, job.unique_key), None)
        self._tell_children(job.id, states.ParentDeleted(job.id), now)

    # Limits -------------------------------------------------------------------------------------

    def _limit(self, queue: str, tenant: str | None = None, group: str | None = None) -> Limit:
        return self._limits.get((queue, tenant, group), Limit(queue, tenant, group))

    def _tenant_bound(self, queue: str, tenant: str) -> int | None:
        own, default = self._limit(queue, tenant), self._limit(queue, "*")
        if own.paused:
            return 0
        return own.concurrency if own.concurrency is not None else default.concurrency

    def _weight(self, queue: str, tenant: str) -> int | None:
        return self._limit(queue, tenant).weight or self._limit(queue, "*").weight

    def _group_bound(self, queue: str, tenant: str, group: str) -> int | None:
        if not group:
            return None
        if self._limit(queue, tenant, group).paused or self._limit(queue, "*", group).paused:
            return 0
        for t, g in ((tenant, group), (tenant, "*"), ("*", group), ("*", "*")):
            bound = self._limit(queue, t, g).concurrency
            if bound is not None:
                return bound
        return None

    def _put_limit(self, limit: Limit) -> Answer:
        self._queues.setdefault(limit.queue, QueueBook())
        key = (limit.queue, limit.tenant, limit.group)
        self._limits.pop(key, None)
        if limit != Limit(*key):
            self._limits[key] = limit
        return ops.Ok()

    def _set_limit(self, op: ops.SetLimit, now: int) -> Answer:
        self._emptied.pop(op.queue, None)
        bounds = {"concurrency": op.concurrency, "weight": op.weight}
        if op.rate is not None and op.per_ms is not None:
            bounds |= {"rate": op.rate, "per_ms": op.per_ms}
            book, old = self._queues.setdefault(op.queue, QueueBook()), self._limit(op.queue)
            if old.rate_of != (op.rate, op.per_ms):
                book.tokens, book.tokens_at = op.rate * op.per_ms, now
        given = {name: value for name, value in bounds.items() if value is not None}
        return self._put_limit(replace(self._limit(op.queue, op.tenant, op.group), **given))

    def _clear_limit(self, op: ops.ClearLimit, now: int) -> Answer:
        if op.queue not in self._queues:
            return QueueNotFound(op.queue)
        paused = self._limit(op.queue, op.tenant, op.group).paused
        return self._put_limit(Limit(op.queue, op.tenant, op.group, paused=paused))

    def _pause(self, op: ops.Pause, now: int) -> Answer:
        self._emptied.pop(op.queue, None)
        return self._put_limit(replace(self._limit(op.queue, op.tenant, op.group), paused=True))

    def _resume(self, op: ops.Resume, now: int) -> Answer:
        if op.queue not in self._queues:
            return QueueNotFound(op.queue)
        return self._put_limit(replace(self._limit(op.queue, op.tenant, op.group), paused=False))

    # Slots and schedules ------------------------------------------------------------------------

    def _take_slot(self, op: ops.TakeSlot, now: int) -> Answer:
        slots = self._current_slots(op.scope, op.key, now)
        others = len(slots) - (op.holder in slots)
        held = op.limit is None or others < op.limit
        if held:
            slots[op.holder] = now + op.ttl_ms
        else:
            slots.pop(op.holder, None)
        return ops.Slots(len(slots), held)

    def _drop_slot(self, op: ops.DropSlot, now: int) -> Answer:
        slots = self._current_slots(op.scope, op.key, now)
        slots.pop(op.holder, None)
        return ops.Slots(len(slots), False)

    def _current_slots(self, scope: str, key: str, now: int) -> dict[str, int]:
        slots = self._slots[scope, key]
        for holder in [h for h, expires_at in slots.items() if expires_at <= now]:
            del slots[holder]
        return slots

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
        return _is_outside(op.grant, self._schedules[name].job)

    def _drop_schedule(self, op: ops.DropSchedule, now: int) -> Answer:
        if op.name in self._schedules and self._is_hidden_schedule(op):
            return ScheduleNotFound(op.name)
        if self._schedules.pop(op.name, None) is None:
            return ScheduleNotFound(op.name)
        return ops.Ok()

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

    # Maintenance --------------------------------------------------------------------------------

    def _maintain(self, op: ops.Maintain, now: int) -> Answer:
        later = sorted(name for name in self._queues if name > op.after)
        page = later[: ops.QUEUES_PER_STEP]
        after = page[-1] if len(later) > len(page) else None
        promoted = leases = expired = purged = 0
        for queue in [name for name in page if self._has_work(name, op, now)]:
            found = self._sweep(queue, op.limit, now)
            promoted, leases, expired = promoted + found[0], leases + found[1], expired + found[2]
            purged += self._purge(queue, op, now)
            if promoted + leases + expired + purged >= op.limit:
                after = queue
                break
        self._forget_queues(page, now)
        used = {(r.job.queue, r.job.tenant) for r in self._records.values()}
        self._turns = {key: turn for key, turn in self._turns.items() if key in used}
        over = sorted(
            (expires_at, scope, key, holder)
            for (scope, key), slots in self._slots.items()
            for holder, expires_at in slots.items()
            if expires_at <= now
        )[: op.limit]
        for _, scope, key, holder in over:
            del self._slots[scope, key][holder]
        for key, (at, _, _) in list(self._answered.items()):
            if at <= now - ops.ONCE_MS:
                del self._answered[key]
        return ops.Maintained(promoted, leases, expired, len(over), purged, after)

    def _has_work(self, queue: str, op: ops.Maintain, now: int) -> bool:
        """Whether a sweep or a purge of the queue would find anything."""
        for record in self._live.values():
            job = record.job
            due = job.run_at if job.state is State.PENDING and not record.ready else None
            expires_at = None if job.state is State.LEASED else job.expires_at
            times = (job.lease_until, due, expires_at)
            if job.queue == queue and any(at is not None and at <= now for at in times):
                return True
        return any(self._old(queue, state, keep_ms, now) for state, keep_ms in op.keeps)

    def _purge(self, queue: str, op: ops.Maintain, now: int) -> int:
        purged = 0
        for state, keep_ms in op.keeps:
            for record in self._old(queue, state, keep_ms, now)[: op.limit]:
                self._remove(record, now)
                purged += 1
        return purged

    def _old(self, queue: str, state: State, keep_ms: int | None, now: int) -> list[Record]:
        """The jobs of a queue whose retention is over, oldest first."""
        old = [
            record
            for record in self._records.values()
            if record.job.queue == queue
            and record.job.state is state
            and keep_ms is not None
            and (record.job.finished_at or 0) <= now - keep_ms
        ]
        return sorted(old, key=lambda r: (r.job.finished_at or 0, r.seq))

    def _forget_queues(self, names: list[str], now: int) -> None:
        """Forget the queues that have been empty for long, and note which are empty now."""
        used = {record.job.queue for record in self._records.values()}
        used |= {queue for queue, _, _ in self._limits}
        for queue in names:
            if queue in used:
                self._emptied.pop(queue, None)
            elif self._emptied.setdefault(queue, now) <= now - ops.FORGET_MS:
                del self._queues[queue], self._emptied[queue]

    def _reconcile(self, op: ops.Reconcile, now: int) -> Answer:
        return ops.Corrected({}) if op.queue in self._queues else QueueNotFound(op.queue)

    def _reconcile_slots(self, op: ops.ReconcileSlots, now: int) -> Answer:
        self._current_slots(op.scope, op.key, now)
        return ops.Corrected({})

    # Queries ------------------------------------------------------------------------------------

    def _get_job(self, query: queries.GetJob, now: int) -> Found:
        record = self._records.get(query.id)
        return JobNotFound(query.id) if record is None else record.job

    def _list_jobs(self, query: queries.ListJobs, now: int) -> Found:
        return self._page(query, lambda jobs, cursor: queries.Page(jobs, cursor), queries.fitting)

    def _find_ids(self, query: queries.FindIds, now: int) -> Found:
        return self._page(query, lambda jobs, cursor: queries.Ids([job.id for job in jobs], cursor))

    def _page(
        self,
        query: queries.ListJobs | queries.FindIds,
        answer: Callable[[list[Job], str | None], Found],
        fitting: Callable[[list[Job]], list[Job]] = list,
    ) -> Found:
        where = query.filter
        if where.queue is not None and where.queue not in self._queues:
            return QueueNotFound(where.queue)
        by_end = len(where.states) == 1 and where.states[0] in FINAL
        start = None if query.cursor is None else queries.parse_cursor(query.cursor, 1 + by_end)
        if isinstance(start, InvalidInput):
            return start

        def place(record: Record) -> list[int]:
            return [record.job.finished_at or 0, record.seq] if by_end else [record.seq]

        found = sorted(self._matching(where), key=place, reverse=True)
        if start is not None:
            found = [record for record in found if place(record) < start]
        page = fitting([record.job for record in found[: query.limit]])
        more = len(found) > len(page)
        cursor = ".".join(str(part) for part in place(found[len(page) - 1])) if more else None
        return answer(page, cursor)

    def _matching(self, where: Filter) -> Iterator[Record]:
        for record in self._records.values():
            job = record.job
            if (
                where.queue in (None, job.queue)
                and (not where.states or job.state in where.states)
                and where.tenant in (None, job.tenant)
                and where.group in (None, job.group)
                and where.kind in (None, job.kind)
                and (
                    where.finished_before is None
                    or (job.finished_at is not None and job.finished_at < where.finished_before)
                )
            ):
                yield record

    def _find_by_prefix(self, query: queries.FindByPrefix, now: int) -> Found:
        found = sorted(job_id for job_id in self._records if job_id.startswith(query.prefix))
        return queries.Ids(found[: query.limit])

    def _next_due(self, query: queries.NextDue, now: int) -> Found:
        theirs = [r for r in self._live.values() if r.job.queue in query.queues]
        due = [r.job.run_at for r in theirs if r.count_as == "delayed"]
        due += [r.job.lease_until for r in theirs if r.job.lease_until is not None]
        return queries.Due(min(due, default=None))

    def _oldest_ready(self, query: queries.OldestReady, now: int) -> Found:
        heads: dict[tuple[str, str, str, int], Record] = {}
        for record in self._live.values():
            job = record.job
            if job.queue in query.queues and record.count_as == "ready":
                line = (job.queue, job.tenant, job.group, job.priority)
                if line not in heads or record.order < heads[line].order:
                    heads[line] = record
        return queries.Due(min([record.job.run_at for record in heads.values()], default=None))

    def _get_stats(self, query: queries.GetStats, now: int) -> Found:
        if query.queue is not None and query.queue not in self._queues:
            return QueueNotFound(query.queue)
        counts = self._count(lambda job: job.queue)
        return [
            queries.QueueStats(queue=queue, paused=self._limit(queue).paused, **counts[queue])
            for queue in sorted(self._queues)
            if query.queue in (None, queue)
        ]

    def _list_tenants(self, query: queries.ListTenants, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        found = []
        for tenant in _names(self._of_tenant, query.queue, query.tenant, query.after, query.limit):
            jobs = self._of_tenant[query.queue, tenant].values()
            counts = Counter(record.count_as for record in jobs)
            found.append(queries.TenantStats(queue=query.queue, tenant=tenant, **counts))
        return found

    def _list_groups(self, query: queries.ListGroups, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        counts = self._count(lambda job: (job.queue, job.tenant, job.group))
        return [
            queries.GroupStats(
                queue=queue, tenant=tenant, group=group, **counts[queue, tenant, group]
            )
            for queue, tenant, group in sorted(counts)
            if (queue, tenant) == (query.queue, query.tenant)
            and group
            and (query.after is None or group > query.after)
        ][: query.limit]

    def _list_group_totals(self, query: queries.ListGroupTotals, now: int) -> Found:
        if query.queue not in self._queues:
            return QueueNotFound(query.queue)
        found = []
        for group in _names(self._in_group, query.queue, query.group, query.after, query.limit):
            jobs = self._in_group[query.queue, group].values()
            finished = sum(record.job.state in FINAL for record in jobs)
            found.append(queries.GroupTotal(query.queue, group, len(jobs) - finished, finished))
        return found

    def _count(self, key: Callable[[Job], Any]) -> dict[Any, Counter[str]]:
        counts: dict[Any, Counter[str]] = defaultdict(Counter)
        for record in self._records.values():
            counts[key(record.job)][record.count_as] += 1
        return counts

    def _list_limits(self, query: queries.ListLimits, now: int) -> Found:
        return sorted(
            (x for x in self._limits.values() if query.queue in (None, x.queue)),
            key=lambda x: (x.queue, x.tenant is not None, x.tenant, x.group is not None, x.group),
        )

    def _list_slots(self, query: queries.ListSlots, now: int) -> Found:
        slots = self._slots.get((query.scope, query.key), {})
        return [queries.Slot(h, slots[h]) for h in sorted(slots) if slots[h] > now]

    def _list_schedules(self, query: queries.ListSchedules, now: int) -> Found:
        return [self._schedules[name] for name in sorted(self._schedules)]

    def _get_timetable(self, query: queries.GetTimetable, now: int) -> Found:
        return queries.Timetable(now, [self._schedules[name] for name in sorted(self._schedules)])


def _names(
    jobs: dict[tuple[str, str], dict[str, Record]],
    queue: str,
    only: str | None,
    after: str | None,
    limit: int,
) -> list[str]:
    """The first names in a queue that have jobs, starting after a name, or a single one."""
    keys = jobs if only is None else [(queue, only)] if (queue, only) in jobs else []
    names = (name for of, name in keys if of == queue and (after is None or name > after))
    return nsmallest(limit, names)
