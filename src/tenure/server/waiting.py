"""Long polling: requests that wait for a job to become ready or to finish, without a thread."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from typing import Any

from tenure.model import ops
from tenure.model.job import FINAL, Job
from tenure.queue import Calls, store_of
from tenure.queue.wakeups import Changes
from tenure.server.exchange import Receive
from tenure.server.route import Call

LOOK_SECONDS = 1.0  # between checks if nothing reports a change
SPACING_SECONDS = 0.003  # between checks on behalf of one token, if it has many lines
MORE_AFTER_FIND = 2  # waiters that check when one before them has found something


class Waiter:
    """A request that waits in a line."""

    __slots__ = ("_event", "looks")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.looks: bool = False  # whether to check now; otherwise one before it does

    def wake(self) -> None:
        self._event.set()

    def look(self) -> None:
        """Wake it for a check."""
        self.looks = True
        self._event.set()

    def forget(self) -> None:
        """Forget that it was woken."""
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until it is woken, for at most this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class Line:
    """Requests that wait for the same thing. Only the first checks, so that a change costs the same
    however many wait; if it finds something, it wakes the next ones. queues: those whose new jobs
    may end the wait; None for any change."""

    def __init__(self, queues: Iterable[str] | None) -> None:
        self.queues: frozenset[str] | None = None if queues is None else frozenset(queues)
        self._waiters: dict[Waiter, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def concerns(self, queues: Collection[str] | None) -> bool:
        """Whether new jobs in these queues, or any other change if None, may end the wait."""
        return queues is None or self.queues is None or not self.queues.isdisjoint(queues)

    def join(self) -> Waiter:
        waiter = Waiter()
        waiter.looks = not self._waiters
        self._waiters[waiter] = None
        return waiter

    def leave(self, waiter: Waiter, *, found: bool) -> None:
        del self._waiters[waiter]
        for one in islice(self._waiters, MORE_AFTER_FIND if found else 1):
            one.look()

    def rest(self, waiter: Waiter) -> None:
        """Note that a waiter found nothing."""
        waiter.looks = next(iter(self._waiters)) is waiter

    def wake_first(self) -> None:
        next(iter(self._waiters)).look()

    def wake_all(self) -> None:
        for one in self._waiters:
            one.wake()


class Room:
    """The lines of one token. A change wakes those that it may concern, but not more often than
    the token's share of the service allows."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, Line] = {}
        self._pending: set[str] | None = set()  # changed queues that were not reported yet
        self._timer: asyncio.TimerHandle | None = None
        self._again_at = 0.0

    @property
    def look_seconds(self) -> float:
        """How long a line waits between checks if nothing reports a change."""
        return max(LOOK_SECONDS, len(self._lines) * SPACING_SECONDS)

    @contextmanager
    def line(self, key: Hashable, queues: Iterable[str] | None) -> Iterator[Line]:
        """The line of the requests that wait for the same thing."""
        line = self._lines.setdefault(key, Line(queues))
        try:
            yield line
        finally:
            if not line:
                self._lines.pop(key, None)

    def changed(self, queues: Collection[str] | None) -> None:
        """Wake the lines that a change of these queues may concern, now or soon."""
        if not self._lines:
            return
        if queues is None or self._pending is None:
            self._pending = None
        else:
            self._pending.update(queues)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._again_at), self._wake)

    def _wake(self) -> None:
        pending, self._pending, self._timer = self._pending, set(), None
        concerned = [line for line in self._lines.values() if line and line.concerns(pending)]
        for line in concerned:
            line.wake_first()
        self._again_at = asyncio.get_running_loop().time() + len(concerned) * SPACING_SECONDS

    def wake_all(self) -> None:
        for line in self._lines.values():
            line.wake_all()


