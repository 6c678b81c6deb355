"""What holds a job back: the reasons that Explain returns, and their texts.

Each reason has the facts as fields, a `text` for people, and a `fix`: what to do about it, if
there is something to do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import asdict, replace

from tenure.model.job import Failure, IfParentFails, Job, State
from tenure.model.ops import UNKNOWN_KIND
from tenure.model.queries import JobQuery

MOST_AHEAD = 1_000  # higher numbers are not counted
MOST_HOLDERS = 10
MOST_PARENTS = 20
PARENTS_LOOKED_AT = 1_000  # of these, those that failed come first

Scope = Literal["queue", "tenant", "group"]


class Explain(JobQuery, frozen=True):
    """What holds a job back, or that it is next. grant: whose jobs the result may mention."""


class Reason(msgspec.Struct, frozen=True, tag_field="code"):
    """The base of all reasons."""


class Finished(Reason, frozen=True, tag="finished"):
    """The job is done, dead or cancelled. heard_at: if it was cancelled while a worker ran it, when
    the worker learned of it; None if it has not yet."""

    at: int
    worker: str = ""
    heard_at: int | None = None
    text: str = ""
    fix: str = ""


class Running(Reason, frozen=True, tag="running"):
    """A worker runs the job."""

    worker: str
    since: int | None
    lease_until: int
    text: str = ""
    fix: str = ""


class LeaseOver(Reason, frozen=True, tag="lease_over"):
    """The worker's lease expired, and no claim has noticed yet. dies: the next claim will make the
    job dead, because its attempts are used up or it expired."""

    worker: str
    lease_until: int
    dies: bool
    text: str = ""
    fix: str = ""


class Expired(Reason, frozen=True, tag="expired"):
    """The job was not claimed in time. The next claim or maintenance makes it dead."""

    expires_at: int
    text: str = ""
    fix: str = ""


class Paused(Reason, frozen=True, tag="paused"):
    """The queue, the job's tenant or its group is paused. tenant, group: of the pause; "*" for any.
    by, reason: who paused it and why, if known."""

    scope: Scope
    tenant: str | None = None
    group: str | None = None
    since: int | None = None
    by: str = ""
    reason: str = ""
    text: str = ""
    fix: str = ""


class Parent(msgspec.Struct, frozen=True):
    """A job that must be done first. state: None if the caller may not see that job."""

    id: str
    state: State | None


class WaitsFor(Reason, frozen=True, tag="waits_for"):
    """The job waits for others. parents: the first of them, failed ones before the rest."""

    parents: list[Parent]
    count: int
    text: str = ""
    fix: str = ""


class Delayed(Reason, frozen=True, tag="delayed"):
    """The job is not due. attempt: how many attempts it has had."""

    due_at: int
    attempt: int
    max_attempts: int
    text: str = ""
    fix: str = ""


class Suspended(Reason, frozen=True, tag="suspended"):
    """The job has suspended itself until a time, a signal, or the end of the jobs that it waits
    for. until: None if there is no limit of time."""

    kind: Literal["sleep", "wait", "gather"]
    name: str
    since: int
    until: int | None = None
    text: str = ""
    fix: str = ""


class Limited(Reason, frozen=True, tag="limit"):
    """A concurrency limit is used up. tenant, group: of the limit; "*" for each. holders: some of
    the running jobs. used, limit: None if the caller may not see them."""

    scope: Scope
    used: int | None
    limit: int | None
    holders: list[str]
    tenant: str | None = None
    group: str | None = None
    text: str = ""
    fix: str = ""


class RateLimited(Reason, frozen=True, tag="rate"):
    """The queue's rate is used up. next_at: when the next job may start; None if the caller may
    not see it."""

    next_at: int | None
    text: str = ""
    fix: str = ""


class NoWorker(Reason, frozen=True, tag="no_worker"):
    """No live worker is known to listen to the queue. seen_at: when there last was one, if that was
    recently."""

    seen_at: int | None
    text: str = ""
    fix: str = ""


class Next(Reason, frozen=True, tag="next"):
    """The next claim takes the job."""

    text: str = ""
    fix: str = ""


class InLine(Reason, frozen=True, tag="in_line"):
    """The job is ready, and others come first. ahead: jobs of its tenant, up to MOST_AHEAD.
    tenants_ahead: tenants whose turn comes first, up to MOST_AHEAD; None if there is no fixed order
    or the caller may not see it. room: how many more jobs the limits let start now; None if there
    is no limit."""

    ahead: int
    tenants_ahead: int | None
    room: int | None
    text: str = ""
    fix: str = ""


AnyReason = (
    Finished | Running | LeaseOver | Expired | Paused | WaitsFor | Delayed | Suspended | Limited
    | RateLimited | NoWorker | Next | InLine
)  # fmt: skip


class Explained(msgspec.Struct, frozen=True):
    """What holds a job back, at one moment. claimable: whether the next claim takes the job, if it
    asks for enough jobs of this queue. reasons: in the order in which to solve them."""

    id: str
    state: State
    now: int
    claimable: bool
    reasons: list[AnyReason]


class LastError(msgspec.Struct, frozen=True):
    """Why the last attempt of a job failed, or which task no worker has."""

    at: int
    attempt: int
    worker: str
    type: str
    message: str
    text: str
    fix: str = ""


class Why(Explained, frozen=True):
    """What holds a job back, and the error of its last attempt if it failed and is not done."""

    last_error: LastError | None


def with_last_error(found: Explained, job: Job) -> Why:
    """Add the last error of the job."""
    failed = job.state in (State.PENDING, State.DEAD) and job.errors
    return Why(**asdict(found), last_error=_last_error(job.errors[-1]) if failed else None)


def _last_error(last: Failure) -> LastError:
    text = f"Attempt {last.attempt} failed at"
    what, fix = ": ".join(part for part in (last.type, last.message) if part), ""
    if last.type == UNKNOWN_KIND:
        text = f"{last.message[:1].upper()}{last.message[1:]}: first noticed at"
        what, fix = "", "Start a worker whose app has this task, or rename the task back."
    where = f" on {last.worker}" if last.worker else ""
    text = f"{text} {_when(last.at)}{where}{f': {what}' if what else '.'}"
    return LastError(last.at, last.attempt, last.worker, last.type, last.message, text, fix)


class Subject(Protocol):
    """The fields of a job that a text mentions."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def queue(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def if_parent_fails(self) -> IfParentFails: ...


