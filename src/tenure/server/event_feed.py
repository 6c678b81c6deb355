"""The feed of events: what the operations committed by this service did to jobs.

The last events are kept in a ring. A reader has a position in it and no buffer of its own. One that
falls behind by more than the ring holds is dropped, and may reconnect. A reader that reconnects
with the id of the last event it saw continues there, if the ring still holds what follows.
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
from tenure.features.steps.data import Suspend
from tenure.model import ops
from tenure.model.job import Job, JobSpec, State
from tenure.model.ops import Answer, Op
from tenure.queue import Queue

RING = 10_000  # events kept
MOST_READERS = 1_000
WAKE_SECONDS = 0.0005  # pause after waking readers, for each of them
WOKEN_AT_ONCE = 8
AT_ONCE = 100  # entries that a reader sends in one message
MOST_UNREAD = 100_000  # operations in the inbox; when there are more, readers get a reset
MOST_KNOWN = 100_000  # leased jobs whose queue, tenant etc. are remembered
LINGER_SECONDS = 300.0  # how long the ring is filled without readers, as they may reconnect
CHANGED_SECONDS = 1.0  # between two `changed` events

_OF_A_LEASE = ops.Ack | ops.Fail | ops.Release | ops.Progress | Suspend

What = Literal[
    "enqueued", "claimed", "progress", "done", "failed", "released", "cancelled", "replayed",
    "updated",
]  # fmt: skip


# What an operation on jobs does, and the states that they may be in then.
_REACHED: dict[type[Op], tuple[What, tuple[State, ...]]] = {
    ops.Cancel: ("cancelled", (State.CANCELLED,)),
    ops.Replay: ("replayed", (State.PENDING,)),
    ops.Update: ("updated", (State.PENDING, State.WAITING)),
}


class JobEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a job, and its state afterwards."""

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
    """An entry of the ring. Without an event it is a hint that something in the store changed."""

    number: int
    event: JobEvent | None
    text: bytes


class Place(NamedTuple):
    """The position of a reader: the number of the last entry it has seen."""

    epoch: str
    number: int


class Whose(msgspec.Struct, frozen=True, gc=False):
    """The fields of a leased job that later events about it repeat."""

    queue: str
    tenant: str
    group: str
    kind: str
    attempts: int


