"""The worker: claims jobs, runs their handlers, renews their leases, reports their outcomes, and
stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Annotated, TypeVar

from msgspec import Meta

from tenure.errors import (
    InvalidInput,
    NotAllowed,
    TenureError,
)
from tenure.model import ops
from tenure.model.fields import MAX_SPAN_MS, POSITIVE_SPAN, Bounds, check, check_name, span_ms
from tenure.model.job import Job, Lease
from tenure.model.ops import Answer, Op
from tenure.observe.logs import about, counted
from tenure.queue import Queue, default_worker, store_of
from tenure.queue.arguments import Seconds, fail_op
from tenure.settings import without_secrets
from tenure.worker.admission import Admission
from tenure.worker.beats import Beats
from tenure.worker.commits import Apart, Commits
from tenure.worker.current_job import CurrentJob
from tenure.worker.handler import Handler
from tenure.worker.handler_threads import Threads
from tenure.worker.job_log import Ended, JobLog
from tenure.worker.kept_outcomes import (
    KeptOutcomes,
    as_store_error,
    say_unstored,
)
from tenure.worker.lease_keeper import Keeper
from tenure.worker.marks import Marks
from tenure.worker.outage import Outage
from tenure.worker.outcome import after_timeout
from tenure.worker.post import ENOUGH, Post, post_of
from tenure.worker.processes import Processes
from tenure.worker.run import Run, attempt, attempt_in_thread, start_task
from tenure.worker.scheduler import Scheduler
from tenure.worker.settling import begin_settling
from tenure.worker.suspects import Suspects, is_suspect
from tenure.worker.unknown_kind import KnownUnknowns

log = logging.getLogger("tenure.worker")

T = TypeVar("T")

MaxJobs = Annotated[int, Meta(ge=1, le=10**12)]
LEASE = Bounds(10, MAX_SPAN_MS)  # ms; long enough to be renewed in time

AFTER_GRACE_SECONDS = 2.0  # how long handlers have to end once they are told to
LOOK_AHEAD_SECONDS = 0.05  # between two queries for what is due next


class Worker:
    """Runs jobs until it is stopped.

    lease: length of a lease in seconds. Leases are renewed while a handler runs, so this is only
    the time until the jobs of a dead worker are taken over. poll_interval: seconds between checks
    for new jobs if nothing wakes the worker. grace: seconds that running handlers get when the
    worker is stopped. burst: stop when nothing is ready. max_jobs: stop after this many jobs.
    schedule: also fire schedules and maintain the store.
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
        self.name: str = check_name("name", name or default_worker())
        self.queue = queue
        self.before_start: Callable[[], None] = lambda: None
        self.handled: int = 0
        self.admission: Admission = Admission(queue.settings.url, queue.clock)
        self._posts = list(posts)
        self._lease_ms = span_ms("lease", lease, LEASE)
        self._poll_interval = span_ms("poll_interval", poll_interval, POSITIVE_SPAN) / 1000
        self._grace = span_ms("grace", grace) / 1000
        self._burst = burst
        self._left: int | None = check("max_jobs", max_jobs, MaxJobs | None)
        self._asked_for = 0  # jobs requested by claims in progress
        self._payload_limit = queue.settings.payload_limit
        self._stopping = False
        self._serving: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._keeper = Keeper(
            queue,
            self._lease_ms / 1000,
            self.running,
            self._overdue,
            self._untold,
        )
        self._beats = Beats(queue, self.name, self._posts, self.running)
        self._scheduler = (
            Scheduler(queue, self.name, must_wait=lambda: self._keeper.was_suspended)
            if schedule
            else None
        )
        self._processes = Processes(queue.settings)
        self._threads = Threads()
        # Not asyncio's default executor, which handlers may keep busy.
        self._aside = ThreadPoolExecutor(thread_name_prefix="tenure-worker")
        self._from_threads: deque[tuple[Post, Run, Op | None]] = deque()
        self._collecting = False
        self._marks = Marks()
        self._stop_settling: Callable[[], object] = lambda: None
        self._suspects = Suspects(self._posts, queue.clock, self._start, self._release)
        self._unknown = KnownUnknowns(queue.settings.unknown_kind)
        self._outage = Outage(log, queue.settings)
        self._no_claims = Outage(log)
        self._job_log = JobLog(queue.clock)
        self._kept = KeptOutcomes(
            queue, self._posts, self._job_log, lambda post: self._soon(post.wake)
        )
        self._commits = Commits(queue, self.admission, self._outage)
        self._apart = Apart(queue, self._commits, self._kept.note)
        self._unlisten: Callable[[], None] = lambda: None

    def register(self, handler: Handler) -> None:
        """Let a Handler handle its queue."""
        if self._serving:
            raise InvalidInput("handler", "register it before the worker is started")
        if any(handler.queue in post.queues for post in self._posts):
            raise InvalidInput("queue", f"{handler.queue!r} already has tasks or another Handler")
        self._posts.append(post_of(handler))

    # Starting and stopping ----------------------------------------------------------------------

    async def start(self) -> None:
        """Start claiming and running jobs."""
        if self._serving:
            raise InvalidInput("worker", "was started before; create a new one")
        if not self._posts:
            raise InvalidInput("worker", "there is nothing to run: no task and no Handler")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        first = partial(self._in_thread, self.before_start)
        await self.admission.prepare(first, self._outage, lambda: self._stopping)
        self._marks = Marks.of(self.queue.settings, sum(post.concurrency for post in self._posts))
        self._stop_settling = await begin_settling(self.queue)
        self._unlisten = self.queue.changes.listen(self._wake)
        self._keeper.start()
        if self._scheduler is not None:
            self._scheduler.start()
        for post in self._posts:
            post.can_split = store_of(self.queue).claims_at_once and post.is_large
        self._serving = [
            asyncio.create_task(self._serve(post, work), name=f"tenure {', '.join(post.queues)}")
            for post in self._posts
            for work in (self._work, *[self._work_beside] * post.can_split)
        ]
        log.info(
            "worker %s works on %s in %s",
            self.name,
            "; ".join(f"{', '.join(p.queues)} ({p.concurrency} at once)" for p in self._posts),
            without_secrets(self.queue.settings.url),
        )

    async def wait(self) -> None:
        """Wait until the worker is stopped, or has ended by itself because of burst or max_jobs."""
        if self._serving:  # not gather(), which cancels them if the caller is cancelled
            await asyncio.wait(self._serving, return_when=asyncio.FIRST_EXCEPTION)
            self._raise_task_error()

    async def run(self) -> None:
        """Start, wait, and stop."""
        await self.start()
        try:
            await self.wait()
        finally:
            await self.stop()

    @property
    def patience(self) -> float:
        """Seconds within which stop() gives every job back, unless the event loop is blocked."""
        return self._grace + 2 * AFTER_GRACE_SECONDS

    def stop_soon(self) -> None:
        """Claim no more jobs. Must be called in the worker's event loop."""
        self._stopping = True
        self._suspects.release_all()
        for post in self._posts:
            post.wake()

    async def stop(self, grace: Seconds | None = None) -> None:
        """Claim no more jobs, let running ones end within the grace time, and give the rest back.
        Attempts that are given back do not count."""
        self.stop_soon()
        seconds = self._grace if grace is None else span_ms("grace", grace) / 1000
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=seconds)
            if (late or self.running() or self._untold()) and self._closing is None:
                await self._give_back()
        if self._closing is None:  # every caller of stop() waits for the same closing
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)
        self._raise_task_error()

    async def _close(self) -> None:
        self._unlisten()
        self._stop_settling()
        if self._scheduler is not None:
            await self._in_thread(self._scheduler.stop)
        if self._serving:
            await self._in_thread(self._keeper.stop)
            self._kept.stop()
            await self._in_thread(self._beats.stop)
            self._threads.close()
            await self._in_thread(self._processes.close)
        self._marks.close()
        self._aside.shutdown(wait=False)
        if self._serving:
            told = counted(self.handled, "job")
            log.info("worker %s has stopped; it handled %s", self.name, told)

    def _raise_task_error(self) -> None:
        for task in self._serving:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._aside, call, *args)

    async def _give_back(self) -> None:
        """Stop the handlers that still run after the grace time, and give their jobs back."""
        running = self.running()
        if running:
            log.warning("did not end in time: %s, given back", counted(len(running), "job"))
        for run in running:
            run.stop("stop")
        _, late = await asyncio.wait(self._serving, timeout=AFTER_GRACE_SECONDS)
        if late or self.running() or self._untold():
            await self._in_thread(self._give_up)
            await asyncio.wait(self._serving, timeout=AFTER_GRACE_SECONDS)
            say_unstored(self._untold())
            for task in self._serving:
                task.cancel()
            self._apart.cancel()

    def give_up(self) -> None:
        """Report what has ended and give the rest back at once, whether or not their handlers have
        ended. Can be called from any thread."""
        self._give_up()
        self._kept.wait(AFTER_GRACE_SECONDS)
        say_unstored(self._untold())

    def _give_up(self) -> None:
        """Send each outcome once more, without waiting for those that failed before."""
        batch: list[tuple[Post, Op]] = []
        for post in self._posts:
            batch += [(post, op) for op in post.take()]
            ended = [run for run in post.runs.copy().values() if run.end()]
            for run in ended:
                self._marks.leave(run.mark)
            batch += [(post, run.came_to or ops.Release(run.job.id, run.token)) for run in ended]
        try:
            answers: Sequence[Answer] = store_of(self.queue).do([op for _, op in batch])
        except Exception as error:
            answers = [as_store_error(error)] * len(batch)
        for (post, op), answer in zip(batch, answers, strict=True):
            self._kept.note(post, [op], [answer])
        self._kept.hurry()
        for post in self._posts:
            self._soon(post.wake)

    def running(self) -> list[Run]:
        """The running jobs. Can be called from any thread."""
        return [run for post in self._posts for run in post.runs.copy().values() if not run.ended]

    def _untold(self) -> list[Lease]:
        return [lease for post in self._posts for lease in post.unstored]

    # Serving ------------------------------------------------------------------------------------

    async def _serve(self, post: Post, work: Callable[[Post], Awaitable[None]]) -> None:
        try:
            await work(post)
        except NotAllowed:
            raise  # the message is enough
        except Exception:
            log.exception("worker %s can no longer work on %s", self.name, ", ".join(post.queues))
            raise
        finally:
            for other in self._posts:
                other.wake()  # one that waits for this may end: in burst mode all end together

    async def _work(self, post: Post) -> None:
        """Report outcomes and claim new jobs, in one commit, and start them."""
        while True:
            room = self._room(post)
            if post.to_tell and not room and self._apart.is_held_up(post):
                room = 0 if self._stopping else self._most(post)
            if room or post.to_tell or post.reports:
                await self._exchange(post, room)
            elif self._is_over(post):
                break
            else:
                await self._stand_by(post)

    async def _work_beside(self, post: Post) -> None:
        """While one batch is committed, commit a second one, if there is enough to do."""
        while not (self._stopping or self._left == 0):
            room = self._most(post) if post.split and post.telling else 0
            if room >= ENOUGH:
                await self._exchange(post, room, beside=True)
                post.changed.set()
            else:
                await post.for_second.wait(None)

    def _room(self, post: Post) -> int:
        """How many jobs to claim now."""
        return self._most(post) if post.look and not self._stopping else 0

    def _most(self, post: Post) -> int:
        if self._suspects.hold:
            return 0
        return post.room if self._left is None else min(post.room, self._left - self._asked_for)

    def _is_over(self, post: Post) -> bool:
        if self._burst and not any(
            p.look or p.busy or p.to_tell or p.is_telling or p.kept for p in self._posts
        ):
            self.stop_soon()  # all posts end together, even if new jobs arrive now
        idle = not post.busy and not post.kept and not post.is_telling
        # A suspect that waits may be released, and leave its place to a job of another post.
        return (self._stopping or (self._left == 0 and not self._suspects.hold)) and idle

    async def _idle_seconds(self, post: Post) -> float | None:
        """How long to wait if nothing happens: until something is due, or until the next poll."""
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
            self._outage.goes_on(f"worker {self.name} could not look ahead", error)
            return longest
        except Exception:
            log.exception("worker %s could not look ahead", self.name)
            return longest
        return longest if due is None else min(max(due - clock.now_ms(), 1) / 1000, longest)

    async def _stand_by(self, post: Post) -> None:
        """Wait until something happens. While nothing runs, leave a standing claim, so that a job
        enqueued in this process is stored and claimed in one commit."""
        seconds = await self._idle_seconds(post)
        room = post.room
        busy = post.look or post.runs or not room or self._suspects.hold
        if self._stopping or busy or self._left is not None:
            if not await post.changed.wait(seconds):
                post.look = True
            return
        claim = ops.Claim(post.next_order(), self.name, self._lease_ms, room)
        store = store_of(self.queue)
        standing = store.stand(claim)
        standing.on_answer(post.changed.set)
        try:
            if not await post.changed.wait(seconds):
                post.look = True
        except BaseException:
            found = await store.withdraw(standing)
            post.to_tell += [ops.Release(job.id, job.token) for job in found]
            raise
        if found := await store.withdraw(standing):
            self._begin(post, found, room, standing.taken_at)

    async def _exchange(self, post: Post, room: int, beside: bool = False) -> None:
        batch: list[Op] = []
        post.telling = [*post.telling, batch]  # not in place: other threads read it
        self._asked_for += room  # at once: a second batch must know it
        post.asked += room
        try:
            if room and self._keeper.was_suspended:
                await self._renew_first()
            batch += post.take()
            self._apart.take(post, batch, claims=room > 0)
            if room:
                post.look = False  # set again by jobs that arrive from here on
                batch.append(ops.Claim(post.next_order(), self.name, self._lease_ms, room))
            if not batch:
                return
            answers, sent_at = await self._commits.commit(batch, beside)
        except BaseException:
            post.to_tell += [op for op in batch if not isinstance(op, ops.Claim | ops.Progress)]
            raise
        finally:
            post.telling = [other for other in post.telling if other is not batch]
            self._asked_for -= room
            post.asked -= room
        self._kept.note(post, batch, answers)  # first: the worker may have to end
        if room:
            self._claimed(post, answers[-1], room, sent_at)
        if room and self._left is not None:
            for other in self._posts:
                other.wake()  # max_jobs may leave it some

    def _claimed(self, post: Post, answer: Answer, room: int, sent_at: float) -> None:
        if isinstance(answer, ops.Leased):
            self.admission.accept()
            self._no_claims.is_over()
            self._beats.begin()
            self._begin(post, answer.jobs, room, sent_at)
        elif isinstance(answer, NotAllowed):
            self.admission.refuse(answer)
        else:
            assert isinstance(answer, TenureError)
            self._no_claims.goes_on(f"worker {self.name} could not claim jobs", answer)

    async def _renew_first(self) -> None:
        """Renew leases before claiming, because after the process was suspended, our own claim
        could take over our own jobs."""
        try:
            await self._in_thread(self._keeper.look)
        except Exception as error:
            log.warning("leases could not be renewed: %s", error)

    # Running ------------------------------------------------------------------------------------

    def _begin(self, post: Post, jobs: list[Job], room: int, sent_at: float) -> None:
        post.found(jobs, room)
        # The time that the claim took, or that the loop was blocked, counts against the lease.
        # Measure it with our own clock; the store's may differ.
        now = self.queue.clock.monotonic()
        too_late = jobs and now - sent_at > self._lease_ms / 1000 * 2 / 3
        if self._stopping or too_late:
            if too_late:
                log.warning("claimed too long ago: %s, given back", counted(len(jobs), "job"))
            post.to_tell += [ops.Release(job.id, job.token) for job in jobs]
            return
        report = partial(self._report, post)
        begun: list[Run] = []
        for job in jobs:
            handler = post.handler_of(job)
            if handler is None:
                post.to_tell.append(self._unknown.leave(job, self._job_log))
                continue
            if self._left is not None:
                self._left -= 1
            run = Run(job, handler, self.queue, report, sent_at, now)
            post.runs[id(run)] = run
            begun.append(run)
        self._marks.claim(begun)
        for run in begun:  # when the leases of all of them are kept
            if run.job.errors and run.handler.place != "process" and is_suspect(run.job):
                self._suspects.add(post, run)
            else:
                self._start(post, run)

    def _release(self, post: Post, run: Run, delay_ms: int) -> None:
        """Give a job back whose handler was not started."""
        del post.runs[id(run)]
        self._marks.free(run.mark)
        if run.end() and run.reason != "lost":
            post.to_tell.append(ops.Release(run.job.id, run.token, delay_ms))
        if self._left is not None:
            self._left += 1
        post.wake()

    def _start(self, post: Post, run: Run) -> None:
        timeout_ms = run.job.timeout_ms
        if timeout_ms is not None:
            run.deadline = self.queue.clock.monotonic() + timeout_ms / 1000
            run.timer = self._loop.call_later(timeout_ms / 1000, run.stop, "timeout")
            self._keeper.watch(run.deadline)
        if run.handler.place == "loop":
            start_task(self._loop, self._attempt(post, run))
        else:
            self._threads.submit(partial(self._attempt_in_thread, post, run))

    async def _attempt(self, post: Post, run: Run) -> None:
        self._marks.start(run.mark)
        self._finish(post, run, await attempt(run, self._payload_limit))

    def _attempt_in_thread(self, post: Post, run: Run) -> None:
        try:
            if run.handler.place == "process":  # it may run on for a moment after we have died
                self._marks.leave(run.mark)
                op = self._processes.attempt(run)
            else:
                self._marks.start(run.mark)
                op = attempt_in_thread(run, self._payload_limit)
        except BaseException as error:  # not raised by the handler, but by the code that runs it
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
        """Finish the runs that have ended in threads since the last call."""
        self._collecting = False
        while self._from_threads:
            self._finish(*self._from_threads.popleft())

    def _finish(self, post: Post, run: Run, op: Op | None) -> None:
        if run.timer is not None:
            run.timer.cancel()
        del post.runs[id(run)]
        self._marks.free(run.mark)
        if self._suspects.alone is run:
            self._suspects.ended()
        self.handled += 1
        if run.end() and op is not None:
            post.to_tell.append(op)
            if self._job_log.tells(op):
                self._job_log.expect(self._ended(run))
        post.wake()

    def _overdue(self, run: Run) -> None:
        """Give up on a handler that does not end after its timeout. Called in the keeper's
        thread."""
        if not run.end():
            return
        named = (run.job.id, run.handler.name)
        log.warning(
            "job %s (%s) does not end after its timeout: it is given up, and what it runs is left "
            "behind",
            *named,
            extra=about(run.job),
        )
        op = after_timeout(run.job, run.handler.rules)
        self._job_log.expect(self._ended(run))
        (post,) = [post for post in self._posts if id(run) in post.runs] or self._posts[:1]
        self._kept.send(post, op)

    def _ended(self, run: Run) -> Ended:
        seconds = self.queue.clock.monotonic() - run.began
        return Ended(run.job, run.handler.name, run.error, seconds)

    def _report(self, post: Post, run: CurrentJob, percent: int, note: str | None) -> None:
        add = partial(post.report, id(run), ops.Progress(run.job.id, run.token, percent, note))
        if threading.get_ident() == self._thread:
            add()  # now: the task may return without yielding to the loop again
        else:
            self._soon(add)

    def _wake(self, queues: Collection[str] | None) -> None:
        """Note that jobs of these queues may be ready. Can be called from any thread."""
        for post in self._posts:
            if not post.look and (queues is None or not set(queues).isdisjoint(post.queues)):
                post.look = True
                self._soon(post.wake)

    def _soon(self, call: Callable[[], object]) -> None:
        """Run `call` in the event loop. Can be called from any thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(call)
