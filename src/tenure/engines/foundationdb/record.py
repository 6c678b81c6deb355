"""A job as it is stored: a small record that every move rewrites, and apart from it what is large
and seldom changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from tenure.engines.foundationdb.keys import Seq
from tenure.engines.foundationdb.store import Lease
from tenure.model import states
from tenure.model.job import FINAL, NULL, Failure, IfParentFails, Job, JobSpec, State
from tenure.model.retry import Backoff

PART_BYTES = 90_000  # a value holds 100,000 at most


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What moves are decided on."""

    queue: str
    tenant: str
    group: str
    kind: str
    priority: int
    seq: Seq
    state: State
    ready: bool  # pending, and in line to be claimed
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

    @property
    def lease(self) -> Lease | None:
        """The lease that is out."""
        if self.lease_until is None:
            return None
        return Lease(self.lease_until, self.lease_ms, self.lease_version)

    @property
    def counted_as(self) -> str:
        """The counter it is in. Ready and leased jobs share one, so that a claim, which may turn
        out to have lost, counts nothing; LEASE keys tell how many of them are leased."""
        if self.state is State.PENDING:
            return "active" if self.ready else "delayed"
        return "active" if self.state is State.LEASED else self.state.value


class ClaimNote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a claim says."""

    worker: str
    at: int
    lease_ms: int


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What never changes."""

    payload: bytes
    after: tuple[str, ...] = ()
    trace: str | None = None


class Held:
    """A job in a transaction: what the core decides on. Its failures are read when needed."""

    __slots__ = ("_errors", "_read_errors", "claimed", "id", "record")

    busy = False  # nobody locks jobs here

    def __init__(
        self,
        job_id: str,
        record: Record,
        read_errors: Callable[[str], tuple[Failure, ...]],
        *,
        claimed: bool = False,
    ) -> None:
        self.id = job_id
        self.record = record
        self.claimed = claimed  # a CLAIM key makes it leased, its own key does not say so yet
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


def parts_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Something large, as values of several keys."""
    for n, start in enumerate(range(0, max(len(data), 1), PART_BYTES)):
        yield n, data[start : start + PART_BYTES]


def decode_body(parts: Iterable[bytes]) -> Body:
    return _decode_body(b"".join(parts))


def decode_errors(parts: Iterable[bytes]) -> tuple[Failure, ...]:
    data = b"".join(parts)
    return _decode_errors(data) if data else ()


def new_record(spec: JobSpec, seq: Seq, now: int, *, waits: bool) -> Record:
    """A job that is enqueued."""
    run_at = spec.starts_at(now)
    return Record(
        queue=spec.queue,
        tenant=spec.tenant,
        group=spec.group,
        kind=spec.kind,
        priority=spec.priority,
        seq=seq,
        state=State.WAITING if waits else State.PENDING,
        ready=not waits and run_at <= now,
        run_at=run_at,
        created_at=now,
        updated_at=now,
        attempts=0,
        max_attempts=spec.max_attempts,
        expires_at=None if spec.expires_in_ms is None else now + spec.expires_in_ms,
        unique_key=spec.unique_key,
        timeout_ms=spec.timeout_ms,
        backoff=spec.backoff,
        if_parent_fails=spec.if_parent_fails,
    )


def imported_record(job: Job, seq: Seq, version: int, now: int, *, ready: bool) -> Record:
    """A job of another store. A lease that is out is as long as what is left of it."""
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
    )


def changed(record: Record, change: states.Change, now: int) -> Record:
    """What a move makes of a record."""
    leased = change.state is State.LEASED
    return replace(
        record,
        state=change.state,
        attempts=change.attempts,
        run_at=change.run_at,
        expires_at=change.expires_at,
        worker=change.worker,
        failures=len(change.errors),
        updated_at=now,
        ready=change.state is State.PENDING and change.run_at <= now,
        lease_until=record.lease_until if leased else None,
        finished_at=now if change.state in FINAL else None,
    )


def claimed(record: Record, change: states.Change, claim: ClaimNote, version: int) -> Record:
    """A job that a claim made at this version of the store has."""
    return replace(
        changed(record, change, claim.at),
        failures=record.failures,
        token=max(version, record.token + 1),  # it may come from a store whose tokens are ahead
        worker=claim.worker,
        started_at=claim.at,
        lease_until=claim.at + claim.lease_ms,
        lease_ms=claim.lease_ms,
        lease_version=version,
        progress=None,
        note=None,
    )


def _no_errors(_: str) -> tuple[Failure, ...]:
    """A claim leaves the failures of a job as they are."""
    return ()


def under_claim(job_id: str, record: Record, claim: ClaimNote, version: int) -> Record:
    """A stored record together with the lowest claim on it."""
    change = states.decide(Held(job_id, record, _no_errors), states.Claimed(), claim.at)
    assert change is not None
    assert change.state is State.LEASED  # or nobody would have claimed it
    return claimed(record, change, claim, version)


def job_of(
    job_id: str, record: Record, body: Body, errors: tuple[Failure, ...], result: bytes | None
) -> Job:
    """The job as it is answered."""
    return Job(
        id=job_id,
        queue=record.queue,
        state=record.state,
        raw_payload=msgspec.Raw(body.payload),
        priority=record.priority,
        run_at=record.run_at,
        created_at=record.created_at,
        updated_at=record.updated_at,
        attempts=record.attempts,
        max_attempts=record.max_attempts,
        tenant=record.tenant,
        group=record.group,
        kind=record.kind,
        started_at=record.started_at,
        lease_until=record.lease_until,
        token=record.token,
        worker=record.worker,
        finished_at=record.finished_at,
        expires_at=record.expires_at,
        unique_key=record.unique_key,
        timeout_ms=record.timeout_ms,
        backoff=record.backoff,
        after=body.after,
        if_parent_fails=record.if_parent_fails,
        progress=record.progress,
        note=record.note,
        raw_result=NULL if result is None else msgspec.Raw(result),
        errors=errors,
        trace=body.trace,
    )
