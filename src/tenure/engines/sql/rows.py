"""Table rows: the fields for decisions, and conversion to Job."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from tenure.core.transaction import Edit
from tenure.model.job import FINAL, NULL, Failure, IfParentFails, Job, JobSpec, State
from tenure.model.ops import Entry, in_order
from tenure.model.retry import Backoff
from tenure.model.states import Change
from tenure.model.summary import LastError, Summary, summarized

WAITING, DELAYED, READY, LEASED, DONE, DEAD, CANCELLED = range(7)
STATES = (
    State.WAITING,
    State.PENDING,
    State.PENDING,
    State.LEASED,
    State.DONE,
    State.DEAD,
    State.CANCELLED,
)
CODES: dict[State, tuple[int, ...]] = {
    state: tuple(code for code, s in enumerate(STATES) if s is state) for state in State
}


class JobOptions(msgspec.Struct, omit_defaults=True):
    """Options that few jobs have, stored in one column."""

    after: tuple[str, ...] = ()
    if_parent_fails: IfParentFails = "wait"
    timeout_ms: int | None = None
    backoff: Backoff | None = None
    trace: str | None = None
    replay_of: str | None = None
    has_steps: bool = False


_NO_OPTIONS = JobOptions()
_NONE = astuple(_NO_OPTIONS)
_decode_options = msgspec.json.Decoder(JobOptions).decode
_decode_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode


def options_of(spec: JobSpec | Job) -> str | None:
    """The options column of a new job."""
    few = (
        spec.after,
        spec.if_parent_fails,
        spec.timeout_ms,
        spec.backoff,
        spec.trace,
        spec.replay_of,
        isinstance(spec, Job) and spec.has_steps,
    )
    if few == _NONE:
        return None
    options = JobOptions(*few)
    return msgspec.json.encode(options).decode()


def decode_options(text: str | None) -> JobOptions:
    """The options column, read."""
    return _decode_options(text) if text else _NO_OPTIONS


def errors_text(errors: tuple[Failure, ...]) -> str | None:
    """The errors column."""
    return msgspec.json.encode(errors).decode() if errors else None


class Row(msgspec.Struct, gc=False):
    """The fields of a job that a decision needs (core.StoredJob), in the order of the SELECTs."""

    seq: int
    id: str
    lane: int
    code: int
    priority: int
    attempts: int
    max_attempts: int
    run_at: int
    expires_at: int | None
    worker: str
    token: int
    unique_key: str | None
    options_text: str | None
    errors_text: str | None
    kind: str

    @property
    def busy(self) -> bool:
        return False  # it was read under a lock

    @property
    def state(self) -> State:
        return STATES[self.code]

    @property
    def options(self) -> JobOptions:
        return decode_options(self.options_text)

    @property
    def backoff(self) -> Backoff | None:
        return self.options.backoff

    @property
    def if_parent_fails(self) -> IfParentFails:
        return self.options.if_parent_fails

    @property
    def has_steps(self) -> bool:
        return self.options_text is not None and self.options.has_steps

    @property
    def errors(self) -> tuple[Failure, ...]:
        return _decode_failures(self.errors_text) if self.errors_text else ()

    def become(self, change: Change, now: int) -> None:
        """Apply a change to this row."""
        self.code = code_of(change, now)
        self.attempts, self.run_at, self.worker = change.attempts, change.run_at, change.worker
        self.expires_at, self.errors_text = change.expires_at, errors_text(change.errors)

    def take_in(self, edit: Edit, now: int) -> None:
        """Apply new values to this row. It has not been claimed."""
        if edit.priority is not None:
            self.priority = edit.priority
        if edit.run_at is not None:
            self.run_at = edit.run_at
            if self.code != WAITING:
                self.code = READY if edit.run_at <= now else DELAYED


def code_of_entry(entry: Entry) -> int:
    """The state code of a job from another store."""
    if entry.job.state is State.PENDING:
        return READY if entry.ready else DELAYED
    return CODES[entry.job.state][0]


def result_text(result: msgspec.Raw) -> str | None:
    """The result column."""
    return None if result is NULL or result == NULL else str(result, "utf-8")


def at_of(job: Job) -> int:
    """The time that matters in the job's state."""
    if job.state is State.LEASED and job.lease_until is not None:
        return job.lease_until
    return job.run_at if job.finished_at is None else job.finished_at


def code_of(change: Change, now: int) -> int:
    """The state code after a change."""
    if change.state is State.PENDING:
        return READY if change.run_at <= now else DELAYED
    return CODES[change.state][0]


def leased_job(row: tuple[Any, ...], queue: str, tenant: str, group: str) -> Job:
    """The Job of a row that was just leased."""
    (
        _seq, id, priority, run_at, created_at, attempts, max_attempts, kind, started_at, at,
        token, worker, expires_at, unique_key, options_text, errors, payload,
    ) = row  # fmt: skip
    job = Job(
        id,
        queue,
        State.LEASED,
        msgspec.Raw(payload),
        priority,
        run_at,
        created_at,
        started_at,
        attempts,
        max_attempts,
        tenant,
        group,
        kind,
        started_at,
        at,
        token,
        worker,
        None,
        expires_at,
        unique_key,
    )
    return with_rare(job, options_text, errors) if options_text or errors else job


def with_rare(job: Job, options_text: str | None, errors: str | None) -> Job:
    """A job with its options and errors, as stored."""
    options = decode_options(options_text)
    return replace(
        job,
        timeout_ms=options.timeout_ms,
        backoff=options.backoff,
        after=options.after,
        if_parent_fails=options.if_parent_fails,
        errors=_decode_failures(errors) if errors else (),
        trace=options.trace,
        replay_of=options.replay_of,
        has_steps=options.has_steps,
    )


def job_of(row: tuple[Any, ...]) -> Job:
    """The Job of a row."""
    (
        _seq, id, queue, code, priority, run_at, created_at, updated_at, attempts, max_attempts,
        tenant, group, kind, started_at, at, token, worker, expires_at, unique_key, options_text,
        progress, note, payload, result, errors,
    ) = row  # fmt: skip
    state = STATES[code]
    options = _decode_options(options_text) if options_text else _NO_OPTIONS
    return Job(
        id,
        queue,
        state,
        msgspec.Raw(payload),
        priority,
        run_at,
        created_at,
        updated_at,
        attempts,
        max_attempts,
        tenant,
        group,
        kind,
        started_at,
        at if code == LEASED else None,
        token,
        worker,
        at if state in FINAL else None,
        expires_at,
        unique_key,
        options.timeout_ms,
        options.backoff,
        options.after,
        options.if_parent_fails,
        progress,
        note,
        NULL if result is None else msgspec.Raw(result),
        _decode_failures(errors) if errors else (),
        options.trace,
        options.replay_of,
        options.has_steps,
    )


_decode_error = msgspec.json.Decoder(LastError).decode


def summary_of_row(row: tuple[Any, ...]) -> Summary:
    """The Summary of a row. After the columns of a job without its large parts come the start of
    the payload, its size, whether there is a result, and the last error as JSON."""
    *columns, preview, size, has_result, error = row
    job = job_of((*columns, b"null", None, None))
    last = None if error is None else _decode_error(error)
    return summarized(job, preview, size, bool(has_result), last)


def entry_of(row: tuple[Any, ...], waits_for: set[str]) -> Entry:
    """A job of this store, for export."""
    job = job_of(row)
    return Entry(job, row[3] == READY, in_order(job, waits_for))
