"""What somebody found who tried to lose a job, to run one twice, or to keep a worker from ending.

Each test is the shortest way to a mistake that was there once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.model import ops, queries
from tenure.model.job import Job
from tenure.model.ops import Op
from tenure.queue import store_of
from tenure.testing import ManualClock
from tenure.worker import run as run_module
from tenure.worker.handler import HandlerSpec, Place
from tenure.worker.handler_threads import Threads
from tenure.worker.post import Post
from tenure.worker.run import AGAIN, Run, attempt_in_thread
from tenure.worker.scheduler import Scheduler
from tenure.worker.worker import Worker
from tests.crash.watched import PATIENCE, Watched, opened, start, until
from tests.support.sizes import let
from tests.workers import errands

SOON = 5.0  # seconds; what takes longer does not happen at all


@pytest.fixture
def engine() -> Watched:
    return Watched(MemoryEngine(SystemClock(), 1000))


@pytest.fixture
def queue(engine: Watched) -> Iterator[tenure.Queue]:
    with opened(engine) as queue:
        yield queue
        engine.let_all()


def post(
    name: str, call: Callable[[Job], Any], place: Place = "loop", concurrency: int = 5
) -> Post:
    return Post([name], concurrency, {}, default=HandlerSpec(call, place, name), poll_interval=0.02)


def worker_of(queue: tenure.Queue, *posts: Post, **options: Any) -> Worker:
    return Worker(queue, posts, schedule=False, **options)


async def nothing(job: Job) -> None:
    """What most jobs of these tests do."""


async def within(seconds: float, work: Coroutine[Any, Any, object]) -> None:
    """Fail if it takes longer, rather than wait for it to be cancelled."""
    task = asyncio.ensure_future(work)
    _, late = await asyncio.wait([task], timeout=seconds)
    assert not late, "it does not end"
    task.result()


async def seen(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


def as_it_was(queue: tenure.Queue, job: tenure.Job) -> bool:
    found = queue.get(job.id)
    return (found.state, found.attempts) == ("pending", 0)


# So many jobs, and no more ----------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3])
def test_two_posts_together_do_no_more_than_max_jobs(queue: tenure.Queue, most: int) -> None:
    """Each has room for all that is left."""
    for name in ("a", "b"):
        queue.enqueue_many([tenure.NewJob(queue=name) for _ in range(10)])
    worker = worker_of(queue, post("a", nothing), post("b", nothing), max_jobs=most)
    asyncio.run(within(SOON, worker.run()))
    found = queue.stats()
    assert (found.done, found.leased, found.ready) == (most, 0, 20 - most)


def test_a_post_goes_on_though_another_had_asked_for_all_that_is_left(
    engine: Watched, queue: tenure.Queue
) -> None:
    """The other one's claim finds nothing."""
    queue.enqueue_many([tenure.NewJob(queue="b") for _ in range(10)])
    worker = worker_of(queue, post("a", nothing), post("b", nothing), max_jobs=6)
    asyncio.run(within(SOON, worker.run()))
    assert queue.stats("b").done == 6


# A burst ----------------------------------------------------------------------------------------


def test_a_burst_does_not_end_while_a_result_is_on_its_way(
    engine: Watched, queue: tenure.Queue
) -> None:
    """The post of the child asks whether all is over when the parent has ended, and the store
    does not know it yet."""
    parent = queue.enqueue("a")
    child = queue.enqueue("b", after=[parent])
    began, go_on = threading.Event(), asyncio.Event()
    answered: list[str] = []

    async def first(job: Job) -> None:
        began.set()
        await go_on.wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def before(batch: Sequence[Op]) -> None:
            claims = [op.queues for op in batch if isinstance(op, ops.Claim)]
            if claims == [("b",)] and began.is_set() and not answered:
                answered.append("b")  # it will find nothing
                loop.call_soon_threadsafe(go_on.set)
                until(lambda: store_of(queue).committer._waiting > 0)  # the result of the parent
            elif any(isinstance(op, ops.Ack) for op in batch):
                time.sleep(0.2)  # plenty for the other post to believe that all is over

        engine.before = before
        posts = post("a", first, concurrency=1), post("b", nothing)
        await within(SOON, worker_of(queue, *posts, burst=True).run())

    asyncio.run(main())
    assert queue.get(child.id).state == "done"


