"""A job as stored: a small record that every move rewrites, and separate keys for what is large and
rarely changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from tenure.engines.foundationdb.keys import Seq
from tenure.engines.foundationdb.store import Lease
from tenure.model import states
from tenure.model.job import FINAL, NULL, Failure, IfParentFails, Job, JobSpec, State
from tenure.model.retry import Backoff

PART_BYTES = 90_000  # a value holds at most 100,000

# The same for every job: an ack, and a claim of a job that has not expired.
_ACKED = states.plain(State.LEASED, states.Acked)
_CLAIMED = states.plain(State.PENDING, states.Claimed)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The fields that transitions are decided on."""

    queue: str
    tenant: str
    group: str
    kind: str
    priority: int
    seq: Seq
    state: State
    ready: bool  # pending and in line
    run_at: int
    created_at: int
    updated_at: int
    attempts: int
    max_attempts: int
    expires_at: int | None = None
    unique_key: str | None = None
    timeout_ms: int | None = None
    backoff: Backoff | None = None
    if_parent_fails: IfParentFails = "wait"
    started_at: int | None = None
    lease_until: int | None = None
    lease_ms: int = 0
    lease_version: int = 0
    token: int = 0
    worker: str = ""
    finished_at: int | None = None
    progress: int | None = None
    note: str | None = None
    failures: int = 0  # how many are stored
    has_result: bool = False
    error: str = ""  # the group of the last failure
    has_steps: bool = False

    @property
    def lease(self) -> Lease | None:
        """The current lease, if any."""
        if self.lease_until is None:
            return None
        return Lease(self.lease_until, self.lease_ms, self.lease_version)

    @property
    def counted_as(self) -> str:
        """The counter that includes this job. Ready and leased jobs share one, so that a claim,
        which may turn out to be lost, need not change it; LEASE keys tell how many are leased."""
        if self.state is State.PENDING and not self.ready:
            return "delayed"
        return _COUNTED_AS[self.state]


_COUNTED_AS = {state: state.value for state in State} | {
    State.PENDING: "active",
    State.LEASED: "active",
}


def total_of(counted_as: str) -> str:
    """Whether a counter belongs to the unfinished or the finished jobs of a group."""
    return "unfinished" if counted_as in ("waiting", "delayed", "active") else "finished"


class ClaimNote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value of a CLAIM key."""

    worker: str
    at: int
    lease_ms: int


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part that hardly ever changes."""

    payload: bytes
    after: tuple[str, ...] = ()
    trace: str | None = None
    replay_of: str | None = None


class Held:
    """A job in a transaction, as the core sees it. Its failures are read on demand."""

    __slots__ = ("_errors", "_read_errors", "claimed", "id", "record")

    busy = False  # jobs are never locked here

    def __init__(
        self,
        job_id: str,
        record: Record,
        read_errors: Callable[[str], tuple[Failure, ...]],
        *,
        claimed: bool = False,
    ) -> None:
        self.id: str = job_id
        self.record: Record = record
        self.claimed: bool = claimed  # leased by a CLAIM key; its own key does not say so yet
        self._read_errors = read_errors
        self._errors: tuple[Failure, ...] | None = None if record.failures else ()

    @property
    def errors(self) -> tuple[Failure, ...]:
        if self._errors is None:
            self._errors = self._read_errors(self.id)
        return self._errors

    @errors.setter
    def errors(self, errors: tuple[Failure, ...]) -> None:
        self._errors = errors

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def token(self) -> int:
        return self.record.token

    @property
    def unique_key(self) -> str | None:
        return self.record.unique_key

    @property
    def kind(self) -> str:
        return self.record.kind

    @property
    def has_steps(self) -> bool:
        return self.record.has_steps

    @property
    def attempts(self) -> int:
        return self.record.attempts

    @property
    def max_attempts(self) -> int:
        return self.record.max_attempts

    @property
    def run_at(self) -> int:
        return self.record.run_at

    @property
    def expires_at(self) -> int | None:
        return self.record.expires_at

    @property
    def worker(self) -> str:
        return self.record.worker

    @property
    def backoff(self) -> Backoff | None:
        return self.record.backoff

    @property
    def if_parent_fails(self) -> IfParentFails:
        return self.record.if_parent_fails


encode = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(Record).decode
decode_claim = msgspec.msgpack.Decoder(ClaimNote).decode
_decode_body = msgspec.msgpack.Decoder(Body).decode
_decode_errors = msgspec.msgpack.Decoder(tuple[Failure, ...]).decode


def parts_of(data: bytes) -> Iterable[tuple[int, bytes]]:
    """Split a large value into parts, for several keys."""
    return [(0, data)] if len(data) <= PART_BYTES else _several_parts(data)


def _several_parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    for n, start in enumerate(range(0, len(data), PART_BYTES)):
        yield n, data[start : start + PART_BYTES]


def decode_body(parts: Iterable[bytes]) -> Body:
    return _decode_body(b"".join(parts))


_BIN_32 = 0xC6  # in MessagePack, begins bytes with their size in four bytes
_EMPTY_BIN = b"\xc4\x00"


