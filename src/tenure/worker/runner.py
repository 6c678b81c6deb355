"""The runner: claims jobs, runs their handlers, keeps their leases, says what became of them, and
stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar

from msgspec import Meta

from tenure.errors import Busy, Closed, InvalidInput, StoreError, StoreRejected, TenureError
from tenure.model import ops
from tenure.model.fields import MAX_SPAN_MS, PositiveSpan, check, check_name, span_ms
from tenure.model.job import Job, Lease
from tenure.model.ops import Answer, Op
from tenure.observe.logs import about
from tenure.queue import Queue, default_worker
from tenure.queue.arguments import Seconds, fail_op
from tenure.worker.current_job import CurrentJob
from tenure.worker.handler import Handler, Worker
from tenure.worker.lease_keeper import Keeper
from tenure.worker.outcome import timed_out
from tenure.worker.post import Post, post_of
from tenure.worker.processes import Processes
from tenure.worker.run import Run, attempt, attempt_in_thread
from tenure.worker.scheduler import Scheduler
from tenure.worker.threads import Threads

log = logging.getLogger("tenure.worker")

T = TypeVar("T")

MaxJobs = Annotated[int, Meta(ge=1, le=10**12)]
Lasting = Annotated[int, Meta(ge=10, le=MAX_SPAN_MS)]  # in milliseconds: it must be renewed in time

AFTER_GRACE_SECONDS = 2.0  # that handlers get to end once they are told to
LOOK_AHEAD_SECONDS = 0.05  # that lie between two looks at what is due next
REFUSED_SECONDS = 1.0  # until what another transaction was in the way of is told again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between tries while the store cannot commit


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
        self._lease_ms = span_ms("lease", lease, Lasting)
        self._poll_interval = span_ms("poll_interval", poll_interval, PositiveSpan) / 1000
        self._grace = span_ms("grace", grace) / 1000
        self._burst = burst
        self._left: int | None = check("max_jobs", max_jobs, MaxJobs | None)
        self._asked_for = 0  # jobs of claims that are under way
        self._payload_limit = queue.settings.payload_limit
        self._stopping = False
        self._serving: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps no hold of them
        self._keeper = Keeper(
            queue, self._lease_ms / 1000, self.running, self._overdue, self._untold
        )
        self._scheduler = Scheduler(queue, self.name) if schedule else None
        self._processes = Processes(queue.settings)
        self._threads = Threads()
        # Not asyncio's own, which handlers may keep busy for as long as they like.
        self._aside = ThreadPoolExecutor(thread_name_prefix="tenure-runner")
        self._from_threads: deque[tuple[Post, Run, Op | None]] = deque()
        self._collecting = False
        self._unlisten: Callable[[], None] = lambda: None

    def register(self, worker: Worker) -> None:
        """Have a Worker work on its queue."""
        if self._serving:
            raise InvalidInput("worker", "register it before the runner is started")
        if any(worker.queue in post.queues for post in self._posts):
            raise InvalidInput("queue", f"{worker.queue!r} has tasks or another Worker already")
        self._posts.append(post_of(worker))

    # Starting and stopping ----------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to work."""
        if self._serving:
            raise InvalidInput("runner", "was started before; make a new one")
        if not self._posts:
            raise InvalidInput("runner", "there is nothing to run: no task and no Worker")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
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
        if self._serving:  # not gather(), which would cancel them together with its caller
            await asyncio.wait(self._serving, return_when=asyncio.FIRST_EXCEPTION)
            self._raise_what_ended_it()

    async def run(self) -> None:
        """Start, work until the end, and stop."""
        await self.start()
        try:
            await self.wait()
        finally:
            await self.stop()

    @property
    def patience(self) -> float:
        """The seconds within which stop() has given every job back, if the loop runs."""
        return self._grace + 2 * AFTER_GRACE_SECONDS

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
            if (late or self.running() or self._untold()) and self._closing is None:
                await self._give_back()
        if self._closing is None:  # several may stop it, and each shall wait until it has
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)
        self._raise_what_ended_it()

    async def _close(self) -> None:
        self._unlisten()
        if self._scheduler is not None:
            await self._in_thread(self._scheduler.stop)
        if self._serving:
            await self._in_thread(self._keeper.stop)
            self._threads.close()
            await self._in_thread(self._processes.close)
        self._aside.shutdown(wait=False)
        log.info("worker %s has stopped; it handled %d jobs", self.name, self.handled)

    def _raise_what_ended_it(self) -> None:
        for task in self._serving:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._aside, call, *args)

    async def _give_back(self) -> None:
        """The grace time is over."""
        running = self.running()
        if running:
            log.warning("%d jobs did not end in time and are given back", len(running))
        for run in running:
            run.stop("stop")
        _, late = await asyncio.wait(self._serving, timeout=AFTER_GRACE_SECONDS)
        if late or self.running() or self._untold():
            await self._in_thread(self.give_up)
            await asyncio.wait(self._serving, timeout=AFTER_GRACE_SECONDS)
            if untold := self._untold():
                log.error("what became of %d jobs could not be stored", len(untold))
            for task in self._serving:
                task.cancel()

    def give_up(self) -> None:
        """Tell what has ended, and give the rest back at once, whatever their handlers do. For
        any thread."""
        for post in self._posts:
            post.to_tell += post.refused
            post.refused = []
        batch = [op for post in self._posts for op in post.take()]
        ended = [run for run in self.running() if run.end()]
        batch += [run.came_to or ops.Release(run.job.id, run.token) for run in ended]
        try:
            for op, answer in zip(batch, self.queue.do(batch), strict=True):
                if isinstance(answer, TenureError):
                    self._complain(op, answer)
        except TenureError as error:
            log.warning("%d jobs could not be given back: %s", len(batch), error)
        except Exception:
            log.exception("%d jobs could not be given back", len(batch))
        for post in self._posts:
            self._soon(post.changed.set)

    def running(self) -> list[Run]:
        """What is being worked on. For any thread."""
        return [run for post in self._posts for run in post.runs.copy().values() if not run.ended]

    def _untold(self) -> list[Lease]:
        return [lease for post in self._posts for lease in post.untold]

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
                else:
                    await self._stand_by(post)
        except Exception:
            log.exception("worker %s can no longer work on %s", self.name, ", ".join(post.queues))
            raise
        for other in self._posts:
            other.changed.set()  # in a burst all end together

    def _room(self, post: Post) -> int:
        """How many jobs to claim now."""
        if self._stopping or not post.look:
            return 0
        return post.room if self._left is None else min(post.room, self._left - self._asked_for)

    def _is_over(self, post: Post) -> bool:
        if self._burst and not any(
            p.look or p.busy or p.to_tell or p.telling or p.refused for p in self._posts
        ):
            self.stop_soon()  # all end together, whatever comes from here on
        return (self._stopping or self._left == 0) and not post.busy and not post.refused

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
            due = await self._in_thread(self.queue.next_due, post.queues)
        except TenureError as error:
            log.warning("worker %s could not look ahead: %s", self.name, error)
            return longest
        except Exception:
            log.exception("worker %s could not look ahead", self.name)
            return longest
        return longest if due is None else min(max(due - clock.now_ms(), 1) / 1000, longest)

    async def _stand_by(self, post: Post) -> None:
        """Wait until something happens. While nothing runs, a claim stands, so that a job that is
        enqueued in this process is stored and claimed in one commit."""
        seconds = await self._idle_seconds(post)
        if self._stopping or post.look or post.runs or self._left is not None:
            if not await post.changed.wait(seconds):
                post.look = True
            return
        room = post.room
        claim = ops.Claim(post.next_order(), self.name, self._lease_ms, room)
        standing = self.queue.stand(claim)
        standing.on_answer(post.changed.set)
        try:
            if not await post.changed.wait(seconds):
                post.look = True
        except BaseException:
            found = await self.queue.withdraw(standing)
            post.to_tell += [ops.Release(job.id, job.token) for job in found]
            raise
        if found := await self.queue.withdraw(standing):
            self._begin(post, found, room, standing.taken_at)

    async def _exchange(self, post: Post, room: int) -> None:
        if room and self._keeper.overslept:
            await self._renew_first()
        batch = post.telling = post.take()
        if room:
            post.look = False  # what comes from here on sets it again
            batch.append(ops.Claim(post.next_order(), self.name, self._lease_ms, room))
        self._asked_for += room
        try:
            answers, sent_at = await self._commit(batch)
        except BaseException:
            post.to_tell += [op for op in batch if not isinstance(op, ops.Claim | ops.Progress)]
            raise
        finally:
            post.telling = []
            self._asked_for -= room
        for op, answer in zip(batch, answers, strict=True):
            if isinstance(answer, ops.Leased):
                self._begin(post, answer.jobs, room, sent_at)
            elif isinstance(answer, TenureError):
                self._complain(op, answer)
                if isinstance(answer, Busy) and not isinstance(op, ops.Claim | ops.Progress):
                    post.refused.append(op)
        if post.refused:
            asyncio.get_running_loop().call_later(REFUSED_SECONDS, post.tell_again)
        if room and self._left is not None:
            for other in self._posts:
                other.changed.set()  # there may be some left for it

    async def _renew_first(self) -> None:
        """After a sleep of the whole process, our own claim would take our own jobs from us."""
        try:
            await self._in_thread(self._keeper.look)
        except Exception as error:
            log.warning("leases could not be renewed: %s", error)

    async def _commit(self, batch: list[Op]) -> tuple[list[Answer], float]:
        """Have it committed, however long the store is away; answers also with when it was sent
        off for the last time."""
        pause = FIRST_PAUSE
        while True:
            sent_at = self.queue.clock.monotonic()
            try:
                answers: list[Answer] = await self.queue.ado(batch)
            except Closed:
                raise
            except Exception as error:
                if isinstance(error, Busy | StoreError) and not isinstance(error, StoreRejected):
                    log.warning("the store cannot commit, trying again in %.2g s: %s", pause, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                    continue
                if len(batch) > 1:  # one of them is at fault; the others shall not suffer for it
                    each = [(await self._commit([op]))[0][0] for op in batch]
                    return each, sent_at
                kind = type(batch[0]).__name__  # no more: it may hold a result
                log.exception("an operation failed in a way that it should not: %s", kind)
                return [StoreError(str(error))], sent_at
            else:
                return answers, sent_at

    def _complain(self, op: Op, error: TenureError) -> None:
        if not isinstance(op, ops.Progress):
            id = getattr(op, "id", "?")
            log.warning("%s of job %s: %s", type(op).__name__, id, error, extra={"job": id})

    # Running ------------------------------------------------------------------------------------

    def _begin(self, post: Post, jobs: list[Job], room: int, sent_at: float) -> None:
        if len(jobs) == room:
            post.look = True  # there may be more
        # What the claim took, or the loop was blocked for, has gone from the lease. Our own clock
        # says how long that was: the store's may be another.
        now = self.queue.clock.monotonic()
        too_late = jobs and now - sent_at > self._lease_ms / 1000 * 2 / 3
        if self._stopping or too_late:
            if too_late:
                log.warning("%d jobs were claimed too long ago, they are given back", len(jobs))
            post.to_tell += [ops.Release(job.id, job.token) for job in jobs]
            return
        if self._left is not None:
            self._left -= len(jobs)
        for job in jobs:
            handler = post.handler_of(job)
            if handler is None:
                log.error(
                    "job %s: there is no task %r in this worker", job.id, job.kind, extra=about(job)
                )
                known = f"this worker has no task named {job.kind!r}"
                post.to_tell.append(fail_op(job, known))
            else:
                self._start(post, job, handler, sent_at)

    def _start(self, post: Post, job: Job, handler: Handler, kept_at: float) -> None:
        run = Run(job, handler, self.queue, partial(self._report, post), kept_at)
        post.runs[id(run)] = run
        if job.timeout_ms is not None:
            run.deadline = self.queue.clock.monotonic() + job.timeout_ms / 1000
            run.timer = self._loop.call_later(job.timeout_ms / 1000, run.stop, "timeout")
        if handler.place == "loop":
            task = self._loop.create_task(self._attempt(post, run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._threads.submit(partial(self._attempt_in_thread, post, run))

    async def _attempt(self, post: Post, run: Run) -> None:
        self._finish(post, run, await attempt(run, self._payload_limit))

    def _attempt_in_thread(self, post: Post, run: Run) -> None:
        try:
            if run.handler.place == "process":
                op = self._processes.attempt(run)
            else:
                op = attempt_in_thread(run, self._payload_limit)
        except BaseException as error:  # not of the handler: of what runs it
            log.exception(
                "job %s (%s) could not be run", run.job.id, run.handler.name, extra=about(run.job)
            )
            op = fail_op(run.job, error)
        run.came_to = op
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
                named = (run.job.id, run.handler.name, op.message)
                log.warning("job %s (%s) failed: %s", *named, extra=about(run.job))
        post.changed.set()

    def _overdue(self, run: Run) -> None:
        """It was told to end because its time is over, and does not. For the keeper's thread."""
        if run.end():
            named = (run.job.id, run.handler.name)
            log.error("job %s (%s) does not end, and is given up", *named, extra=about(run.job))
            try:
                self.queue.fail(run.job, timed_out(run.job))
            except TenureError as error:
                log.warning(
                    "job %s could not be failed: %s", run.job.id, error, extra=about(run.job)
                )

    def _report(self, post: Post, run: CurrentJob, percent: int, note: str | None) -> None:
        op = ops.Progress(run.job.id, run.token, percent, note)

        def add() -> None:
            if id(run) in post.runs:
                post.reports[run.job.id] = op
                post.changed.set()

        if threading.get_ident() == self._thread:
            add()  # at once: the task may return without another pause
        else:
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
