"""Limits the memory that the responses to one token take.

A claim leases only as many jobs as fit into a response. How large jobs are is not known before they
are claimed, so the largest payload that was seen in each queue is remembered; few jobs are claimed
at once from a queue whose payloads have not been seen. While a token has too many bytes of
responses that its clients have not read, its further requests wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from tenure.errors import Busy, TenureError
from tenure.model import ops
from tenure.model.fields import MAX_CLAIM
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.model.queries import PAGE_BYTES, GetJob, GetJobs, ListJobs, Query, bytes_of
from tenure.queue import Layer, Store, Wanted, Within
from tenure.server.exchange import Exchange
from tenure.server.pace import Pace

CLAIM_BYTES = 4 * 1_048_576  # of payloads in the response to one claim
UNKNOWN_CLAIM = 64  # jobs claimed at once from a queue whose payloads have not been seen
UNKNOWN_BYTES = 131_072  # assumed for each of them
UNKNOWN_JOB = 524_288  # bytes assumed for a job that is looked up by its id
SMALL = 1_048_576  # bytes; smaller responses are not counted
MOST_QUEUES = 10_000  # whose payloads are remembered
RATE_BYTES = 64 * 1_048_576  # per second, of requests and responses of one token
WORK_SHARE = 0.5  # of a core, for one token
BODY_BYTES = 128 * 1_048_576  # of large bodies of one token that are being received or handled
HELD_BYTES = 32 * 1_048_576  # of responses to one token: being made, or not read yet
ROOM_SECONDS = 30.0  # that a request waits for clients to read, before it is rejected
LOOK_SECONDS = 0.01
FORGET_SECONDS = 1.0  # between looks whether responses were read


class PayloadSizes:
    """The largest payload that was seen in each queue."""

    def __init__(self) -> None:
        self._largest: OrderedDict[str, int] = OrderedDict()

    def note(self, queue: str, size: int) -> None:
        if size > self._largest.get(queue, -1):
            self._largest[queue] = size
            if len(self._largest) > MOST_QUEUES:
                self._largest.popitem(last=False)

    def note_jobs(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        largest, size = self._largest, max([len(job.raw_payload) for job in jobs])
        for queue in set(map(_queue_of, jobs)):
            if size > largest.get(queue, -1):
                self._note_each(jobs)
                return

    def _note_each(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.note(job.queue, len(job.raw_payload))

    def may_grow(self, batch: Sequence[Op]) -> bool:
        """Whether `note_added` may have something to note about these operations."""
        largest = self._largest
        if ops.Enqueue not in map(type, batch):
            return False
        for op in batch:
            if type(op) is ops.Enqueue:
                for spec in op.jobs:
                    if len(spec.payload) > largest.get(spec.queue, -1):
                        return True
        return False

    def note_added(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        """Note the jobs that operations have added. Not before: a request that is rejected must
        not make the claims of others smaller."""
        for op, answer in ops.answered(batch, answers):
            if isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
                for spec in op.jobs:
                    if len(spec.payload) > self._largest.get(spec.queue, -1):
                        self.note(spec.queue, len(spec.payload))

    def are_small(self, op: ops.Claim) -> bool:
        """Whether all jobs that a claim can find are known to fit into a small response."""
        largest = self._largest
        return all(largest.get(one, UNKNOWN_BYTES) * op.limit < SMALL for one in op.queues)

    def of_result(self, query: Query) -> int:
        """The size to expect of the result of a query."""
        if isinstance(query, GetJob):
            return UNKNOWN_JOB
        if isinstance(query, GetJobs):
            return PAGE_BYTES
        if not isinstance(query, ListJobs):
            return 0
        largest = self._largest.get(query.filter.queue or "")
        return PAGE_BYTES if largest is None else min(PAGE_BYTES, query.limit * largest)

    def expected(self, queues: Iterable[str]) -> int:
        """The size to expect of a job of these queues."""
        return max(self._largest.get(queue, UNKNOWN_BYTES) for queue in queues)

    def fitting(self, queues: Iterable[str], size: int) -> int:
        """How many jobs of these queues fit into this many bytes; at least one."""
        known = [self._largest.get(queue) for queue in queues]
        largest = max((one for one in known if one is not None), default=0)
        most = MAX_CLAIM if None not in known else UNKNOWN_CLAIM
        return max(1, min(most, size // max(1, largest)))


class Traffic:
    """The bytes of one token: how many a second, in requests and responses, and how many in
    responses that are being made, or that its clients have not read yet."""

    def __init__(self, most: int | None = None) -> None:
        """most: bytes to hold, if not HELD_BYTES."""
        self._most = most
        self.pace: Pace = Pace(RATE_BYTES, RATE_BYTES / 2)
        # The CPU time of work in threads, in seconds. It takes turns with all other requests.
        self.work: Pace = Pace(WORK_SHARE, WORK_SHARE)
        self._reserved = 0
        self._sent: list[Exchange] = []
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, response: Exchange) -> None:
        """Note a response that was not read at once."""
        self._sent.append(response)
        if len(self._sent) == 1:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget_read)

    def _forget_read(self) -> None:
        """Forget responses that were read, and those of connections that were closed."""
        self._sent = [one for one in self._sent if one.unread() > 0]
        if self._sent:
            asyncio.get_running_loop().call_later(FORGET_SECONDS, self._forget_read)

    def _is_full(self, size: int) -> bool:
        held = self._reserved + sum(one.unread() for one in self._sent)
        return held > 0 and held + size > (self._most or HELD_BYTES)

    async def reserve(self, size: int) -> None:
        """Wait for room for this many bytes; raises Busy. The caller releases it when they are
        sent."""
        if self.pace.is_ahead:
            await self.pace.ready()
        if not size or (not self._waiting and not self._is_full(size)):
            self._reserved += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size, turn)
        self._waiting.append(waiting)
        self._look_later()
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await turn
        except BaseException as error:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif turn.done() and not turn.cancelled():
                self.release(size)  # it was granted at the same time
            if isinstance(error, TimeoutError):
                raise Busy(
                    "clients with this token do not read their responses, or send too "
                    "large bodies at once"
                ) from None
            raise

    def _look_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Wake requests that wait for room, in order. Runs on a timer: nothing reports a read."""
        self._timer = None
        while self._waiting and not self._is_full(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._reserved += size
                turn.set_result(None)
        if self._waiting:
            self._look_later()

    def release(self, size: int) -> None:
        self._reserved -= size


class Bounded(Layer):
    """A store for a token, limited to responses that fit into memory."""

    def __init__(self, inner: Store, sizes: PayloadSizes, traffic: Traffic) -> None:
        super().__init__(inner)
        self._sizes = sizes
        self._traffic = traffic

    def ado(self, wanted: Wanted) -> Awaitable[Any]:
        if isinstance(wanted, Query):
            return self._read(wanted)
        if isinstance(wanted, Within):
            return self._inner.ado(wanted)
        if len(wanted) == 1 and type(wanted[0]) is ops.Claim:
            return self._claimed(wanted[0])
        if not _CLAIMS.isdisjoint(map(type, wanted)):
            return self._apply(self._capped(wanted))
        if self._sizes.may_grow(wanted):
            return self._enqueued(wanted)
        return self._inner.ado(wanted)

    async def _claimed(self, op: ops.Claim) -> list[Answer]:
        if not self._sizes.are_small(op):
            return [await self._claim_in_steps(op)]
        answers: list[Answer] = await self._inner.ado([op])
        if isinstance(answers[0], ops.Leased):
            self._sizes.note_jobs(answers[0].jobs)
        return answers

    async def _enqueued(self, batch: Sequence[Op]) -> list[Answer]:
        answers: list[Answer] = await self._inner.ado(batch)
        self._sizes.note_added(batch, answers)
        return answers

    async def _read(self, query: Query) -> Any:
        size = self._sizes.of_result(query)
        await self._traffic.reserve(size)
        try:
            return await self._inner.ado(query)
        finally:
            self._traffic.release(size)

    async def _claim_in_steps(self, op: ops.Claim) -> Answer:
        """Claim in steps, until the jobs are enough or large enough."""
        jobs: list[Job] = []
        size = 0
        while True:
            wanted = op.limit - len(jobs)
            wanted = min(wanted, self._sizes.fitting(op.queues, CLAIM_BYTES - size))
            try:
                (answer,) = await self._apply([replace(op, limit=wanted)])
            except asyncio.CancelledError:
                self._release(jobs)
                raise
            except TenureError:
                if not jobs:
                    raise
                return ops.Leased(jobs)
            if not isinstance(answer, ops.Leased):
                return ops.Leased(jobs) if jobs else answer
            jobs += answer.jobs
            size += sum(map(bytes_of, answer.jobs))
            if len(answer.jobs) < wanted or len(jobs) == op.limit or size >= CLAIM_BYTES:
                return ops.Leased(jobs)

    def _release(self, jobs: Sequence[Job]) -> None:
        """Release jobs that nobody will get. If that fails, their leases expire."""
        if jobs:
            release = self._inner.ado([ops.Release(job.id, job.token) for job in jobs])
            task = asyncio.ensure_future(release)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _capped(self, batch: Sequence[Op]) -> list[Op]:
        """The operations, with claims for no more jobs than fit into one response."""
        left = CLAIM_BYTES

        def capped(op: Op) -> Op:
            nonlocal left
            if isinstance(op, ops.Once):
                return replace(op, ops=tuple(map(capped, op.ops)))
            if not isinstance(op, ops.Claim):
                return op
            limit = min(op.limit, self._sizes.fitting(op.queues, left))
            left = max(0, left - limit * self._sizes.expected(op.queues))
            return op if limit == op.limit else replace(op, limit=limit)

        return list(map(capped, batch))

    async def _apply(self, batch: Sequence[Op]) -> list[Answer]:
        claims = [op for op in ops.flat(batch) if isinstance(op, ops.Claim)]
        size = sum(op.limit * self._sizes.expected(op.queues) for op in claims)
        await self._traffic.reserve(size)
        try:
            answers: list[Answer] = await self._inner.ado(batch)
        finally:
            self._traffic.release(size)
        self._sizes.note_added(batch, answers)
        for _, answer in ops.answered(batch, answers):
            if isinstance(answer, ops.Leased):
                self._sizes.note_jobs(answer.jobs)
        return answers


_queue_of = attrgetter("queue")
_CLAIMS = frozenset({ops.Claim, ops.Once})  # may claim jobs