def start_of_body(first: bytes, last_number: int, last: bytes) -> tuple[Body, int] | None:
    """A body with the start of its payload, and the size of the payload, from the first and the
    last part of it; None if the other fields are not all in the last part."""
    if last_number == 0:
        body = _decode_body(first)
        return body, len(body.payload)
    size = int.from_bytes(first[2:6], "big")
    rest_at = 6 + size - last_number * PART_BYTES
    if first[1] != _BIN_32 or rest_at < 0:
        return None
    rest = _decode_body(first[:1] + _EMPTY_BIN + last[rest_at:])
    return replace(rest, payload=first[6:]), size


def decode_errors(parts: Iterable[bytes]) -> tuple[Failure, ...]:
    data = b"".join(parts)
    return _decode_errors(data) if data else ()


def body_of(job: JobSpec | Job) -> Body:
    """The body of a new or imported job."""
    payload = job.payload if isinstance(job, JobSpec) else job.raw_payload
    return Body(bytes(payload), job.after, job.trace, job.replay_of)


def new_record(spec: JobSpec, seq: Seq, now: int, *, waits: bool) -> Record:
    """The record of a job that is enqueued."""
    run_at = spec.starts_at(now)
    return Record(  # by position, which takes a third of the time
        spec.queue,
        spec.tenant,
        spec.group,
        spec.kind,
        spec.priority,
        seq,
        State.WAITING if waits else State.PENDING,
        not waits and run_at <= now,
        run_at,
        now,  # created_at
        now,  # updated_at
        0,  # attempts
        spec.max_attempts,
        None if spec.expires_in_ms is None else now + spec.expires_in_ms,
        spec.unique_key,
        spec.timeout_ms,
        spec.backoff,
        spec.if_parent_fails,
    )


def imported_record(job: Job, seq: Seq, version: int, now: int, *, ready: bool) -> Record:
    """The record of an imported job. A lease keeps its remaining time."""
    left_ms = 0 if job.lease_until is None else max(0, job.lease_until - now)
    return Record(
        queue=job.queue,
        tenant=job.tenant,
        group=job.group,
        kind=job.kind,
        priority=job.priority,
        seq=seq,
        state=job.state,
        ready=ready and job.state is State.PENDING,
        run_at=job.run_at,
        created_at=job.created_at,
        updated_at=job.updated_at,
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        expires_at=job.expires_at,
        unique_key=job.unique_key,
        timeout_ms=job.timeout_ms,
        backoff=job.backoff,
        if_parent_fails=job.if_parent_fails,
        started_at=job.started_at,
        lease_until=job.lease_until,
        lease_ms=left_ms,
        lease_version=version,
        token=job.token,
        worker=job.worker,
        finished_at=job.finished_at,
        progress=job.progress,
        note=job.note,
        failures=len(job.errors),
        has_result=job.raw_result != NULL,
        error=_last_group(job.errors),
        has_steps=job.has_steps,
    )


def changed(record: Record, change: states.Change, now: int) -> Record:
    """The record after a transition."""
    leased = change.state is State.LEASED
    return replace(
        record,
        state=change.state,
        attempts=change.attempts,
        run_at=change.run_at,
        expires_at=change.expires_at,
        worker=change.worker,
        failures=len(change.errors),
        error=_last_group(change.errors),
        updated_at=now,
        ready=change.state is State.PENDING and change.run_at <= now,
        lease_until=record.lease_until if leased else None,
        finished_at=now if change.state in FINAL else None,
    )


def _last_group(errors: tuple[Failure, ...]) -> str:
    return errors[-1].group if errors else ""


def acked(record: Record, now: int, *, has_result: bool) -> Record:
    """The record after an ack. Unlike `changed`, it needs no failures, which stay as they are."""
    return replace(
        record,
        state=_ACKED.target,
        updated_at=now,
        lease_until=None,
        finished_at=now,
        has_result=has_result,
    )


def claimed(record: Record, claim: ClaimNote, version: int) -> Record:
    """The record of a pending job under a claim at this version of the store."""
    return replace(
        record,
        state=_CLAIMED.target,
        ready=False,
        attempts=record.attempts + _CLAIMED.attempts,
        updated_at=claim.at,
        finished_at=None,
        token=max(version, record.token + 1),  # the store it came from may have greater tokens
        worker=claim.worker,
        started_at=claim.at,
        lease_until=claim.at + claim.lease_ms,
        lease_ms=claim.lease_ms,
        lease_version=version,
        progress=None,
        note=None,
    )


def job_of(
    job_id: str, record: Record, body: Body, errors: tuple[Failure, ...], result: bytes | None
) -> Job:
    """The complete Job."""
    return Job(  # by position, which takes less than half of the time
        job_id,
        record.queue,
        record.state,
        msgspec.Raw(body.payload),
        record.priority,
        record.run_at,
        record.created_at,
        record.updated_at,
        record.attempts,
        record.max_attempts,
        record.tenant,
        record.group,
        record.kind,
        record.started_at,
        record.lease_until,
        record.token,
        record.worker,
        record.finished_at,
        record.expires_at,
        record.unique_key,
        record.timeout_ms,
        record.backoff,
        body.after,
        record.if_parent_fails,
        record.progress,
        record.note,
        NULL if result is None else msgspec.Raw(result),
        errors,
        body.trace,
        body.replay_of,
        record.has_steps,
    )
