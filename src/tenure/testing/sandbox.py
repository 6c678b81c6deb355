"""For tests: a clock that is advanced manually, and a sandbox in which an app runs its jobs on
demand, without a worker, a file or any waiting."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from tenure.errors import InvalidInput, LeaseLost, TenureError
from tenure.model.fields import MAX_CLAIM, span_ms
from tenure.model.job import Job
from tenure.model.ops import Op, Progress
from tenure.queue import Queue, connect, store_of
from tenure.queue.arguments import fail_op
from tenure.settings import Settings
from tenure.tasks.app import Tenure
from tenure.worker.current_job import CurrentJob
from tenure.worker.handler import HandlerSpec
from tenure.worker.outcome import Outcome, after_timeout
from tenure.worker.post import Post
from tenure.worker.run import Run, attempt, attempt_in_thread
from tenure.worker.scheduler import Scheduler

LEASE_SECONDS = 10 * 366 * 86_400  # long, because no other worker could take a job over
MOST_ATTEMPTS = 1_000_000


class ManualClock:
    """A clock that only moves when told to."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock by some seconds. Negative values move it back, like a clock that is
        corrected."""
        self._now_ms += round(seconds * 1000)


class Sandbox:
    """A context manager that gives an app its own store and its own clock.

    Nothing runs until `drain()`. eager: every enqueue runs the jobs that are ready before it
    returns. reraise: errors of tasks are recorded, then raised to the caller who ran them.
    """

    def __init__(
        self,
        app: Tenure,
        *,
        eager: bool = False,
        reraise: bool = False,
        url: str = "memory://",
        clock: ManualClock | None = None,
    ) -> None:
        self.app = app
        self.eager = eager
        self.reraise = reraise
        self.clock: ManualClock = clock or ManualClock()
        self.queue: Queue = connect(url, settings=Settings(), clock=self.clock)
        self._draining = False
        self._error: Exception | None = None
        self._to_tell: list[Op] = []

    def __enter__(self) -> Sandbox:
        if self.app.sandbox is not None:
            raise InvalidInput("app", "is already in a sandbox")
        self.app.sandbox = self
        self.app.load()
        self.app.put_schedules()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.app.sandbox = None
        self.queue.close()

    def jobs(self, **filters: Any) -> list[Job]:
        """Return the jobs in the sandbox, oldest first. Takes the filters of Queue.jobs."""
        found, cursor = [], None
        while True:
            page = self.queue.jobs(limit=1000, cursor=cursor, **filters)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                return found[::-1]

    def drain(self, forward: float | timedelta = 0) -> int:
        """Run jobs until none is ready, and return the number of attempts made.

        forward: also run what becomes due within this many seconds, including retries and
        schedules, moving the clock forward to each. `asyncio.sleep` in a task takes no real time;
        it moves the clock.
        """
        if not _in_a_loop():
            return self._drain(forward)
        # An event loop cannot run within another one, so use a thread.
        answers: list[int | BaseException] = []

        def call() -> None:
            try:
                answers.append(self._drain(forward))
            except BaseException as error:
                answers.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        (answer,) = answers
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _drain(self, forward: float | timedelta) -> int:
        count = 0
        with asyncio.Runner(loop_factory=lambda: _Loop(self.clock)) as runner:
            for run in self._runs(forward):
                count += 1
                if run.handler.place == "loop":
                    self._tell(run, runner.run(self._in_time(run)))
                else:
                    self._tell(run, self._at_once(run))
        return count

    async def adrain(self, forward: float | timedelta = 0) -> int:
        """Awaitable form of `drain`. Runs in the current event loop, so sleeps take real time."""
        count = 0
        for run in self._runs(forward):
            count += 1
            if run.handler.place == "loop":
                self._tell(run, await asyncio.create_task(self._in_time(run)))
            else:
                self._tell(run, self._at_once(run))
        return count

    def _runs(self, forward: float | timedelta) -> Iterator[Run]:
        """Claim jobs as a worker would, and yield their runs one by one."""
        if self._draining:
            return  # an eager enqueue inside a task: the outer drain will run the job
        self._draining = True
        try:
            until = self.clock.now_ms() + span_ms("forward", forward)
            posts = self.app.posts()
            left = MOST_ATTEMPTS
            while left > 0:
                claimed = [(post, job) for post in posts for job in self._claim(post)]
                for post, job in claimed:
                    left -= 1
                    yield from self._run(post, job)
                self._commit()
                if not claimed and not self._go_on(posts, until):
                    return
            raise InvalidInput("drain", f"not finished after {MOST_ATTEMPTS:,} attempts")
        finally:
            self._commit()
            self._draining = False

    def _claim(self, post: Post) -> list[Job]:
        return self.queue.claim(
            post.next_order(), limit=MAX_CLAIM, lease=LEASE_SECONDS, worker="sandbox"
        )

    def _run(self, post: Post, job: Job) -> Iterator[Run]:
        handler = post.handler_of(job)
        if handler is None:
            self._to_tell.append(fail_op(job, f"no task is named {job.kind!r}"))
        else:
            handler = replace(handler, call=partial(self._noting, handler))
            yield Run(job, handler, self.queue, self._report, self.clock.monotonic())

    def _noting(self, handler: HandlerSpec, job: Job) -> Any:
        """Call a handler, and remember the error it raises."""
        try:
            value = handler.call(job)
        except Exception as error:
            self._error = error
            raise
        return self._anoting(value) if handler.place == "loop" else value

    async def _anoting(self, awaitable: Any) -> Any:
        try:
            return await awaitable
        except Exception as error:
            self._error = error
            raise

    def _go_on(self, posts: list[Post], until: int) -> bool:
        """Move the clock to when something is due next; False if that is later than `until`."""
        wait_ms = Scheduler(self.queue, "sandbox", upkeep=False).fire_due()
        next_tick = None if wait_ms is None else self.clock.now_ms() + wait_ms
        queues = [name for post in posts for name in post.queues]
        due = self.queue.next_due(queues) if queues else None
        at = min((one for one in (next_tick, due) if one is not None), default=None)
        if at is None or at > until:
            return False
        self.clock.advance(max(at - self.clock.now_ms(), 0) / 1000)
        return True

    async def _in_time(self, run: Run) -> Op | None:
        timer = None
        if run.job.timeout_ms is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(run.job.timeout_ms / 1000, run.stop, "timeout")
        try:
            return await attempt(run, self.queue.settings.payload_limit)
        finally:
            if timer is not None:
                timer.cancel()

    def _at_once(self, run: Run) -> Op | None:
        """Run a plain function. It cannot be interrupted, so its timeout is checked afterwards."""
        started = self.clock.now_ms()
        op = attempt_in_thread(run, self.queue.settings.payload_limit)
        timeout = run.job.timeout_ms
        if timeout is not None and self.clock.now_ms() - started > timeout:
            return after_timeout(run.job, run.handler.rules)
        return op

    def _report(self, current: CurrentJob, percent: int, note: str | None) -> None:
        store_of(self.queue).do([Progress(current.job.id, current.token, percent, note)])

    def _tell(self, run: Run, op: Op | None) -> None:
        error, self._error = self._error, None
        if op is not None:
            self._to_tell.append(op)
        if self.reraise and error is not None and not isinstance(error, Outcome):
            raise error

    def _commit(self) -> None:
        batch, self._to_tell = self._to_tell, []
        for answer in store_of(self.queue).do(batch):
            if isinstance(answer, TenureError) and not isinstance(answer, LeaseLost):
                raise answer  # LeaseLost is fine: a task can cancel its own job


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that uses a ManualClock, and moves it instead of sleeping."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._eyes = _Eyes(self, clock)
        super().__init__(self._eyes)
        self._clock_resolution = 0.0005  # half of the clock's, so timers are due in time

    def time(self) -> float:
        return self._clock.monotonic()

    def waits_for_io(self) -> bool:
        """Whether the loop waits for a thread or a socket, in which case it uses real time."""
        return getattr(self, "_default_executor", None) is not None or len(self._eyes.get_map()) > 1


class _Eyes(selectors.DefaultSelector):
    """The loop's selector, which moves the clock instead of waiting for timers."""

    def __init__(self, loop: _Loop, clock: ManualClock) -> None:
        super().__init__()
        self._loop = loop
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or self._loop.waits_for_io():
            began = time.monotonic()
            found = super().select(timeout)
            self._clock.advance(time.monotonic() - began)
            return found
        found = super().select(0)
        if not found and timeout > 0:
            self._clock.advance(math.ceil(timeout * 1000) / 1000)
        return found