def explained(job: Subject, now: int, claimable: bool, reasons: Iterable[AnyReason]) -> Explained:
    """The result, with the text of each reason."""
    told = [_told(reason, Context(job, now, claimable)) for reason in reasons]
    return Explained(job.id, job.state, now, claimable, told)


class Context(NamedTuple):
    """What a text may mention besides its reason."""

    job: Subject
    now: int
    claimable: bool


def _told(reason: AnyReason, about: Context) -> AnyReason:
    text, fix = _WORDS[type(reason)](reason, about)
    return replace(reason, text=text, fix=fix)


Words = tuple[str, str]  # what the problem is, and what to do


def _finished(reason: Finished, about: Context) -> Words:
    text = f"It has been {about.job.state.value} since {_when(reason.at)}."
    if reason.heard_at is not None:
        text += f" {_worker(reason.worker)} heard of it at {_when(reason.heard_at)}."
    elif reason.worker and about.job.state is State.CANCELLED:
        text += f" {_worker(reason.worker)} has not heard of it yet."
    if about.job.state is State.DONE:
        return text, ""
    return text, f"To run it again: tenure replay {shlex.quote(about.job.id)}"


def _running(reason: Running, about: Context) -> Words:
    since = "" if reason.since is None else f" since {_when(reason.since)}"
    text = f"Worker {reason.worker!r} runs it{since}; its lease lasts until "
    text += f"{_when(reason.lease_until)}."
    return text, ""


def _lease_over(reason: LeaseOver, about: Context) -> Words:
    text = f"{_worker(reason.worker)} stopped renewing its lease, which expired at "
    text = f"{text}{_when(reason.lease_until)}. The next claim "
    if reason.dies:
        return text + "makes it dead: no attempt is left, or it expired.", ""
    return text + "makes it ready again.", "Start a worker for this queue, if there is none."


def _expired(reason: Expired, about: Context) -> Words:
    text = f"It expired at {_when(reason.expires_at)}; the next claim makes it dead."
    return text, "Enqueue it with a longer expires_in, or replay it once it is dead."


def _paused(reason: Paused, about: Context) -> Words:
    text = f"{_scope(reason.scope, about.job)} is paused"
    if reason.since is not None:
        text = f"{_scope(reason.scope, about.job)} was paused at {_when(reason.since)}"
    text += f" by {reason.by}" if reason.by else ""
    text += f": {reason.reason.removesuffix('.')}" if reason.reason else ""
    return f"{text}.", f"tenure resume {_options(about.job.queue, reason)}"