def test_a_burst_ends_though_something_stirs_when_the_first_post_has_ended(
    queue: tenure.Queue,
) -> None:
    """Another process has enqueued something for it."""
    worker = worker_of(queue, post("a", nothing), post("b", nothing), burst=True)
    work = worker._work

    async def work_and_stir(one: Post) -> None:
        await work(one)
        one.look = True

    worker._work = work_and_stir  # type: ignore[method-assign,assignment]
    asyncio.run(within(SOON, worker.run()))


# Cancelled from outside -------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["loop", "thread"])
def test_a_program_that_is_interrupted_gives_its_jobs_back(
    queue: tenure.Queue, place: Place
) -> None:
    """What asyncio.run() does on Ctrl-C: it cancels the task that runs the worker."""
    job = queue.enqueue("mail")
    began = threading.Event()

    async def in_loop(job: Job) -> None:
        began.set()
        await asyncio.sleep(60)

    def in_thread(job: Job) -> None:
        began.set()
        for _ in range(6000):
            time.sleep(0.01)

    call = in_loop if place == "loop" else in_thread

    async def main() -> None:
        running = asyncio.ensure_future(
            worker_of(queue, post("mail", call, place), grace=0.05).run()
        )
        await seen(began.is_set)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert as_it_was(queue, job)

    asyncio.run(main())


def test_a_program_that_is_interrupted_lets_its_jobs_end_within_the_grace_time(
    queue: tenure.Queue,
) -> None:
    job = queue.enqueue("mail")
    began = threading.Event()

    async def work(job: Job) -> None:
        began.set()
        await asyncio.sleep(0.1)

    async def main() -> None:
        running = asyncio.ensure_future(worker_of(queue, post("mail", work)).run())
        await seen(began.is_set)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert queue.get(job.id).state == "done"

    asyncio.run(main())


class Failing(Post):
    """Cannot go on once it has begun something."""

    def next_order(self) -> tuple[str, ...]:
        if self.runs:
            raise MemoryError("as told")
        return super().next_order()


def test_jobs_of_a_post_that_can_no_longer_work_are_given_back(queue: tenure.Queue) -> None:
    job = queue.enqueue("mail")

    async def work(job: Job) -> None:
        await asyncio.sleep(60)

    failing = Failing(
        ["mail"], 5, {}, default=HandlerSpec(work, "loop", "mail"), poll_interval=0.02
    )
    worker = worker_of(queue, failing, grace=0.05)
    with pytest.raises(MemoryError, match="as told"):
        asyncio.run(within(SOON, worker.run()))
    assert as_it_was(queue, job)


def test_a_runner_can_be_stopped_by_several_at_once(queue: tenure.Queue) -> None:
    """By whoever runs it, and by whoever told it to stop; and once more, for good measure."""
    job = queue.enqueue("mail")
    began = threading.Event()

    async def work(job: Job) -> None:
        began.set()
        await asyncio.sleep(0.05)

    async def main() -> None:
        worker = worker_of(queue, post("mail", work))
        running = asyncio.ensure_future(worker.run())
        await seen(began.is_set)
        await asyncio.gather(worker.stop(), worker.stop(), running)
        await worker.stop()

    asyncio.run(main())
    assert queue.get(job.id).state == "done"


def test_a_job_can_stop_the_runner_that_runs_it(queue: tenure.Queue) -> None:
    job = queue.enqueue("mail")

    async def main() -> None:
        async def work(job: Job) -> None:
            await worker.stop(grace=0.05)

        worker = worker_of(queue, post("mail", work))
        await within(SOON, worker.run())
        assert as_it_was(queue, job)

    asyncio.run(main())


def test_nothing_is_left_when_a_runner_has_stopped(queue: tenure.Queue) -> None:
    """No thread, no task, no listener."""

    def plain(job: Job) -> None:
        """In a thread."""

    async def main() -> None:
        for name in ("loop", "thread"):
            queue.enqueue_many([tenure.NewJob(queue=name) for _ in range(20)])
        worker = Worker(queue, [post("loop", nothing), post("thread", plain, "thread")])
        await worker.start()
        await seen(lambda: queue.stats().unfinished == 0)
        await worker.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before = set(threading.enumerate())
    asyncio.run(main())
    until(lambda: [one for one in set(threading.enumerate()) - before if _is_of(one)] == [])
    assert queue.changes._listeners == ()


def _is_of(thread: threading.Thread) -> bool:
    """Of a worker; a committer belongs to the queue."""
    return thread.name.startswith("tenure-") and thread.name != "tenure-committer"


