"""Crashing a task at each of its checkpoints, and comparing how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.features.steps.data import Checkpoint, Suspend
from tenure.model import ops
from tenure.model.job import Job, NewJob, new_ids
from tenure.model.ops import Op
from tenure.queue import Queue, store_of
from tenure.queue.arguments import fail_op
from tenure.queue.calls import Calls
from tenure.queue.open_store import Layer, Store, Wanted

_ENDS = {ops.Ack: "its end", ops.Fail: "its failure", ops.Release: "its release"}


class Crashed(BaseException):
    """The worker has died: nothing that the handler does from here on counts."""


class CrashReport(msgspec.Struct, frozen=True):
    """What `crash_everywhere` has found. crashes: how often the worker died, once in each run.
    differences: what was different in which run, from a run without a crash."""

    crashes: int
    differences: list[str]

    @property
    def same(self) -> bool:
        """Whether the job came to the same end in each run."""
        return not self.differences


class Point(msgspec.Struct, frozen=True):
    """Where a worker dies: before or after the n-th operation of a job, and what it does."""

    number: int
    before: bool
    what: str


class Doom:
    """What becomes of the worker of one job."""

    def __init__(self, job_id: str, point: Point | None) -> None:
        self.job_id = job_id
        self.reached: list[str] = []  # what the operations of the job did
        self.died: bool = False
        self._point = point
        self._is_dead = False

    def passes(self, what: str) -> int:
        """Note an operation that is about to be done. Returns its number."""
        self.check()
        self.reached.append(what)
        number = len(self.reached) - 1
        self.dies(number, before=True)
        return number

    def dies(self, number: int, *, before: bool) -> None:
        """Die here, if this is the place."""
        point = self._point
        if point is not None and (point.number, point.before) == (number, before):
            self.died = self._is_dead = True
        self.check()

    def check(self) -> None:
        if self._is_dead:
            raise Crashed

    def outcome(self, job: Job, op: Op | None) -> Op | None:
        """What a store gets of a run that has ended: a lost lease, if the worker has died."""
        try:
            if op is not None:
                at = f"its suspension at {op.name!r}" if isinstance(op, Suspend) else ""
                self.passes(at or _ENDS.get(type(op), type(op).__name__))
        except Crashed:
            self._is_dead = False  # another worker takes over
            return fail_op(job, "the worker died", retry_in=0)
        return op

    def queue(self, queue: Queue) -> Any:
        """The queue, as the handler of the job has it."""
        return Calls(_Doomed(store_of(queue), self))


class _Doomed(Layer):
    """A store whose caller dies before or after an operation."""

    def __init__(self, inner: Store, doom: Doom) -> None:
        super().__init__(inner)
        self._doom = doom

    def do(self, wanted: Wanted) -> Any:
        number = self._before(wanted)
        answer = self._inner.do(wanted)
        self._after(number)
        return answer

    async def ado(self, wanted: Wanted) -> Any:
        number = self._before(wanted)
        answering: Awaitable[Any] = self._inner.ado(wanted)
        answer = await answering
        self._after(number)
        return answer

    def _before(self, wanted: Wanted) -> int | None:
        self._doom.check()
        if not isinstance(wanted, list) or not isinstance(wanted[0], Checkpoint):
            return None
        op = wanted[0]
        with_key = f" with the key {op.key!r}" if op.key else ""
        return self._doom.passes(f"the step {op.name!r}{with_key}")

    def _after(self, number: int | None) -> None:
        if number is not None:
            self._doom.dies(number, before=False)


def points_of(reached: Sequence[str]) -> list[Point]:
    """The places where a worker can die that make a difference."""
    points = [Point(n, before, what) for n, what in enumerate(reached) for before in (True, False)]
    return [one for one in points if one.before or one.what.startswith("the step")]


def to_crash(job: NewJob, now_ms: int) -> NewJob:
    """The job with one more attempt, as a crash costs one, and with the same id in each run."""
    (id,) = new_ids(now_ms, 1)
    return replace(job, id=job.id or id, max_attempts=job.max_attempts + 1)


def end_of(queue: Queue, job_id: str, jobs: Sequence[Job]) -> dict[str, Any]:
    """How a job and all others have ended, without what differs between two runs anyway."""
    found: dict[str, Any] = {}
    for step in queue.steps(job_id).steps:
        result = bytes(step.result).decode() if step.kind in ("step", "wait") else ""
        found[f"the step {step.name!r} {step.key}".rstrip()] = (step.kind, result)
    for job in jobs:
        if job.id == job_id:
            found["the job"] = (job.state.value, bytes(job.raw_result).decode())
    others = sorted(
        (one.kind or one.queue, bytes(one.raw_payload).decode(), one.state.value)
        for one in jobs
        if one.id != job_id
    )
    return {**found, "the other jobs": others}


def differences(point: Point, usual: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What a crash has changed, as text."""
    where = f"after a crash {'before' if point.before else 'after'} {point.what}"
    return [
        f"{where}: {what}: {found.get(what, 'nothing')} instead of {usual.get(what, 'nothing')}"
        for what in dict.fromkeys([*usual, *found])
        if found.get(what) != usual.get(what)
    ]
