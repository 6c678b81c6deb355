"""What the model keeps in memory, and how jobs move between states."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.model import ops, states
from tenure.model.job import Failure, Job, JobSpec, State
from tenure.model.ops import Limit, Op
from tenure.model.queries import Query
from tenure.model.records import Record as SideRecord
from tenure.settings import Settings

H = TypeVar("H", bound=Callable[..., Any])


def handles(kind: type[Op] | type[Query]) -> Callable[[H], H]:
    """Mark the method that runs an operation or a query."""

    def mark(method: H) -> H:
        method.handles = kind  # type: ignore[attr-defined]
        return method

    return mark


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
        waits_for = ops.in_order(self.job, self.waits_for)
        return ops.Entry(self.job, self.count_as == "ready", waits_for)

    @property
    def count_as(self) -> str:
        if self.job.state is State.PENDING:
            return "ready" if self.ready else "delayed"
        return self.job.state.value


class Part:
    """What a feature adds to the model: methods marked by `handles`, and what it does when others
    act."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def failed(self, job: Job, change: states.Change, failure: Failure) -> states.Change:
        """A change that adds a failure, as it is to be stored."""
        return change

    def answered(self, op: Op, answer: ops.Answer, now: int) -> None:
        """An operation was run."""

    def maintained(self, now: int) -> None:
        """A step of maintenance was run."""

    def given_up(self, record: Record, now: int) -> None:
        """A job is dead or cancelled, and its children know."""

    def replayed(self, record: Record) -> None:
        """A job is about to be replayed."""

    def removed(self, job: Job) -> None:
        """A job was deleted."""


class QueueBook:
    """A queue's own state, besides its jobs."""

    def __init__(self) -> None:
        self.served = 0  # the place of the last turn served
        self.tokens = 0  # of the rate limit; a claim costs `per_ms`
        self.tokens_at = 0


def is_outside(grant: ops.Grant | None, job: Job | JobSpec) -> bool:
    """Whether a job belongs to a queue or tenant that the grant does not allow."""
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


class Store:
    """Jobs in dictionaries, under one lock."""

    def __init__(self, clock: Clock, sweep: int, settings: Settings) -> None:
        self._clock = clock
        self._sweep_limit = sweep
        self.settings = settings
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._live: dict[str, Record] = {}
        # Jobs by queue and tenant, and by queue and group, which are counted most often.
        self._of_tenant: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        self._in_group: dict[tuple[str, str], dict[str, Record]] = defaultdict(dict)
        self._unique: dict[tuple[str, str, str], str] = {}
        self._queues: dict[str, QueueBook] = {}
        self._emptied: dict[str, int] = {}  # queues that maintenance found empty, and when
        self._turns: dict[tuple[str, str], int] = {}
        self._limits: dict[tuple[str, str | None, str | None], Limit] = {}
        self._slots: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._schedules: dict[str, ops.Schedule] = {}
        self.side: dict[tuple[str, str], SideRecord] = {}  # by space and key
        self._parts: list[Part] = []
        self._answered: dict[str, tuple[int, object, ops.Answers]] = {}
        self._token = 0
        self._news: deque[tuple[str, states.Event]] = deque()
        self._telling = False
        self._given_up: deque[Record] = deque()

    # Moves --------------------------------------------------------------------------------------

    def _move(self, record: Record, event: states.Event, now: int) -> bool:
        """Apply the transition that the table has for this event, if any."""
        change = states.decide(record.job, event, now)
        if change is None:
            return False
        job = record.job
        if change.failure is not None:
            for part in self._parts:
                change = part.failed(job, change, change.failure)
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
        if job.state is not State.DONE:
            self._given_up.append(record)
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
        while self._given_up:
            record = self._given_up.popleft()
            for part in self._parts:
                part.given_up(record, now)

    def _tell_child(self, child: Record, parent: str, event: states.Event, now: int) -> None:
        change = states.decide(child.job, event, now)
        if change is None or change.state is State.WAITING:
            return
        child.waits_for.discard(parent)
        if change.state is not State.PENDING or not child.waits_for:
            self._move(child, event, now)

    def _forget(self, job_id: str) -> Job:
        job = self._records.pop(job_id).job
        for jobs, key in (
            (self._of_tenant, (job.queue, job.tenant)),
            (self._in_group, (job.queue, job.group)),
        ):
            jobs[key].pop(job_id, None)
            if not jobs[key]:
                del jobs[key]
        for part in self._parts:
            part.removed(job)
        return job