# Leases that run out ----------------------------------------------------------------------------


def test_a_job_that_was_claimed_before_the_loop_was_blocked_is_not_run_on_an_ended_lease(
    engine: Watched, queue: tenure.Queue
) -> None:
    """Another worker has it by then."""
    lease = 0.2
    ran: list[str] = []
    got: list[str] = []
    go_on = asyncio.Event()
    first = queue.enqueue("mail")

    async def work(job: Job) -> None:
        ran.append(job.id)
        if job.id == first.id:
            await go_on.wait()
            time.sleep(5 * lease)

    ours_has_it = threading.Event()

    def rival() -> None:
        ours_has_it.wait(PATIENCE)
        while "done" not in got:
            got.extend(job.id for job in queue.claim("mail", lease=60))
            time.sleep(0.01)

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def after(batch: Sequence[Op]) -> None:
            found = engine.inner.read(queries.GetJob(second))
            ours = any(isinstance(op, ops.Claim) and op.worker == "ours" for op in batch)
            if ours and isinstance(found, Job) and found.state == "leased":
                loop.call_soon_threadsafe(go_on.set)  # before the answer comes
                ours_has_it.set()

        worker = worker_of(queue, post("mail", work), lease=lease, name="ours")
        await worker.start()
        await seen(lambda: ran == [first.id])
        engine.after = after
        claims = start(rival)
        queue.enqueue("mail", id=second)
        await seen(lambda: queue.get(first.id).state == "done")
        await worker.stop()
        got.append("done")
        claims.result(PATIENCE)

    second = "second"
    asyncio.run(main())
    assert got.count(second) + ran.count(second) == 1
    assert ran.count(first.id) == 1


