"""Long polling: requests that wait for a job to become ready or to finish, without a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tenure.model import ops
from tenure.model.job import FINAL, Job
from tenure.queue import Calls
from tenure.server.request_body import Receive
from tenure.server.route import Call

LOOK_SECONDS = 1.0  # between checks if nothing reports a change


class Changed:
    """An event that is set when something changes. For one task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self, queues: object = None) -> None:
        """Set the event. May be called from any thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._event.set)

    def forget(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until something changes, for at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


@asynccontextmanager
async def changes_of(queue: Calls) -> AsyncIterator[Changed]:
    changed = Changed()
    stop = queue.changes.listen(changed.wake)
    try:
        yield changed
    finally:
        stop()


@asynccontextmanager
async def departure_of(receive: Receive, changed: Changed) -> AsyncIterator[asyncio.Task[None]]:
    """A task that is done when the client disconnects."""
    task = asyncio.create_task(until_gone(receive))
    task.add_done_callback(lambda _: changed.wake())
    try:
        yield task
    finally:
        task.cancel()


async def until_gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def claim_or_wait(call: Call, queues: list[str], seconds: float, **options: Any) -> list[Job]:
    """Claim, and try again when something changes, until there is a job or the time is over. If
    the client disconnects meanwhile, its jobs are released."""
    queue = call.queue
    jobs = await queue.aclaim(queues, **options)
    if jobs or not seconds:
        return jobs
    end = asyncio.get_running_loop().time() + seconds
    async with changes_of(queue) as changed, departure_of(call.receive, changed) as gone:
        while not jobs and not call.is_over and not gone.done():
            changed.forget()
            jobs = await queue.aclaim(queues, **options)
            left = end - asyncio.get_running_loop().time()
            if jobs or left <= 0:
                break
            await changed.wait(min(left, await _until_due(queue, queues)))
        if jobs and gone.done():
            await queue.ado([ops.Release(job.id, job.token) for job in jobs])
            return []
    return jobs


async def _until_due(queue: Calls, queues: list[str]) -> float:
    due = await queue.anext_due(queues)
    if due is None:
        return LOOK_SECONDS
    return min(max(due - queue.clock.now_ms(), 1) / 1000, LOOK_SECONDS)


async def wait_for_end(call: Call, id: str, seconds: float) -> Job:
    """Wait until a job finishes, the time is over or the client disconnects; return the job."""
    queue = call.queue
    end = asyncio.get_running_loop().time() + seconds
    async with changes_of(queue) as changed, departure_of(call.receive, changed) as gone:
        while True:
            changed.forget()
            job = await queue.aget(id)
            left = end - asyncio.get_running_loop().time()
            if job.state in FINAL or left <= 0 or call.is_over or gone.done():
                return job
            await changed.wait(min(left, LOOK_SECONDS))
