"""For tests: a clock that is advanced manually, and a sandbox in which an app runs its jobs on
demand, without a worker, a file or any waiting."""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple

from msgspec.structs import replace

from tenure.errors import InvalidInput, LeaseLost, TenureError
from tenure.features.steps.data import FOREVER_MS
from tenure.model.fields import MAX_CLAIM, span_ms
from tenure.model.job import Job, NewJob
from tenure.model.ops import Op, Progress
from tenure.queue import Queue, connect, store_of
from tenure.queue.arguments import fail_op
from tenure.settings import Settings
from tenure.tasks.app import Tenure
from tenure.tasks.task import Task
from tenure.testing.crashes import (
    CrashReport,
    Doom,
    Point,
    differences,
    end_of,
    points_of,
    to_crash,
)
from tenure.worker.current_job import CurrentJob
from tenure.worker.handler import HandlerSpec
from tenure.worker.outcome import Outcome, after_refusal, after_timeout
from tenure.worker.post import Post
from tenure.worker.run import Run, attempt, attempt_in_thread
from tenure.worker.scheduler import Scheduler

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

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
        self._doom: Doom | None = None  # of a job, in `crash_everywhere`
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

    def crash_everywhere(
        self,
        task: Task[..., Any],
        /,
        *args: Any,
        signals: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> CrashReport:
        """Run a call of a task to its end. Then run it again for each of its steps and suspensions
        and for its end, in a store of its own, with a worker that dies there, once before and once
        after it is recorded. Returns whether the job and its steps came to the same end, and the
        same other jobs were made. signals: what to send to the job before it runs, by name."""
        call = to_crash(task.job(*args, **kwargs), self.clock.now_ms())
        sent = signals or {}
        usual, reached, _ = _apart(self, call, sent, None)
        points = points_of(reached)
        found: list[str] = []
        for point in points:
            end, _, died = _apart(self, call, sent, point)
            found += differences(point, usual, end)
            if not died:
                found.append(f"{point.what} was not reached again: the task takes other ways")
        return CrashReport(len(points), found)

    def drain(self, forward: float | timedelta | bool = 0) -> int:
        """Run jobs until none is ready, and return the number of attempts made.

        forward: also run what becomes due within this many seconds, including retries and
        schedules, moving the clock forward to each. True: everything that jobs wait for, until the
        only ones left wait for a signal without a timeout, or for another job; the clock does not
        move for schedules. `asyncio.sleep` in a task takes no real time; it moves the clock.
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

    def _drain(self, forward: float | timedelta | bool) -> int:
        count = 0
        with asyncio.Runner(loop_factory=lambda: _Loop(self.clock)) as runner:
            for run in self._runs(forward):
                count += 1
                if run.handler.place == "loop":
                    self._tell(run, runner.run(self._in_time(run)))
                else:
                    self._tell(run, self._at_once(run))
        return count

    async def adrain(self, forward: float | timedelta | bool = 0) -> int:
        """Awaitable form of `drain`. Runs in the current event loop, so sleeps take real time."""
        count = 0
        for run in self._runs(forward):
            count += 1
            if run.handler.place == "loop":
                self._tell(run, await asyncio.create_task(self._in_time(run)))
            else:
                self._tell(run, self._at_once(run))
        return count

    def _runs(self, forward: float | timedelta | bool) -> Iterator[Run]:
        """Claim jobs as a worker would, and yield their runs one by one."""
        if self._draining:
            return  # an eager enqueue inside a task: the outer drain will run the job
        self._draining = True
        try:
            is_all = isinstance(forward, bool) and forward
            span = FOREVER_MS // 2 if is_all else span_ms("forward", forward)
            until = self.clock.now_ms() + span
            posts = self.app.posts()
            left = MOST_ATTEMPTS
            while left > 0:
                claimed = [(post, job) for post in posts for job in self._claim(post)]
                for post, job in claimed:
                    left -= 1
                    yield from self._run(post, job)
                self._commit()
                if not claimed and not self._go_on(posts, until, ticks=not is_all):
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
            doomed = self._doom is not None and self._doom.job_id == job.id
            queue = self._doom.queue(self.queue) if self._doom and doomed else self.queue
            yield Run(job, handler, queue, self._report, self.clock.monotonic())

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

    def _go_on(self, posts: list[Post], until: int, ticks: bool) -> bool:
        """Move the clock to when something is due next; False if that is later than `until`. ticks:
        whether to move it for schedules, too."""
        wait_ms = Scheduler(self.queue, "sandbox", upkeep=False).fire_due()
        next_tick = None if wait_ms is None or not ticks else self.clock.now_ms() + wait_ms
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
        if self._doom is not None and self._doom.job_id == run.job.id:
            op = self._doom.outcome(run.job, op)
        if op is not None:
            self._to_tell.append(op)
        if self.reraise and error is not None and not isinstance(error, Outcome):
            raise error

    def _commit(self) -> None:
        batch, self._to_tell = self._to_tell, []
        for op, answer in zip(batch, store_of(self.queue).do(batch), strict=True):
            failure = after_refusal(op, answer)
            if failure is not None:
                self._to_tell.append(failure)
            elif isinstance(answer, TenureError) and not isinstance(answer, LeaseLost):
                raise answer  # LeaseLost is fine: a task can cancel its own job
        if self._to_tell:
            self._commit()


def _apart(
    outer: Sandbox, call: NewJob, signals: Mapping[str, Any], point: Point | None
) -> tuple[dict[str, Any], list[str], bool]:
    """Run a job in a sandbox of its own. Returns how it ended, the operations it reached, and
    whether its worker died."""
    app, outer.app.sandbox = outer.app, None
    try:
        with Sandbox(app, clock=ManualClock(outer.clock.now_ms())) as box:
            (job_id,) = box.queue.enqueue_many([call])
            box._doom = doom = Doom(job_id, point)
            for name, value in signals.items():
                box.queue.signal(job_id, name, value)
            box.drain(forward=True)
            return end_of(box.queue, job_id, box.jobs()), doom.reached, doom.died
    finally:
        app.sandbox = outer


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
        self._in_threads = 0  # calls that run there
        super().__init__(self._eyes)
        self._clock_resolution = 0.0005  # half of the clock's, so timers are due in time

    def time(self) -> float:
        return self._clock.monotonic()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._leave_thread)
        return future

    def _leave_thread(self, _: object) -> None:
        self._in_threads -= 1

    def waits_for_io(self) -> bool:
        """Whether the loop waits for a thread or a socket, in which case it uses real time."""
        return self._in_threads > 0 or len(self._eyes.get_map()) > 1


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