def test_jobs_keep_their_leases_though_others_cannot_be_given_up(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that hang past their timeout were cancelled by an operator meanwhile."""
    let(monkeypatch, seconds_until_a_renewal_is_overdue=0.0)
    lease, end = 1.0, threading.Event()
    queue.enqueue_many([tenure.NewJob(queue="hung", timeout=0.05) for _ in range(6)])
    ran: list[str] = []

    def hang(job: Job) -> None:
        ran.append(job.id)
        end.wait(PATIENCE)

    async def work(job: Job) -> None:
        ran.append(job.id)
        await asyncio.sleep(5 * lease)

    async def main() -> None:
        posts = post("hung", hang, "thread", 6), post("mail", work)
        worker = worker_of(queue, *posts, lease=lease, grace=0)
        monkeypatch.setattr(queue, "fail", refuse)
        await worker.start()
        healthy = queue.enqueue("mail")
        await seen(lambda: len(ran) == 7)
        while (now := queue.get(healthy.id)).state != "done":
            assert now.state == "leased", now.errors
            assert queue.claim("mail") == []
            await asyncio.sleep(0.01)
        end.set()
        await worker.stop()

    def refuse(job: Job, error: object) -> None:
        raise tenure.LeaseLost(job.id, "cancelled")

    asyncio.run(main())
    assert len(ran) == 7


# Threads that others hold -----------------------------------------------------------------------


def test_a_task_that_holds_the_threads_of_asyncio_holds_up_nobody_else(
    queue: tenure.Queue,
) -> None:
    """Neither the results of others, nor the end."""
    end = threading.Event()

    async def work(job: Job) -> None:
        if job.payload == "hold":
            await asyncio.to_thread(end.wait, PATIENCE)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        worker = worker_of(queue, post("mail", work), grace=0.05)
        await worker.start()
        holding = queue.enqueue("mail", "hold")
        await seen(lambda: queue.get(holding.id).state == "leased")
        for n in range(1, 4):
            queue.enqueue("mail")
            await seen(partial(lambda n: queue.stats("mail").done == n, n))
            await asyncio.sleep(0.06)  # it looks ahead again
        try:
            await within(SOON, worker.stop())
            assert as_it_was(queue, holding)
        finally:
            end.set()

    asyncio.run(main())


def test_a_thread_that_cannot_be_had_loses_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, go_on = Threads(), threading.Event()
    called: list[int] = []

    def first() -> None:
        go_on.wait(PATIENCE)
        called.append(1)

    threads.submit(first)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        threads.submit(lambda: called.append(2))
    go_on.set()
    until(lambda: called == [1, 2])
    threads.close()


# Told to end too early, or too late -------------------------------------------------------------


def run_of(queue: tenure.Queue, call: Callable[[Job], Any]) -> Run:
    queue.enqueue("mail")
    (job,) = queue.claim("mail")
    return Run(job, HandlerSpec(call, "thread", "mail"), queue, lambda *_: None, 0.0)


def test_a_plain_function_that_is_told_to_end_before_it_began_is_given_back(
    queue: tenure.Queue,
) -> None:
    run = run_of(queue, lambda job: time.sleep(0.01))
    run.stop("stop")
    assert attempt_in_thread(run, 1000) == ops.Release(run.job.id, run.token)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_is_ignored_comes_again(queue: tenure.Queue) -> None:
    """Python ignores an exception inside a finalizer, and prints it."""
    finalizing = threading.Event()

    class Slow:
        def __del__(self) -> None:
            finalizing.set()
            while run.reason is None:
                pass
            for _ in range(50):  # long enough for the first interrupt
                time.sleep(0.01)

    def work(job: Job) -> None:
        Slow()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            time.sleep(0.01)

    run = run_of(queue, work)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(attempt_in_thread, run, 1000)
        finalizing.wait(PATIENCE)
        run.stop("stop")
        assert answer.result() == ops.Release(run.job.id, run.token)


def test_a_function_that_is_interrupted_can_clean_up(queue: tenure.Queue) -> None:
    """It is interrupted once, as long as it has not put the exception aside."""
    began, cleaned = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        try:
            began.set()
            while True:
                time.sleep(0.01)
        finally:
            try:
                int("an error on the way")
            except ValueError:
                time.sleep(AGAIN + 0.5)
                cleaned.set()

    run = run_of(queue, work)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(attempt_in_thread, run, 1000)
        began.wait(PATIENCE)
        run.stop("stop")
        assert answer.result(PATIENCE) == ops.Release(run.job.id, run.token)
    assert cleaned.is_set()


# A collection of garbage may run the callbacks of others, such as Hypothesis; see above.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_comes_at_any_moment_leaves_the_thread_whole(
    queue: tenure.Queue,
) -> None:
    """Before the function, inside of it, or after it: never in what the thread does next."""
    rounds, threads = 300, Threads()
    answers: list[object] = []

    def work(job: Job) -> None:
        for _ in range(50):
            pass

    def one(run: Run, began: threading.Event) -> None:
        began.set()
        answers.append(attempt_in_thread(run, 1000))

    for n in range(rounds):
        run, began = run_of(queue, work), threading.Event()
        threads.submit(lambda run=run, began=began: one(run, began))  # type: ignore[misc]
        began.wait(PATIENCE)
        for _ in range(n % 30 * 10):
            pass
        run.stop("stop")
        until(lambda: len(answers) == n + 1)  # noqa: B023
    assert {type(answer) for answer in answers} <= {ops.Release, ops.Ack}
    threads.close()


def test_a_plain_function_that_is_interrupted_leaves_no_lock_behind(
    queue: tenure.Queue, tmp_path: Path
) -> None:
    """Many log at once, so that most of them wait for the lock when they are told to end."""
    log = logging.getLogger("tests.workers.busy")
    handler = logging.FileHandler(tmp_path / "log")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # what is left locked here shall hold up nobody else

    def work(job: Job) -> None:
        while True:
            for _ in range(20):
                log.info("still at it")
            time.sleep(0.001)

    new = tenure.NewJob(queue="mail", timeout=0.02, max_attempts=1)
    queue.enqueue_many([new] * 60)
    worker = worker_of(queue, post("mail", work, "thread", 10), max_jobs=60)
    asyncio.run(within(PATIENCE, worker.run()))
    assert queue.stats("mail").dead == 60
    log.removeHandler(handler)
    handler.close()


# As if a function had taken a lock without `with`, as logging does.
LOCKING = """
def locking():
    entered.set()
    leave.wait()
"""


def test_an_interrupt_is_taken_back_if_the_function_has_entered_code_that_takes_locks(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function moves on after the look at it and before the interrupt."""
    moves_on, entered, leave = threading.Event(), threading.Event(), threading.Event()
    space: dict[str, Any] = {"__name__": "logging", "entered": entered, "leave": leave}
    exec(LOCKING, space)
    look, after_it, hit = run_module._holds_no_lock, list[bool](), list[BaseException]()

    def slowly(thread: int) -> bool:
        found = look(thread)
        if entered.is_set():
            after_it.append(found)
            if len(after_it) > 1:  # what the first look led to has been done by now
                leave.set()
        elif found:
            moves_on.set()
            assert entered.wait(PATIENCE)
        return found

    def work(job: Job) -> None:
        while not moves_on.is_set():
            time.sleep(0.001)
        try:
            space["locking"]()
        except BaseException as error:
            hit.append(error)
            raise
        while True:
            time.sleep(0.001)

    monkeypatch.setattr(run_module, "_holds_no_lock", slowly)
    queue.enqueue_many([tenure.NewJob(queue="mail", timeout=0.02, max_attempts=1)])
    worker = worker_of(queue, post("mail", work, "thread", 1), max_jobs=1)
    asyncio.run(within(PATIENCE, worker.run()))
    assert hit == []
    assert queue.stats("mail").dead == 1


# What took too long -----------------------------------------------------------------------------


class Late(SystemClock):
    """A clock that a test sets forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def test_jobs_whose_claim_took_most_of_the_lease_are_given_back_and_not_begun(
    engine: Watched,
) -> None:
    """Another worker may have them before these leases are renewed."""
    clock, begun = Late(), list[int]()
    with tenure.Queue(engine, tenure.Settings(), clock) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(3)])
        stale: list[int] = []

        def takes_long(batch: Sequence[Op]) -> None:
            if not stale and any(isinstance(op, ops.Claim) for op in batch):
                stale.extend(job.token for job in queue.jobs(state="leased").jobs)
                clock.ahead += 25

        async def work(job: Job) -> None:
            begun.append(job.token)

        engine.after = takes_long
        worker = worker_of(queue, post("mail", work), max_jobs=3, lease=30)
        asyncio.run(within(PATIENCE, worker.run()))
        assert len(stale) == len(begun) == 3
        assert not set(stale) & set(begun)
        done = queue.jobs(state="done").jobs
        assert [(job.attempts, job.token in begun) for job in done] == [(1, True)] * 3


# What one job leaves to the next ----------------------------------------------------------------


@pytest.mark.parametrize("task", [errands.remember_in_a_process, errands.remember_in_a_thread])
def test_what_a_task_sets_in_its_context_is_not_there_for_the_next(
    tmp_path: Path, task: tenure.Task[[], str]
) -> None:
    with tenure.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        ids = queue.enqueue_many([task.job() for _ in range(3)])
        worker = Worker(queue, errands.app.posts(concurrency=1), burst=True, schedule=False)
        asyncio.run(within(PATIENCE, worker.run()))
        assert [queue.get(id).result for id in ids] == ["nothing"] * 3


# Schedules --------------------------------------------------------------------------------------


@pytest.fixture
def timed() -> Iterator[tenure.Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        yield queue


def test_a_schedule_that_cannot_fire_does_not_hold_up_the_others(timed: tenure.Queue) -> None:
    """Its time zone is not known on this machine."""
    for name in ("a", "b"):
        timed.schedules.put(name, "* * * * *", tenure.NewJob(queue=name))
    (first, _) = timed.schedules.list()
    store_of(timed).do([ops.DropSchedule("a")])
    lost = tenure.Schedule("a", first.cron, first.job, first.next_at, tz="Atlantis/Poseidonis")
    store_of(timed).do([ops.PutSchedule(lost)])
    assert isinstance(timed.clock, ManualClock)
    timed.clock.advance(61)
    scheduler = Scheduler(timed, "me")
    with suppress(tenure.TenureError):
        scheduler.step()
    assert timed.stats("b").ready == 1


def test_a_schedule_whose_parent_is_gone_is_not_tried_without_rest(timed: tenure.Queue) -> None:
    parent = timed.enqueue("parents")
    timed.schedules.put("a", "* * * * *", tenure.NewJob(queue="a", after=[parent.id]))
    timed.delete(parent)
    assert isinstance(timed.clock, ManualClock)
    timed.clock.advance(61)
    assert Scheduler(timed, "me").step() > 0


def test_a_worker_that_was_suspended_renews_its_leases_before_it_maintains_the_store(
    timed: tenure.Queue,
) -> None:
    """Maintenance ends leases that have expired, also those of the worker itself."""
    timed.enqueue("mail")
    (job,) = timed.claim("mail", lease=1)
    assert isinstance(timed.clock, ManualClock)
    timed.clock.advance(3)
    suspended = True
    scheduler = Scheduler(timed, "me", must_wait=lambda: suspended)
    scheduler.step()
    timed.extend(job, 60)
    suspended = False
    scheduler.step()
    assert timed.get(job.id).state == "leased"