class Feed:
    """Turns committed operations into numbered events. Not thread-safe, except where noted.
    Collects nothing while there are no readers."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._readers: dict[str, dict[asyncio.Event, None]] = {}  # by token, the oldest first
        self._asleep: list[asyncio.Event] = []  # of readers to wake for the last news
        self._has_news = False  # since readers were last put there
        self._wake_at = 0.0  # when the next readers may be woken
        self._waking: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._events: set[asyncio.Event] = set()  # of all readers

    def join(self, who: str, *, shared: bool) -> asyncio.Event:
        """Add a reader with a token, and return an event that wakes it; raises Busy if there are
        too many. shared: whether there is more than one token. Then each has at most half of the
        readers, and the one with the most gives one to a token that has fewer."""
        own = len(self._readers.get(who, ()))
        most = MOST_READERS // 2 if shared else MOST_READERS
        if own < most and len(self._events) >= MOST_READERS:
            greediest = max(self._readers, key=lambda one: len(self._readers[one]))
            if own + 1 < len(self._readers[greediest]):
                oldest = next(iter(self._readers[greediest]))
                self.leave(greediest, oldest)
                oldest.set()
        if own >= most or len(self._events) >= MOST_READERS:
            raise Busy(
                f"there are already {len(self._events):,} readers of events, "
                f"{own:,} of them with this token; try again later"
            )
        if self._task is None or self._task.done():
            self._start()
        event = asyncio.Event()
        self._events.add(event)
        self._readers.setdefault(who, {})[event] = None
        return event

    def is_reader(self, event: asyncio.Event) -> bool:
        """Whether a reader has not been removed."""
        return event in self._events

    def leave(self, who: str, event: asyncio.Event) -> None:
        """Remove a reader, if it has not been removed."""
        if event not in self._events:
            return
        self._events.discard(event)
        del self._readers[who][event]
        if not self._readers[who]:
            del self._readers[who]
        self._left_at = self._loop.time()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.epoch: str = secrets.token_hex(4)  # the ids of another feed are not valid here
        self._ring: deque[Entry] = deque(maxlen=RING)
        self._last = 0
        self._known: OrderedDict[str, Whose] = OrderedDict()
        self._inbox: deque[tuple[Sequence[Op], Sequence[Answer]]] = deque()
        self._unread = 0
        self._missed = False  # the inbox was full
        self._changed = False
        self._more = asyncio.Event()  # wakes the task
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
            while self._events or self._loop.time() < self._left_at + LINGER_SECONDS:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHANGED_SECONDS):
                        await self._more.wait()
                self._more.clear()
                while self._inbox:
                    batch, answers = self._inbox.popleft()
                    self._unread -= len(batch)
                    for event in await self._events_of(batch, answers):
                        self._add(event)
                    self._wake_soon()
                if self._missed:
                    self._missed = False
                    self._start_over()
                if self._changed and self._loop.time() >= hinted_at + CHANGED_SECONDS:
                    hinted_at = self._loop.time()
                    self._changed = False
                    self._add(None)
                    self._wake_soon()
        finally:
            self.close()

    def _start_over(self) -> None:
        """Invalidate all positions, because events were lost. Readers get a reset."""
        self.epoch = secrets.token_hex(4)
        self._ring.clear()
        self.wake()

    def _wake_soon(self) -> None:
        """Wake all readers, a few at a time: each takes time from other requests."""
        self._has_news = True
        if self._waking is None:
            self._waking = self._loop.call_at(self._wake_at, self._wake_some)

    def _wake_some(self) -> None:
        if not self._asleep:
            self._asleep, self._has_news = list(self._events), False
        some = [self._asleep.pop() for _ in range(min(WOKEN_AT_ONCE, len(self._asleep)))]
        for event in some:
            event.set()
        self._waking = None
        self._wake_at = self._loop.time() + len(some) * WAKE_SECONDS
        if self._asleep or self._has_news:
            self._waking = self._loop.call_at(self._wake_at, self._wake_some)

    def wake(self) -> None:
        """Wake all readers."""
        for event in self._events:
            event.set()

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
            if isinstance(op, ops.Cancel | ops.Replay | ops.Update):
                found += await self._of_many(op, answer)
            elif isinstance(op, _OF_A_LEASE):
                event = await self._of_lease(op, answer)
                if event is not None:
                    found.append(event)
                found += map(self._follow_up, op.added(answer))
            elif isinstance(op, ops.ReplayEdited):
                job = await self._get(op.new_id)
                if job is not None:
                    found.append(_event("enqueued", job.id, job.state, job.created_at, _whose(job)))
            else:
                found += self._new_or_claimed(op, answer)
        return found

    def _new_or_claimed(self, op: Op, answer: Answer) -> Iterator[JobEvent]:
        if isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
            for spec, id, created in zip(op.jobs, answer.ids, answer.created, strict=True):
                if created:  # under this id: a call that is repeated with a key makes up others
                    yield _added(spec, id, answer.at)
        elif isinstance(answer, ops.Leased):
            for job in answer.jobs:
                self._known[job.id] = _whose(job)
                if len(self._known) > MOST_KNOWN:
                    self._known.popitem(last=False)
                yield _event("claimed", job.id, job.state, job.updated_at, _whose(job))

    def _follow_up(self, spec: JobSpec) -> JobEvent:
        return _added(spec, spec.id, self._queue.clock.now_ms())

    async def _of_lease(self, op: Op, answer: Answer) -> JobEvent | None:
        assert isinstance(op, _OF_A_LEASE)
        if isinstance(op, ops.Ack) and isinstance(answer, ops.Moved):
            return None  # it was done before
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

    async def _of_many(
        self, op: ops.Cancel | ops.Replay | ops.Update, answer: Answer
    ) -> list[JobEvent]:
        """The result only counts the changed jobs. If not all were changed, use their states."""
        what, reached = _REACHED[type(op)]
        if not isinstance(answer, ops.Changed) or not answer.count:
            return []
        # Ids that the caller must not see are missing, too.
        ids = [id for id in dict.fromkeys(op.ids) if id not in frozenset(answer.missing)]
        all_of_them = answer.count == len(ids)
        found = []
        for id in ids:
            job = await self._get(id)
            if job is not None and (all_of_them or job.state in reached):
                state = reached[0] if len(reached) == 1 else job.state
                found.append(_event(what, id, state, job.updated_at, _whose(job)))
        return found

    async def _get(self, id: str) -> Job | None:
        try:
            return await self._queue.aget(id)
        except JobNotFound:
            return None
        except TenureError:  # the store is away, so this event is lost
            self._missed = True
            return None

    @property
    def end(self) -> Place:
        """The position of a new reader."""
        return Place(self.epoch, self._last)

    def place(self, last_id: str) -> Place | None:
        """The position after the event with this id; None if the ring no longer holds it."""
        epoch, _, number = last_id.partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            return None
        place = Place(epoch, int(number))
        return None if self.after(place) is None else place

    def after(self, place: Place) -> list[Entry] | None:
        """The next entries after a position; None if the ring no longer holds them all."""
        first = self._ring[0].number if self._ring else self._last + 1
        if place.epoch != self.epoch or not first - 1 <= place.number <= self._last:
            return None
        start = place.number + 1 - first
        return list(islice(self._ring, start, start + AT_ONCE))

    def close(self) -> None:
        """Stop collecting events."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            for stop in self._stops:
                stop()


def _added(spec: JobSpec, id: str, at: int) -> JobEvent:
    state = State.WAITING if spec.after else State.PENDING
    return JobEvent("enqueued", id, spec.queue, state, at, spec.tenant, spec.group, spec.kind)


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
