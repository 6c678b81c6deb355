"""Steps, suspensions and signals of a job, and how they are stored.

All of it are records of the space "step", whose keys begin with the id of the job:

head            counts, and why the job is suspended: one for each job
step            one for each name and key; a result that is large is stored beside it, in parts
signal          one for each name
undo            the job that undoes a step, in parts
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from tenure.errors import Busy, InvalidInput, PayloadTooLarge, TenureError
from tenure.model.fields import Label, Name, PositiveSpan, Span
from tenure.model.job import NULL, Job, JobSpec, null
from tenure.model.ops import Answer, Entry, JobsOp, LeaseOp, Moved, Needs, NewJobs
from tenure.model.queries import PAGE_BYTES, Get, JobQuery, Query
from tenure.model.record_queries import ListRecords, Read, every
from tenure.model.records import Record

MAX_STEPS = 1_000  # of a job
MAX_RESULT_BYTES = 2**20  # of a step
MAX_BYTES = 32 * 2**20  # of all steps of a job
MAX_UNDOS = 100  # of a job: they are enqueued in the transaction that ends it
MAX_UNDO_BYTES = 16_384
MAX_SIGNALS = 100  # of a job
MAX_SIGNAL_BYTES = 32_768
MAX_SENT_BYTES = 8 * 2**20  # of one signal to several jobs
MAX_READ_BYTES = 32 * 2**20  # of steps that one transaction reads for their workers
MAX_CHILDREN = 1_000  # that one step waits for
PART_BYTES = 50_000  # of a value that is stored in parts
FOREVER_MS = 50 * 366 * 86_400_000  # how long a job waits for a signal, if it does not say

Kind = Literal["step", "sleep", "wait", "gather", "undo"]
Number = Annotated[int, Meta(ge=0, le=10**9)]
Children = Annotated[tuple[JobSpec, ...], Meta(max_length=MAX_CHILDREN)]


class Checkpoint(LeaseOp, frozen=True):
    """Record the result of a step under its name and key, unless one is recorded: then that one
    counts. Renews the lease. kind "wait": the time is over, unless the signal is there. "gather":
    the results of the jobs that were waited for. "undo": `then` is the job that undoes something,
    enqueued if this job ends dead or cancelled. took_ms: for how long the step ran."""

    keeps = True
    name: Name
    key: Label = ""
    kind: Literal["step", "wait", "gather", "undo"] = "step"
    result: msgspec.Raw = msgspec.field(default_factory=null)
    then: NewJobs = ()
    lease_ms: PositiveSpan | None = None
    took_ms: Span | None = None

    @property
    def adds(self) -> tuple[JobSpec, ...]:
        return self.then

    def added(self, answer: Answer) -> tuple[JobSpec, ...]:
        return ()  # it is enqueued when the job ends

    def check(self) -> None:
        """Validate rules that span several fields."""
        if len(self.then) != (self.kind == "undo"):
            raise InvalidInput("then", "names one job if the kind is 'undo', and otherwise none")
        for spec in self.then:
            _check_size("then", spec.payload, MAX_UNDO_BYTES)
        if any(spec.unique_key is not None or spec.after for spec in self.then):
            raise InvalidInput("then", "what undoes a step has no unique key and waits for no job")
        _check_size("result", self.result, MAX_RESULT_BYTES)


class Suspend(LeaseOp, frozen=True):
    """Give the job back until something happens, without using up the attempt. kind "sleep": until
    the delay is over. "wait": until there is a signal of this name, or the delay is over.
    "gather": until the jobs in `then`, which are enqueued, have ended."""

    name: Name
    key: Label = ""
    kind: Literal["sleep", "wait", "gather"] = "sleep"
    delay_ms: Span | None = None
    then: Children = ()

    @property
    def adds(self) -> tuple[JobSpec, ...]:
        return self.then

    def added(self, answer: Answer) -> tuple[JobSpec, ...]:
        return self.then if isinstance(answer, Moved) else ()

    def check(self) -> None:
        """Validate rules that span several fields."""
        if self.kind == "sleep" and self.delay_ms is None:
            raise InvalidInput("delay_ms", "say for how long the job sleeps")
        if self.kind == "gather" and self.delay_ms is not None:
            raise InvalidInput("delay_ms", "jobs are waited for without a limit of time")
        if self.kind != "gather" and self.then:
            raise InvalidInput("then", "only a step of the kind 'gather' waits for jobs")
        if any(self.id in spec.after for spec in self.then):
            raise InvalidInput("then", "names a job that waits for the one that would wait for it")


class Recall(LeaseOp, frozen=True):
    """Read the steps and signals of a job, for the holder of its lease, starting after a number."""

    keeps = True
    after: Number = 0


class Signal(JobsOp, frozen=True):
    """Send a signal to jobs that have not finished, and wake those that wait for it. Of several
    signals of one name the first counts; the others change nothing."""

    needs: ClassVar[Needs] = "produce"
    name: Name
    value: msgspec.Raw = msgspec.field(default_factory=null)

    def check(self) -> None:
        """Validate the size of the value."""
        _check_size("value", self.value, MAX_SIGNAL_BYTES)
        if len(self.value) * len(self.ids) > MAX_SENT_BYTES:
            reason = f"the value and the ids together are more than {MAX_SENT_BYTES:,} bytes"
            raise PayloadTooLarge("ids", reason)


class ReplayFrom(JobsOp, frozen=True):
    """Let dead and cancelled jobs run again from a step: it, all later ones, and the signals that
    came after it began are forgotten. Jobs that do not have the step, or whose steps were undone,
    stay as they are."""

    name: Name
    key: Label = ""


def _check_size(field: str, value: msgspec.Raw, most: int) -> None:
    if len(value) > most:
        raise PayloadTooLarge(field, f"is {len(value):,} bytes; at most {most:,} are allowed")


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job has done under a name and a key, or waits for.

    at: when it was recorded. ended_at: None as long as it is waited for. until: when a sleep or a
    wait is over. token: of the lease that recorded it. children: the jobs that are waited for, or
    the job that undoes something."""

    number: int
    name: str
    at: int
    key: str = ""
    kind: Kind = "step"
    ended_at: int | None = None
    until: int | None = None
    took_ms: int | None = None
    token: int = 0
    children: tuple[str, ...] = ()
    result: msgspec.Raw = msgspec.field(default_factory=null)
    parts: int = 0  # of the result, if it is stored beside the step
    size: int = 0  # in bytes, as counted for MAX_BYTES


