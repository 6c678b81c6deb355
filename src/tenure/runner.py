"""The runner: claims jobs, runs their handlers, keeps their leases, says what became of them, and
stops gracefully."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from tenure import ops
from tenure.arguments import Seconds, fail_op, whole
from tenure.attempt import after_error, after_return, timed_out
from tenure.current import CURRENT, CurrentJob
from tenure.errors import Busy, Closed, InvalidInput, StoreError, TenureError
from tenure.handler import Handler, Worker
from tenure.job import MAX_CLAIM, Job, check_name, span_ms
from tenure.keeper import Keeper
from tenure.ops import Answer, Op
from tenure.processes import Processes
from tenure.queue import Queue, default_worker
from tenure.run import Run, call_in_thread
from tenure.scheduler import Scheduler
from tenure.threads import Threads

log = logging.getLogger("tenure.worker")

AFTER_GRACE_SECONDS = 2.0  # that handlers get to end once they are told to
LOOK_AHEAD_SECONDS = 0.05  # that lie between two looks at what is due next
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between tries while the store cannot commit


class Post:
    """Some queues, and how many of their jobs run at once.

    in_order: the first queue's jobs come first, always; else the queues take turns.
    """

    def __init__(
        self,
        queues: Sequence[str],
        concurrency: int,
        handlers: Mapping[str, Handler],
        *,
        default: Handler | None = None,
        poll_interval: float | None = None,
        in_order: bool = False,
    ) -> None:
        self.queues = tuple(check_name("queues", name) for name in queues)
        self.concurrency = whole("concurrency", concurrency, 1, 100_000)
        self.poll_interval = poll_interval
        self._handlers = handlers
        self._default = default
        self._in_order = in_order
        self.runs: dict[int, Run] = {}  # whose handlers have not ended, also if they were given up
        self.to_tell: list[Op] = []  # what the store does not know yet
        self.reports: dict[str, Op] = {}  # of progress, the last of each job
        self.look = True  # whether something may be ready
        self.looked_ahead_at = -1.0
        self.changed = Signal()

    @property
    def room(self) -> int:
        return min(self.concurrency - len(self.runs), MAX_CLAIM)

    @property
    def busy(self) -> bool:
        return any(not run.ended for run in self.runs.values())

    def handler_of(self, job: Job) -> Handler | None:
        return self._handlers.get(job.kind, self._default)

    def next_order(self) -> tuple[str, ...]:
        """The queues in the order in which to claim from them."""
        if not self._in_order:
            self.queues = (*self.queues[1:], self.queues[0])
        return self.queues

    def take(self) -> list[Op]:
        """What is to be told, like next to like."""
        batch = [*self.reports.values(), *sorted(self.to_tell, key=lambda op: type(op).__name__)]
        self.reports, self.to_tell = {}, []
        return batch


class Signal:
    """Something that one task waits for, up to some time."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._set = False

    def set(self) -> None:
        self._set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None) -> bool:
        """Whether it was set in time; it is not any more."""
        if not self._set:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None
            if seconds is not None:
                timer = loop.call_later(seconds, _give_up, self._waiter)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        was_set, self._set = self._set, False
        return was_set


