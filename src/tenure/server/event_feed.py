"""The feed of state changes: what this service commits, told to those who read along.

The last events are kept in a ring. A reader has a place in it and no buffer of its own: one who is
slower than the ring goes round is dropped, and may come again. A reader who comes back with the id
of the last event it saw goes on there, as long as the ring reaches back to it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from tenure.errors import Busy, JobNotFound, TenureError
from tenure.model import ops
from tenure.model.job import Job, State
from tenure.model.ops import Answer, Op
from tenure.queue import Queue

RING = 10_000  # events that are kept
MOST_READERS = 1_000
MOST_UNREAD = 100_000  # operations that may wait to be told; more are passed over, and said so
MOST_KNOWN = 100_000  # leased jobs of which it is remembered whose they are
LINGER_SECONDS = 300.0  # that the ring is filled for readers who may come back
CHANGED_SECONDS = 1.0  # between two hints that something changed

What = Literal[
    "enqueued", "claimed", "progress", "done", "failed", "released", "cancelled", "replayed"
]


class JobEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a job, and the state that it is in since."""

    what: What
    id: str
    queue: str
    state: State
    at: int
    tenant: str = ""
    group: str = ""
    kind: str = ""
    attempts: int = 0
    percent: int | None = None


class Entry(msgspec.Struct, frozen=True):
    """A place in the ring. No event: a hint that something changed, by whomever."""

    number: int
    event: JobEvent | None
    text: bytes


class Place(NamedTuple):
    """How far a reader is."""

    epoch: str
    number: int