class SentSignal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A signal that a job has received."""

    name: str
    at: int
    value: msgspec.Raw = msgspec.field(default_factory=null)
    by: str = ""


class Suspension(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job was suspended. token: of the lease that it had. It is out of date if the job has
    another one."""

    name: str
    kind: Literal["sleep", "wait", "gather"]
    at: int
    token: int
    key: str = ""
    until: int | None = None


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored once for each job. last: the number of the last step. undos: how many jobs
    are enqueued if it ends dead or cancelled. undone: they have been."""

    queue: str
    tenant: str
    steps: int = 0
    last: int = 0
    bytes: int = 0
    signals: int = 0
    undos: int = 0
    undone: bool = False
    suspended: Suspension | None = None


class ListSteps(JobQuery, frozen=True):
    """The steps and signals of a job, in the order in which they were recorded, starting after a
    number. Empty if there is no such job."""

    get: ClassVar[Get | None] = Get("/v1/jobs/{id}/steps", "List the steps and signals of a job.")
    after: Number = 0


class JobSteps(msgspec.Struct, frozen=True, tag=True, tag_field="answer", omit_defaults=True):
    """A page of steps, and all signals. after: where the next page starts, if there is one.
    suspended: why the job is, or was last, suspended. undone: the job ended dead or cancelled, and
    what undoes its steps was enqueued."""

    steps: list[Step] = []
    signals: list[SentSignal] = []
    after: int | None = None
    suspended: Suspension | None = None
    undone: bool = False


decode_steps = msgspec.json.Decoder(JobSteps).decode  # of a Recalled


# As records ---------------------------------------------------------------------------------------

_OF_JOB = "\x01"  # ends the id of a job
_HEAD, _STEP, _PART, _SIGNAL, _UNDO = "hstwu"  # the first character after that
decode_head = msgspec.json.Decoder(Head).decode
decode_step = msgspec.json.Decoder(Step).decode
decode_signal = msgspec.json.Decoder(SentSignal).decode
_decode_spec = msgspec.json.Decoder(JobSpec).decode
encode = msgspec.json.Encoder().encode

Rows = Iterator[tuple[str, bytes]]  # keys and values of records


def _of(job_id: str) -> str:
    """What the keys of a job begin with. An id may hold anything but a NUL: with its length before
    it, no key of a job is between those of another one."""
    return f"{len(job_id)}:{job_id}{_OF_JOB}"


def keys_of(job_id: str) -> tuple[str, str]:
    """The keys before and after all those of a job."""
    return _around(_of(job_id))


def head_key(job_id: str) -> str:
    return f"{_of(job_id)}{_HEAD}"


def step_key(job_id: str, name: str, key: str) -> str:
    return f"{_of(job_id)}{_STEP}{_digest(name, key)}"


def signal_key(job_id: str, name: str) -> str:
    return f"{_of(job_id)}{_SIGNAL}{_digest(name, '')}"


def undo_keys(job_id: str, number: int | None = None) -> tuple[str, str]:
    """The keys before and after the parts of the job that undoes this step, or of all of them."""
    prefix = f"{_of(job_id)}{_UNDO}"
    return _around(prefix if number is None else f"{prefix}{number:06d}.")


def part_keys(job_id: str, name: str, key: str) -> tuple[str, str]:
    """The keys before and after the parts of the result of a step."""
    return _around(f"{_of(job_id)}{_PART}{_digest(name, key)}.")


def keys_of_parts(job_id: str, step: Step) -> list[str]:
    """The keys of the parts of the result of a step."""
    first, _ = part_keys(job_id, step.name, step.key)
    return [f"{first}{n:03d}" for n in range(step.parts)]


def _around(prefix: str) -> tuple[str, str]:
    return prefix, f"{prefix}\U0010ffff"


def _digest(name: str, key: str) -> str:
    text = f"{name}\x00{key}" if key else name
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def rows_of_step(job_id: str, step: Step) -> Rows:
    """A step as records."""
    if len(step.result) > PART_BYTES:
        parts = list(_parts(bytes(step.result)))
        step = replace(step, result=NULL, parts=len(parts))
        yield from zip(keys_of_parts(job_id, step), parts, strict=True)
    yield step_key(job_id, step.name, step.key), encode(step)


def rows_of_undo(job_id: str, number: int, spec: JobSpec) -> Rows:
    """The job that undoes a step, as records."""
    first, _ = undo_keys(job_id, number)
    for n, part in enumerate(_parts(encode(spec))):
        yield f"{first}{n:03d}", part


def rows_of_signal(job_id: str, sent: SentSignal) -> Rows:
    yield signal_key(job_id, sent.name), encode(sent)


def _parts(value: bytes) -> Iterator[bytes]:
    """Cut UTF-8 between characters."""
    start = 0
    while start < len(value):
        end = min(start + PART_BYTES, len(value))
        while end < len(value) and value[end] & 0xC0 == 0x80:
            end -= 1
        yield value[start:end]
        start = end


class Found:
    """What the records of a job say."""

    def __init__(self, job_id: str, rows: Iterable[tuple[str, bytes]]) -> None:
        self.head: Head | None = None
        self.signals: list[SentSignal] = []
        self._steps: list[Step] = []
        self._parts: dict[str, bytes] = {}
        self._undos: dict[int, bytes] = {}
        self._id = job_id
        at = len(keys_of(job_id)[0])
        for key, value in rows:
            match key[at]:
                case "h":
                    self.head = decode_head(value)
                case "s":
                    self._steps.append(decode_step(value))
                case "t":
                    self._parts[key] = value
                case "w":
                    self.signals.append(decode_signal(value))
                case _:
                    number = int(key[at + 1 : at + 7])
                    self._undos[number] = self._undos.get(number, b"") + value
        self._steps.sort(key=lambda step: step.number)
        self.signals.sort(key=lambda sent: (sent.at, sent.name))

    @property
    def steps(self) -> list[Step]:
        """In the order in which they were recorded, with their results."""
        return [self._whole(step) for step in self._steps]

    def _whole(self, step: Step) -> Step:
        if not step.parts:
            return step
        try:
            parts = [self._parts[key] for key in keys_of_parts(self._id, step)]
        except KeyError:
            raise Busy("the steps of the job changed while they were read; try again") from None
        return replace(step, result=msgspec.Raw(b"".join(parts)), parts=0)

    @property
    def undos(self) -> dict[int, JobSpec]:
        """The jobs that undo steps, by the numbers of the steps."""
        return {number: _decode_spec(text) for number, text in sorted(self._undos.items())}

    def page(self, after: int) -> JobSteps:
        """The steps after a number, as many as fit."""
        page: list[Step] = []
        size = 0
        for step in self.steps:
            if step.number > after:
                page.append(step)
                size += step.size
            if size >= PAGE_BYTES:
                break
        head = self.head
        more = bool(page) and page[-1].number < self._steps[-1].number
        return JobSteps(
            page,
            self.signals,
            page[-1].number if more else None,
            None if head is None else head.suspended,
            head is not None and head.undone,
        )


def list_steps(read: Read, query: ListSteps) -> JobSteps:
    """The steps of a job, unless the grant hides it. Raises Busy if they change meanwhile."""
    key = head_key(query.id)
    heads = [decode_head(one.value) for one in every(read, "step", key, key)]
    for head in heads:
        if query.grant is None or query.grant.allows(head.queue, head.tenant):
            return found_in(query.id, every(read, "step", *keys_of(query.id))).page(query.after)
    return JobSteps()


def suspension(read: Read, job: Job) -> Suspension | None:
    """Why a job that is not leased was suspended, unless something else has happened since."""
    key = head_key(job.id)
    for one in read(ListRecords("step", key, key, 1)) if job.has_steps else ():
        found = decode_head(one.value).suspended
        return found if found is not None and found.token == job.token else None
    return None


def found_in(job_id: str, records: Iterable[Record]) -> Found:
    return Found(job_id, ((one.key, one.value) for one in records))


# What is recorded ---------------------------------------------------------------------------------


def size_of(step: Step, undo: JobSpec | None = None) -> int:
    """What a step counts for MAX_BYTES."""
    ids = sum(map(len, step.children))
    return (
        200
        + len(step.name)
        + len(step.key)
        + len(step.result)
        + ids
        + (0 if undo is None else len(encode(undo)))
    )


def too_many(head: Head, size: int, *, new: bool, undo: bool = False) -> InvalidInput | None:
    """The error if a job may not have another step, or one of this size."""
    if undo and head.undos >= MAX_UNDOS:
        return InvalidInput("undo", f"the job has {MAX_UNDOS:,} undos, which is the most it may")
    if new and head.steps >= MAX_STEPS:
        return InvalidInput("steps", f"the job has {MAX_STEPS:,} steps, which is the most it may")
    if head.bytes + size > MAX_BYTES:
        reason = f"the steps of the job are larger than {MAX_BYTES:,} bytes together"
        return PayloadTooLarge("steps", reason)
    return None


def too_many_signals(head: Head) -> bool:
    return head.signals >= MAX_SIGNALS


def chained(undos: Mapping[int, JobSpec]) -> tuple[JobSpec, ...]:
    """The jobs that undo steps: the last first, each after the one before, however it ends."""
    chain: list[JobSpec] = []
    for spec in reversed(list(undos.values())):
        after = (chain[-1].id,) if chain else ()
        chain.append(replace(spec, after=after, if_parent_fails="run", made_up_id=False))
    return tuple(chain)


def by_key(steps: Iterable[Step]) -> Mapping[tuple[str, str], Step]:
    return {(step.name, step.key): step for step in steps}


# Copies -------------------------------------------------------------------------------------------


def with_steps(read: Callable[[Query], Any], entries: Iterable[Entry]) -> Iterator[Entry]:
    """Jobs with the records of their steps, to be added to another store."""
    for entry in entries:
        if entry.job.has_steps:
            found = every(lambda query: _listed(read(query)), "step", *keys_of(entry.job.id))
            entry = replace(entry, beside={one.key: one.value.decode() for one in found})
        yield entry


def _listed(found: Any) -> list[Record]:
    if isinstance(found, TenureError):
        raise found
    records: list[Record] = found
    return records