class Rooms:
    """The requests that wait for jobs or changes, by token. Subscribes to the store once for
    all."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._rooms: defaultdict[str, Room] = defaultdict(Room)
        self._stop: Callable[[], None] | None = None

    def of(self, who: str) -> Room:
        """The room of a token."""
        if self._stop is None:
            self._loop = asyncio.get_running_loop()
            self._stop = self._changes.listen(self._hear)
        return self._rooms[who]

    def _hear(self, queues: Collection[str] | None) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._changed, queues)

    def _changed(self, queues: Collection[str] | None) -> None:
        for room in self._rooms.values():
            room.changed(queues)

    def wake_all(self) -> None:
        """Wake everybody, because the service stops."""
        for room in self._rooms.values():
            room.wake_all()

    def close(self) -> None:
        if self._stop is not None:
            self._stop()
            self._stop = None


@asynccontextmanager
async def disconnection(receive: Receive, waiter: Waiter) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is done when the client disconnects. It wakes the waiter."""
    task = asyncio.create_task(until_gone(receive))
    task.add_done_callback(lambda _: waiter.wake())
    try:
        yield task
    finally:
        task.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def claim_or_wait(call: Call, queues: list[str], seconds: float, **options: Any) -> list[Job]:
    """Claim, and try again when something changes, until there is a job or the time is up. If the
    client disconnects meanwhile, its jobs are released."""
    if not seconds:
        return await call.queue.aclaim(queues, **options)
    groups = tuple(options.get("not_groups") or ())
    wanted = ("claim", tuple(sorted(queues)), options.get("tenant"), groups)
    room = call.service.rooms.of(call.token.hash)
    with room.line(wanted, queues) as line:
        return await _claim_in_line(call, room, line, queues, seconds, options)


async def _claim_in_line(
    call: Call, room: Room, line: Line, queues: list[str], seconds: float, options: dict[str, Any]
) -> list[Job]:
    queue, loop = call.queue, asyncio.get_running_loop()
    end = loop.time() + seconds
    jobs: list[Job] = []
    waiter = line.join()
    try:
        # If others wait for the same thing, there is nothing to find, or they are about to find it.
        if waiter.looks:
            jobs = await queue.aclaim(queues, **options)
            if jobs:
                return jobs
        async with disconnection(call.receive, waiter) as gone:
            while not jobs and not call.is_over and not gone.done():
                waiter.forget()
                pause = end - loop.time()
                if waiter.looks:
                    jobs = await queue.aclaim(queues, **options)
                    if jobs:
                        break
                    line.rest(waiter)
                    due = await _until_due(queue, queues, room.look_seconds)
                    pause = min(end - loop.time(), due if waiter.looks else seconds)
                if pause <= 0:
                    break
                await waiter.wait(pause)
            if jobs and gone.done():
                await store_of(queue).ado([ops.Release(job.id, job.token) for job in jobs])
                return []
        return jobs
    finally:
        line.leave(waiter, found=bool(jobs))


async def _until_due(queue: Calls, queues: list[str], most: float) -> float:
    due = await queue.anext_due(queues)
    if due is None:
        return most
    return min(max(due - queue.clock.now_ms(), 1) / 1000, most)


async def wait_for_end(call: Call, id: str, seconds: float) -> Job:
    """Wait until a job finishes, the time is up or the client disconnects; return the job."""
    queue, loop = call.queue, asyncio.get_running_loop()
    end = loop.time() + seconds
    room = call.service.rooms.of(call.token.hash)
    with room.line(("end", id), ()) as line:
        waiter = line.join()
        ended = False
        try:
            async with disconnection(call.receive, waiter) as gone:
                while True:
                    waiter.forget()
                    over = end <= loop.time() or call.is_over or gone.done()
                    if waiter.looks or over:
                        job = await queue.aget(id)
                        ended = job.state in FINAL
                        if ended or over:
                            return job
                        line.rest(waiter)
                    most = room.look_seconds if waiter.looks else seconds
                    await waiter.wait(min(end - loop.time(), most))
        finally:
            line.leave(waiter, found=ended)


async def wait_for_change(call: Call, seconds: float, has_changed: Callable[[], bool]) -> None:
    """Wait until something in the store has changed, or the time is up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    room = call.service.rooms.of(call.token.hash)
    with room.line(object(), None) as line:  # a line of its own: every change wakes it
        waiter = line.join()
        try:
            while not has_changed() and not call.is_over and end > loop.time():
                waiter.forget()
                await waiter.wait(min(end - loop.time(), room.look_seconds))
        finally:
            line.leave(waiter, found=False)