def _waits_for(reason: WaitsFor, about: Context) -> Words:
    first = reason.parents[0] if reason.parents else None
    if first is None or first.state is State.DONE:
        return "The jobs that it waited for have ended; it learns of that in a moment.", ""
    state = "" if first.state is None else f", which is {first.state.value}"
    more = f", and {reason.count - 1:,} more" if reason.count > 1 else ""
    text = f"It waits for {first.id}{state}{more}."
    if first.state in (State.DEAD, State.CANCELLED):
        again = f"tenure replay {shlex.quote(first.id)}"
        return text, f"It never runs unless that job is done. To run it again: {again}"
    return text, f"What holds that job back: tenure why {shlex.quote(first.id)}"


def _delayed(reason: Delayed, about: Context) -> Words:
    text = f"It is due at {_when(reason.due_at)}, in {_span(reason.due_at - about.now)}"
    if reason.attempt:
        text += f", for attempt {reason.attempt + 1} of {reason.max_attempts}"
    return f"{text}.", f"tenure run-now {shlex.quote(about.job.id)}"


def _suspended(reason: Suspended, about: Context) -> Words:
    since, job_id = _when(reason.since), shlex.quote(about.job.id)
    until = "" if reason.until is None else f", until {_when(reason.until)}"
    if reason.kind == "sleep":
        return f"It sleeps ({reason.name}) since {since}{until}.", f"tenure run-now {job_id}"
    if reason.kind == "gather":
        return f"It waits for the jobs of its step {reason.name!r} since {since}.", ""
    text = f"It waits for the signal {reason.name!r} since {since}{until}."
    return text, f"tenure signal {job_id} {shlex.quote(reason.name)} '{{}}'"


def _limited(reason: Limited, about: Context) -> Words:
    of = "" if reason.limit is None else f": {reason.used:,} of {reason.limit:,} run"
    text = f"{_scope(reason.scope, about.job)} has reached its limit{of}."
    fix = f"Wait, or raise it: tenure limit {_options(about.job.queue, reason)} --concurrency N"
    return text, fix


def _rate_limited(reason: RateLimited, about: Context) -> Words:
    text = f"The rate of the queue {about.job.queue!r} is used up"
    if reason.next_at is not None:
        text += f"; the next job may start at {_when(reason.next_at)}"
    return (
        f"{text}.",
        f"Wait, or raise it: tenure limit {shlex.quote(about.job.queue)} --rate N --per 1m",
    )


def _no_worker(reason: NoWorker, about: Context) -> Words:
    text = f"No live worker listens to the queue {about.job.queue!r}"
    text += "" if reason.seen_at is None else f"; the last was seen at {_when(reason.seen_at)}"
    queue = shlex.quote(about.job.queue)
    return f"{text}.", f"Start a worker for it: tenure worker MODULE:APP --queues {queue}"


def _next(reason: Next, about: Context) -> Words:
    return "It is ready, and first in line.", ""


def _in_line(reason: InLine, about: Context) -> Words:
    first = []
    if reason.ahead:
        first.append(f"{_number(reason.ahead, 'job')} of its tenant")
    if reason.tenants_ahead:
        first.append(f"the turn of {_number(reason.tenants_ahead, 'other tenant')}")
    text = "It is ready"
    if first:
        text += f", after {' and '.join(first)}"
    if reason.room is not None:
        text += f"; the limits let {_number(reason.room, 'more job')} start now"
    return f"{text}.", "Wait, or start more workers." if about.claimable else ""


_WORDS: dict[type[Reason], Callable[[Any, Context], Words]] = {
    Finished: _finished,
    Running: _running,
    LeaseOver: _lease_over,
    Expired: _expired,
    Paused: _paused,
    WaitsFor: _waits_for,
    Delayed: _delayed,
    Suspended: _suspended,
    Limited: _limited,
    RateLimited: _rate_limited,
    NoWorker: _no_worker,
    Next: _next,
    InLine: _in_line,
}


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _span(ms: int) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m")):
        if ms >= 2 * size:
            return f"{ms // size:,} {unit}"
    return f"{max(0, ms) / 1000:,.1f} s"


def _worker(name: str) -> str:
    return f"Worker {name!r}"


def _number(count: int, noun: str) -> str:
    at_least = "at least " if count >= MOST_AHEAD else ""
    return f"{at_least}{count:,} {noun}{'' if count == 1 else 's'}"


def _scope(scope: Scope, job: Subject) -> str:
    if scope == "queue":
        return f"The queue {job.queue!r}"
    return f"The {scope} {(job.tenant if scope == 'tenant' else job.group)!r}"


def _options(queue: str, reason: Paused | Limited) -> str:
    """The arguments that name the scope of a limit on the command line."""
    words = [queue]
    if reason.tenant is not None and (reason.tenant, reason.group is None) != ("*", False):
        words += ["--tenant", reason.tenant]
    if reason.group is not None:
        words += ["--group", reason.group]
    return shlex.join(words)