class Whose(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a job while it is leased."""

    queue: str
    tenant: str
    group: str
    kind: str
    attempts: int


class Feed:
    """Numbers what happens. For the tasks of one loop; nothing is done while nobody reads."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()  # for the readers; another one each time

    def join(self) -> None:
        """Somebody begins to read; raises Busy."""
        if self._readers >= MOST_READERS:
            raise Busy(f"{MOST_READERS:,} read along already; try again later")
        self._readers += 1
        if self._task is None or self._task.done():
            self._start()

    def leave(self) -> None:
        self._readers -= 1
        self._left_at = self._loop.time()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.epoch = secrets.token_hex(4)  # numbers of another feed are not of this one
        self._ring: deque[Entry] = deque(maxlen=RING)
        self._last = 0
        self._known: OrderedDict[str, Whose] = OrderedDict()
        self._inbox: deque[tuple[Sequence[Op], Sequence[Answer]]] = deque()
        self._unread = 0
        self._missed = False  # too much came at once
        self._changed = False
        self._more = asyncio.Event()  # for the task
        self._left_at = self._loop.time()
        self._stops: list[Callable[[], None]] = [
            self._queue.changes.watch(self._committed),
            self._queue.changes.listen(self._heard),
        ]
        self._task = self._loop.create_task(self._run())

    # In any thread

    def _committed(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._take, batch, answers)

    def _heard(self, queues: Collection[str] | None) -> None:
        if not self._changed:
            self._changed = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._more.set)

    # In the loop

    def _take(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        if self._unread >= MOST_UNREAD:
            self._missed = True
        else:
            self._inbox.append((batch, answers))
            self._unread += len(batch)
        self._more.set()

    async def _run(self) -> None:
        hinted_at = 0.0
        try:
            while self._readers or self._loop.time() < self._left_at + LINGER_SECONDS:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHANGED_SECONDS):
                        await self._more.wait()
                self._more.clear()
                while self._inbox:
                    batch, answers = self._inbox.popleft()
                    self._unread -= len(batch)
                    for event in await self._events_of(batch, answers):
                        self._add(event)
                    self.wake()
                if self._missed:
                    self._missed = False
                    self._start_over()
                if self._changed and self._loop.time() >= hinted_at + CHANGED_SECONDS:
                    hinted_at = self._loop.time()
                    self._changed = False
                    self._add(None)
                    self.wake()
        finally:
            self.close()

    def _start_over(self) -> None:
        """Some was passed over: no reader can go on where it was."""
        self.epoch = secrets.token_hex(4)
        self._ring.clear()
        self.wake()

    def wake(self) -> None:
        """Have the readers look."""
        self._news.set()
        self._news = asyncio.Event()

    def _add(self, event: JobEvent | None) -> None:
        self._last += 1
        kind, data = ("changed", b"{}") if event is None else ("job", _encode(event))
        head = f"id: {self.epoch}.{self._last}\nevent: {kind}\ndata: ".encode()
        self._ring.append(Entry(self._last, event, head + data + b"\n\n"))

    async def _events_of(self, batch: Sequence[Op], answers: Sequence[Answer]) -> list[JobEvent]:
        found: list[JobEvent] = []
        for op, answer in ops.answered(batch, answers):
            if isinstance(answer, TenureError):
                continue
            if isinstance(op, ops.Cancel | ops.Replay):
                found += await self._of_many(op, answer)
            elif isinstance(op, ops.Ack | ops.Fail | ops.Release | ops.Progress):
                event = await self._of_lease(op, answer)
                if event is not None:
                    found.append(event)
            else:
                found += self._new_or_claimed(op, answer)
        return found

    def _new_or_claimed(self, op: Op, answer: Answer) -> Iterator[JobEvent]:
        if isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
            for spec, created in zip(op.jobs, answer.created, strict=True):
                if created:
                    state = State.WAITING if spec.after else State.PENDING
                    yield JobEvent(
                        "enqueued", spec.id, spec.queue, state, answer.at,
                        spec.tenant, spec.group, spec.kind,
                    )  # fmt: skip
        elif isinstance(answer, ops.Leased):
            for job in answer.jobs:
                self._known[job.id] = _whose(job)
                if len(self._known) > MOST_KNOWN:
                    self._known.popitem(last=False)
                yield _event("claimed", job.id, job.state, job.updated_at, _whose(job))

    async def _of_lease(self, op: Op, answer: Answer) -> JobEvent | None:
        assert isinstance(op, ops.Ack | ops.Fail | ops.Release | ops.Progress)
        whose = self._known.get(op.id)
        if whose is None:
            job = await self._get(op.id)
            if job is None:
                return None
            whose = _whose(job)
        now = self._queue.clock.now_ms()
        if isinstance(op, ops.Progress):
            return _event("progress", op.id, State.LEASED, now, whose, op.percent)
        self._known.pop(op.id, None)
        if isinstance(op, ops.Ack):
            return _event("done", op.id, State.DONE, now, whose)
        what: What = "failed" if isinstance(op, ops.Fail) else "released"
        state = answer.state if isinstance(answer, ops.Moved) else State.PENDING
        return _event(what, op.id, state, now, whose)

    async def _of_many(self, op: ops.Cancel | ops.Replay, answer: Answer) -> list[JobEvent]:
        """The answer says to how many jobs it happened. If not to all, their states tell."""
        what: What = "cancelled" if isinstance(op, ops.Cancel) else "replayed"
        reached = State.CANCELLED if isinstance(op, ops.Cancel) else State.PENDING
        all_of_them = isinstance(answer, ops.Changed) and answer.count == len(op.ids)
        found = []
        for id in op.ids:
            job = await self._get(id)
            if job is not None and (all_of_them or job.state is reached):
                found.append(_event(what, id, reached, job.updated_at, _whose(job)))
        return found

    async def _get(self, id: str) -> Job | None:
        try:
            return await self._queue.aget(id)
        except JobNotFound:
            return None
        except TenureError:  # the store is away: then this cannot be told
            self._missed = True
            return None

    @property
    def end(self) -> Place:
        """Where a reader begins who saw nothing yet."""
        return Place(self.epoch, self._last)

    def place(self, last_id: str) -> Place | None:
        """Where a reader goes on who saw this id last; None if that is not kept."""
        epoch, _, number = last_id.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            return None
        place = Place(epoch, int(number))
        return None if self.after(place) is None else place

    def after(self, place: Place) -> list[Entry] | None:
        """What came after; None if that is not kept any more."""
        first = self._ring[0].number if self._ring else self._last + 1
        if place.epoch != self.epoch or not first - 1 <= place.number <= self._last:
            return None
        return list(islice(self._ring, place.number + 1 - first, None))

    async def wait(self, seconds: float) -> None:
        """For more, or for so long."""
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await news.wait()

    def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            for stop in self._stops:
                stop()


def _whose(job: Job) -> Whose:
    return Whose(job.queue, job.tenant, job.group, job.kind, job.attempts)


def _event(
    what: What, id: str, state: State, at: int, whose: Whose, percent: int | None = None
) -> JobEvent:
    return JobEvent(
        what, id, whose.queue, state, at, whose.tenant, whose.group, whose.kind, whose.attempts,
        percent,
    )  # fmt: skip


_encode = msgspec.json.Encoder().encode