def _give_up(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Runner:
    """Works on jobs until it is stopped.

    lease: seconds of a lease; renewed while a handler runs, so it is only the time until the jobs
    of a worker that died are taken over. poll_interval: seconds between looks that nothing
    prompted. grace: seconds that running handlers get when the runner is stopped. burst: end when
    nothing is ready. max_jobs: end after so many. schedule: fire schedules and look after the
    store, too.
    """

    def __init__(
        self,
        queue: Queue,
        posts: Sequence[Post] = (),
        *,
        name: str | None = None,
        lease: Seconds = 30,
        poll_interval: Seconds = 1,
        grace: Seconds = 30,
        burst: bool = False,
        max_jobs: int | None = None,
        schedule: bool = True,
    ) -> None:
        self.name = check_name("name", name or default_worker())
        self.queue = queue
        self.before_start: Callable[[], None] = lambda: None
        self.handled = 0
        self._posts = list(posts)
        self._lease_ms = span_ms("lease", lease, least=10)
        self._poll_interval = span_ms("poll_interval", poll_interval, least=1) / 1000
        self._grace = span_ms("grace", grace) / 1000
        self._burst = burst
        self._left = None if max_jobs is None else whole("max_jobs", max_jobs, 1, 10**12)
        self._payload_limit = queue.settings.payload_limit
        self._stopping = False
        self._serving: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps no hold of them
        self._keeper = Keeper(queue, self._lease_ms / 1000, self.running, self._overdue)
        self._scheduler = Scheduler(queue, self.name) if schedule else None
        self._processes = Processes(queue.settings)
        self._threads = Threads()
        self._from_threads: deque[tuple[Post, Run, Op | None]] = deque()
        self._collecting = False
        self._unlisten: Callable[[], None] = lambda: None

    def register(self, worker: Worker) -> None:
        """Have a Worker work on its queue."""
        if self._serving:
            raise InvalidInput("worker", "register it before the runner is started")
        if any(worker.queue in post.queues for post in self._posts):
            raise InvalidInput("queue", f"{worker.queue!r} has tasks or another Worker already")
        handler = worker.handler()
        self._posts.append(
            Post(
                [worker.queue],
                worker.concurrency,
                {},
                default=handler,
                poll_interval=worker.poll_interval,
            )
        )

    # Starting and stopping ----------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to work."""
        if self._serving:
            raise InvalidInput("runner", "was started before; make a new one")
        if not self._posts:
            raise InvalidInput("runner", "there is nothing to run: no task and no Worker")
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.before_start)
        self._unlisten = self.queue.changes.listen(self._wake)
        self._keeper.start()
        if self._scheduler is not None:
            self._scheduler.start()
        self._serving = [
            asyncio.create_task(self._serve(post), name=f"tenure {', '.join(post.queues)}")
            for post in self._posts
        ]
        log.info(
            "worker %s works on %s",
            self.name,
            "; ".join(f"{', '.join(p.queues)} ({p.concurrency} at once)" for p in self._posts),
        )

    async def wait(self) -> None:
        """Until there is nothing more to do, which only burst and max_jobs bring about, or it was
        stopped."""
        await asyncio.gather(*self._serving)

    async def run(self) -> None:
        """Start, work until the end, and stop."""
        await self.start()
        try:
            await self.wait()
        finally:
            await self.stop()

    def stop_soon(self) -> None:
        """Claim no more. Must be called in the runner's loop."""
        self._stopping = True
        for post in self._posts:
            post.changed.set()

    async def stop(self, grace: Seconds | None = None) -> None:
        """Claim no more, let what runs end within the grace time, and give the rest back with
        their attempts."""
        self.stop_soon()
        seconds = self._grace if grace is None else span_ms("grace", grace) / 1000
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=seconds)
            if late:
                await self._give_back()
        self._unlisten()
        if self._scheduler is not None:
            await asyncio.to_thread(self._scheduler.stop)
        if self._serving:
            await asyncio.to_thread(self._keeper.stop)
            self._threads.close()
            await asyncio.to_thread(self._processes.close)
        for task in self._serving:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        log.info("worker %s has stopped; it handled %d jobs", self.name, self.handled)

    async def _give_back(self) -> None:
        """The grace time is over."""
        running = self.running()
        log.warning("%d jobs did not end in time and are given back", len(running))
        for run in running:
            run.stop("stop")
        _, late = await asyncio.wait(self._serving, timeout=AFTER_GRACE_SECONDS)
        if late:
            self.give_up()
            await asyncio.wait(self._serving, timeout=AFTER_GRACE_SECONDS)
            for task in self._serving:
                task.cancel()

    def give_up(self) -> None:
        """Give all jobs back at once, whatever their handlers do. For any thread."""
        for run in [run for run in self.running() if run.end()]:
            try:
                self.queue.release(run.job)
            except TenureError as error:
                log.warning("job %s could not be given back: %s", run.job.id, error)
        for post in self._posts:
            self._soon(post.changed.set)

    def running(self) -> list[Run]:
        """What is being worked on. For any thread."""
        return [run for post in self._posts for run in post.runs.copy().values() if not run.ended]

    # Serving ------------------------------------------------------------------------------------

    async def _serve(self, post: Post) -> None:
        """Tell what ended, claim what there is room for, start it: one commit for all of it."""
        try:
            while True:
                room = self._room(post)
                if room or post.to_tell or post.reports:
                    await self._exchange(post, room)
                elif self._is_over(post):
                    break
                elif not await post.changed.wait(await self._idle_seconds(post)):
                    post.look = True
        except Exception:
            log.exception("worker %s can no longer work on %s", self.name, ", ".join(post.queues))
            raise
        for other in self._posts:
            other.changed.set()  # in a burst all end together

    def _room(self, post: Post) -> int:
        """How many jobs to claim now."""
        if self._stopping or not post.look:
            return 0
        return post.room if self._left is None else min(post.room, self._left)

    def _is_over(self, post: Post) -> bool:
        if self._stopping or self._left == 0:
            return not post.busy
        return self._burst and not any(p.look or p.busy or p.to_tell for p in self._posts)

    async def _idle_seconds(self, post: Post) -> float | None:
        """How long to wait if nothing happens: until something is due, or for the next look."""
        if self._stopping or self._left == 0 or not post.room:
            return None
        clock = self.queue.clock
        if clock.monotonic() - post.looked_ahead_at < LOOK_AHEAD_SECONDS:
            return LOOK_AHEAD_SECONDS
        post.looked_ahead_at = clock.monotonic()
        longest = post.poll_interval or self._poll_interval
        try:
            due = await self.queue.anext_due(post.queues)
        except TenureError as error:
            log.warning("worker %s could not look ahead: %s", self.name, error)
            return longest
        return longest if due is None else min(max(due - clock.now_ms(), 1) / 1000, longest)

    async def _exchange(self, post: Post, room: int) -> None:
        batch = post.take()
        if room:
            post.look = False  # what comes from here on sets it again
            batch.append(ops.Claim(post.next_order(), self.name, self._lease_ms, room))
        for op, answer in zip(batch, await self._commit(batch), strict=True):
            if isinstance(answer, ops.Leased):
                self._begin(post, answer.jobs, room)
            elif isinstance(answer, TenureError):
                self._complain(op, answer)

    async def _commit(self, batch: list[Op]) -> list[Answer]:
        """Have it committed, however long the store is away."""
        pause = FIRST_PAUSE
        while True:
            try:
                answers: list[Answer] = await self.queue.ado(batch)
            except (Busy, StoreError) as error:
                log.warning("the store cannot commit, trying again in %.2g s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except Closed:
                raise
            except Exception as error:
                if len(batch) > 1:  # one of them is at fault; the others shall not suffer for it
                    return [(await self._commit([op]))[0] for op in batch]
                log.exception("an operation failed in a way that it should not: %r", batch[0])
                return [StoreError(str(error))]
            else:
                return answers

    def _complain(self, op: Op, error: TenureError) -> None:
        if not isinstance(op, ops.Progress):
            log.warning("%s of job %s: %s", type(op).__name__, getattr(op, "id", "?"), error)

    # Running ------------------------------------------------------------------------------------

    def _begin(self, post: Post, jobs: list[Job], room: int) -> None:
        if len(jobs) == room:
            post.look = True  # there may be more
        if self._stopping:
            post.to_tell += [ops.Release(job.id, job.token) for job in jobs]
            return
        if self._left is not None:
            self._left -= len(jobs)
        now = self.queue.clock.monotonic()
        for job in jobs:
            handler = post.handler_of(job)
            if handler is None:
                log.error("job %s: there is no task %r in this worker", job.id, job.kind)
                known = f"this worker has no task named {job.kind!r}"
                post.to_tell.append(fail_op(job, known))
            else:
                self._start(post, job, handler, now)

    def _start(self, post: Post, job: Job, handler: Handler, now: float) -> None:
        run = Run(job, handler, self.queue, partial(self._report, post), now)
        post.runs[id(run)] = run
        if job.timeout_ms is not None:
            run.deadline = now + job.timeout_ms / 1000
            run.timer = self._loop.call_later(job.timeout_ms / 1000, run.stop, "timeout")
        if handler.place == "loop":
            task = self._loop.create_task(self._attempt(post, run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._threads.submit(partial(self._attempt_in_thread, post, run))

    async def _attempt(self, post: Post, run: Run) -> None:
        CURRENT.set(run)
        task = asyncio.current_task()
        assert task is not None
        run.can_be_interrupted_by(partial(self._soon, task.cancel))
        try:
            value = await run.handler.call(run.job)
            op = after_return(run.job, value, run.reason, self._payload_limit)
        except BaseException as error:
            op = after_error(run.job, error, run.reason)
        run.can_be_interrupted_by(None)
        self._finish(post, run, op)

    def _attempt_in_thread(self, post: Post, run: Run) -> None:
        try:
            if run.handler.place == "process":
                op = self._processes.attempt(run)
            else:
                value = call_in_thread(run)
                op = after_return(run.job, value, run.reason, self._payload_limit)
        except BaseException as error:
            op = after_error(run.job, error, run.reason)
        self._from_threads.append((post, run, op))
        if not self._collecting:
            self._collecting = True
            self._soon(self._collect)

    def _collect(self) -> None:
        """What ended in threads since the last time."""
        self._collecting = False
        while self._from_threads:
            self._finish(*self._from_threads.popleft())

    def _finish(self, post: Post, run: Run, op: Op | None) -> None:
        if run.timer is not None:
            run.timer.cancel()
        del post.runs[id(run)]
        self.handled += 1
        if run.end() and op is not None:
            post.to_tell.append(op)
            if isinstance(op, ops.Fail):
                log.warning("job %s (%s) failed: %s", run.job.id, run.handler.name, op.message)
        post.changed.set()

    def _overdue(self, run: Run) -> None:
        """It was told to end because its time is over, and does not. For the keeper's thread."""
        if run.end():
            log.error("job %s (%s) does not end, and is given up", run.job.id, run.handler.name)
            self.queue.fail(run.job, timed_out(run.job))

    def _report(self, post: Post, run: CurrentJob, percent: int, note: str | None) -> None:
        op = ops.Progress(run.job.id, run.token, percent, note)

        def add() -> None:
            if id(run) in post.runs:
                post.reports[run.job.id] = op
                post.changed.set()

        self._soon(add)

    def _wake(self, queues: Collection[str] | None) -> None:
        """Something may be ready. For any thread."""
        for post in self._posts:
            if not post.look and (queues is None or not set(queues).isdisjoint(post.queues)):
                post.look = True
                self._soon(post.changed.set)

    def _soon(self, call: Callable[[], object]) -> None:
        """Have it called in the loop. For any thread."""
        with suppress(RuntimeError):  # the loop was closed: there is nobody to tell
            self._loop.call_soon_threadsafe(call)
