"""What carries out the calls of a queue: operations and queries, as the other parts of Tenure use
them. `store_of(queue)` returns it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from tenure.clock import Clock
from tenure.engines import ClaimsAtOnce, Engine, HasLog, HasShards, PartOf, parts_of
from tenure.errors import Closed
from tenure.features.rates.counter import RateCounter
from tenure.model import ops
from tenure.model.job import Job, JobSpec, NewJob, prepare
from tenure.model.ops import Answer, Note, Op, good
from tenure.model.queries import Query
from tenure.observe.tracing import current_trace
from tenure.queue.committer import Committer, Standing
from tenure.queue.wakeups import Changes
from tenure.settings import Settings

S_co = TypeVar("S_co", bound="Store", covariant=True)


class Within(NamedTuple):
    """Operations to run in the caller's own transaction."""

    connection: Any
    batch: Sequence[Op]


Wanted = Sequence[Op] | Query | Within


class Store:
    """Carries out the steps of calls."""

    def __init__(self, settings: Settings, clock: Clock, changes: Changes) -> None:
        self.settings = settings
        self.clock = clock
        self.changes = changes

    def do(self, wanted: Wanted) -> Any:
        """Carry out a step and return its answer, blocking."""
        raise NotImplementedError

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        """Carry out a step; await its answer."""
        raise NotImplementedError

    def prepare(self, jobs: Sequence[NewJob], trace: str | None = None) -> list[JobSpec]:
        """Validate jobs and return them as operations carry them. Jobs without a trace get this
        one, or the caller's. Raises InvalidInput."""
        specs = prepare(jobs, self.clock.now_ms(), self.settings.payload_limit)
        trace = trace or current_trace()
        if trace is not None:
            specs = [spec if spec.trace else replace(spec, trace=trace) for spec in specs]
        return specs

    def give_back(self, answer: Any) -> None:
        """Release the jobs in the answer of a step: its caller does not get them. For those that
        block; an awaited call that is cancelled does it by itself."""

    def log_bytes(self) -> int | None:
        """The size of the store's write-ahead log, if it has one."""
        return None

    def away(self) -> tuple[str, ...]:
        """The shards that are away."""
        return ()


class Layer(Store):
    """Changes or limits what is asked of another store."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner.settings, inner.clock, inner.changes)
        self._inner = inner

    def do(self, wanted: Wanted) -> Any:
        return self._inner.do(wanted)

    def away(self) -> tuple[str, ...]:
        return self._inner.away()


class Audited(Layer):
    """Adds a note to the operations of each call."""

    def __init__(self, inner: Store, note: Note) -> None:
        super().__init__(inner)
        self._note = note

    def do(self, wanted: Wanted) -> Any:
        return self._inner.do(with_note(wanted, self._note))

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        return self._inner.ado(with_note(wanted, self._note))

    def give_back(self, answer: Any) -> None:
        self._inner.give_back(answer)

    def log_bytes(self) -> int | None:
        return self._inner.log_bytes()


class OpenStore(Store):
    """A store that this process has opened."""

    def __init__(
        self, engine: Engine, settings: Settings, clock: Clock, rates: RateCounter | None
    ) -> None:
        # Notifies when jobs may be ready or finished.
        super().__init__(settings, clock, Changes(engine))
        self.engine = engine
        self.note: Note | None = None  # to add to all operations
        self.closed = False
        self.committer = Committer(
            engine, settings.max_waiting, settings.max_waiting_bytes, self.changes.committed, rates
        )

    def close(self) -> None:
        """Commit what was submitted and close the engine."""
        if not self.closed:
            self.closed = True
            self.committer.close()
            self.engine.close()

    def do(self, wanted: Wanted) -> Any:
        self._check_open()
        if self.note is not None:
            wanted = with_note(wanted, self.note)
        if isinstance(wanted, Query):
            return self.engine.read(wanted)
        if isinstance(wanted, Within):
            return self.engine.apply_within(*wanted)
        return self.committer.run(wanted)

    async def ado(self, wanted: Wanted) -> Any:
        self._check_open()
        if self.note is not None:
            wanted = with_note(wanted, self.note)
        if type(wanted) is list and wanted:
            return await self.committer.submitted(wanted)
        if isinstance(wanted, Query):
            return await asyncio.to_thread(self.engine.read, wanted)
        if isinstance(wanted, Within):
            return self.engine.apply_within(*wanted)  # in the thread of the caller's connection
        return await self.committer.arun(wanted)

    async def ado_beside(self, batch: Sequence[Op]) -> list[Answer]:
        """Like `ado`, but claims do not wait for other claims of this handle. For workers."""
        self._check_open()
        if self.note is not None:
            batch = _noted(batch, self.note)
        return await self.committer.arun(batch, beside=True)

    def do_aside(self, batch: Sequence[Op]) -> list[Answer]:
        """Like `do`, but other calls of this handle do not wait for this one, and it does not wait
        for them. For workers, and not for claims."""
        self._check_open()
        if self.note is not None:
            batch = _noted(batch, self.note)
        return self.committer.run_aside(batch)

    @property
    def claims_at_once(self) -> bool:
        """Whether a worker may gain from several claims of one queue at the same time."""
        return isinstance(self.engine, ClaimsAtOnce) and self.engine.claims_at_once

    @property
    def part_of(self) -> PartOf | None:
        """Tells a worker which part of the store operations concern, if it has parts."""
        return parts_of(self.engine)

    @property
    def is_service(self) -> bool:
        """Whether this is a service, which may have a store with parts."""
        return self.settings.url.startswith(("http://", "https://"))

    def stand(self, claim: ops.Claim) -> Standing:
        """Leave a claim that runs together with the next enqueue to its queues in this process.
        End it with `withdraw`. For workers, in an event loop."""
        self._check_open()
        return self.committer.stand(claim, self.clock.monotonic)

    async def withdraw(self, standing: Standing) -> list[Job]:
        """End a standing claim, and return the jobs it has just found, if any."""
        answers = await self.committer.withdraw(standing)
        return [job for answer in answers for job in good(answer, ops.Leased).jobs]

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("this queue handle was closed")

    def give_back(self, answer: Any) -> None:
        if isinstance(answer, list):
            self.committer.give_back(answer)

    def log_bytes(self) -> int | None:
        return self.engine.log_bytes() if isinstance(self.engine, HasLog) else None

    def away(self) -> tuple[str, ...]:
        return tuple(self.engine.away()) if isinstance(self.engine, HasShards) else ()


class HasStore(Protocol[S_co]):
    """Calls: those of a Queue, or some of them."""

    @property
    def _store(self) -> S_co: ...


def store_of(calls: HasStore[S_co]) -> S_co:
    """What carries out these calls."""
    return calls._store


def with_note(wanted: Wanted, note: Note) -> Wanted:
    """The same step, with a note on its operations that can have one."""
    if isinstance(wanted, Query):
        return wanted
    if isinstance(wanted, Within):
        return Within(wanted.connection, _noted(wanted.batch, note))
    return _noted(wanted, note)


def _noted(batch: Sequence[Op], note: Note) -> list[Op]:
    return [_noted_op(op, note) for op in batch]


def _noted_op(op: Op, note: Note) -> Op:
    if isinstance(op, ops.Once):
        return replace(op, ops=tuple(_noted(op.ops, note)))
    if isinstance(op, ops.NotedOp | ops.NotedGrantedOp) and op.note is None:
        return replace(op, note=note)
    return op
