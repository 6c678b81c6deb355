"""The worker: claims, runs, tells what became of it, and stops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tenure import (
    Handler,
    InvalidInput,
    Job,
    JobFailed,
    Queue,
    Settings,
    Snooze,
    State,
    Tenure,
    Worker,
    current_job,
    fixed,
)
from tenure.clock import SystemClock
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.worker.post import post_of
from tests.workers.conftest import PATIENCE, running, work_off


class Killmails(Handler):
    queue = "killmails"
    concurrency = 5
    poll_interval = 1.0
    seen: ClassVar[list[Any]] = []

    async def handle(self, payload: Any, job: Job) -> Any:
        self.seen.append((payload, job.kind))
        return len(payload)


class Plain(Handler):
    queue = "plain"

    def handle(self, payload: Any, job: Job) -> str:
        return threading.current_thread().name


def test_async_and_plain_functions_run_and_their_results_are_kept(app: Tenure) -> None:
    @app.task
    async def in_the_loop(n: int) -> str:
        return threading.current_thread().name

    @app.task
    def in_a_thread(n: int) -> str:
        return threading.current_thread().name

    handles = [in_the_loop.enqueue(1), in_a_thread.enqueue(1)]
    worker = work_off(app)
    results = [handle.result(timeout=0) for handle in handles]
    assert results[0] == "MainThread"
    assert results[1].startswith("tenure-worker-")
    assert worker.handled == 2


def test_jobs_that_are_claimed_together_share_neither_a_task_nor_a_context(app: Tenure) -> None:
    spoken: ContextVar[str] = ContextVar("spoken", default="nothing")
    tasks: set[asyncio.Task[Any] | None] = set()

    @app.task
    async def speak(word: str) -> str:
        tasks.add(asyncio.current_task())
        heard = spoken.get()
        spoken.set(word)
        return heard

    handles = [speak.enqueue(word) for word in ("a", "b", "c")]
    work_off(app)
    assert [handle.result(timeout=0) for handle in handles] == ["nothing"] * 3
    assert len(tasks) == 3


def test_the_leases_of_jobs_that_are_claimed_together_are_kept_while_the_first_one_blocks(
    app: Tenure,
) -> None:
    @app.task
    async def block() -> int:
        return len(worker.running())

    handles = [block.enqueue() for _ in range(3)]
    worker = app.worker(burst=True)
    asyncio.run(worker.run())
    assert [handle.result(timeout=0) for handle in handles] == [3, 2, 1]


def test_a_class_works_on_all_jobs_of_its_queue(app: Tenure) -> None:
    Killmails.seen.clear()
    app.register(Killmails())
    app.register(Plain())
    app.queue.enqueue("killmails", [1, 2], kind="process")
    app.queue.enqueue("killmails", [3], kind="fetch")
    plain = app.queue.enqueue("plain")
    work_off(app)
    assert sorted(Killmails.seen) == [([1, 2], "process"), ([3], "fetch")]
    assert app.queue.get(plain.id).result.startswith("tenure-worker-")


def test_a_runner_takes_workers_of_its_own(app: Tenure) -> None:
    async def main() -> None:
        worker = app.worker(burst=True)
        worker.register(Plain())
        with pytest.raises(InvalidInput, match="has tasks or another Handler"):
            worker.register(Plain())
        await worker.run()
        with pytest.raises(InvalidInput, match="before the worker is started"):
            worker.register(Killmails())

    job = app.queue.enqueue("plain")
    asyncio.run(main())
    assert app.queue.get(job.id).state is State.DONE


def test_a_worker_that_cannot_work_is_refused(app: Tenure) -> None:
    class Nothing(Handler):
        pass

    with pytest.raises(InvalidInput, match="must set the queue"):
        app.register(Nothing())
    app.register(Plain())
    with pytest.raises(InvalidInput, match="another Handler"):
        app.register(Plain())


def test_a_runner_with_nothing_to_do_says_so(app: Tenure) -> None:
    with pytest.raises(InvalidInput, match="no task and no Handler"):
        work_off(app)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"lease": 0},
        {"grace": -1},
        {"max_jobs": 0},
        {"poll_interval": 0},
        {"queues": "q"},
        {"name": "x" * 1000},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(app: Tenure, options: Any) -> None:
    app.task(test_a_runner_with_nothing_to_do_says_so)
    with pytest.raises(InvalidInput):
        app.worker(**options)


def test_no_more_run_at_once_than_may(app: Tenure) -> None:
    now, most = 0, 0

    @app.task
    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    work.enqueue_many([()] * 100)
    work_off(app, concurrency=7)
    assert most == 7


def test_the_queues_take_turns_unless_they_are_named(app: Tenure) -> None:
    order: list[str] = []
    for name in ("a", "b"):

        async def work(name: str) -> None:
            order.append(name)

        app.task(name=name, queue=name)(work).enqueue_many([(name,)] * 20)
    work_off(app, concurrency=1)
    assert "".join(order) != "a" * 20 + "b" * 20
    assert Counter(order) == {"a": 20, "b": 20}
    order.clear()
    for name in ("a", "b"):
        app.tasks[name].enqueue_many([(name,)] * 20)
    work_off(app, concurrency=1, queues=["b", "a"])
    assert "".join(order) == "b" * 20 + "a" * 20


def test_only_the_named_queues_are_worked_on(app: Tenure) -> None:
    for name in ("a", "b"):
        app.task(name=name, queue=name)(lambda: None).enqueue()
    work_off(app, queues=["b"])
    stats = app.queue.stats().queues
    assert (stats["a"].ready, stats["b"].done) == (1, 1)


def test_a_payload_that_does_not_fit_fails_its_job(app: Tenure) -> None:
    @app.task
    async def work(n: int) -> None: ...

    job = app.queue.enqueue("default", {"n": "x"}, kind="work", max_attempts=1)
    work_off(app)
    assert "the payload does not fit: Expected `int`" in str(app.queue.get(job.id).error)


def test_a_result_that_cannot_be_kept_fails_its_job(app: Tenure) -> None:
    @app.task(max_attempts=1)
    async def work() -> object:
        return object()

    handle = work.enqueue()
    work_off(app)
    with pytest.raises(JobFailed, match="result: is not JSON"):
        handle.result(timeout=0)


def test_max_jobs_is_exact(app: Tenure) -> None:
    task = app.task(name="work")(lambda: None)
    task.enqueue_many([()] * 10)
    worker = app.worker(max_jobs=7, concurrency=3)
    asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
    assert worker.handled == 7
    assert app.queue.stats().ready == 3


def test_a_burst_goes_on_with_what_its_jobs_make_ready(app: Tenure) -> None:
    app.register(Plain())

    @app.task
    async def first() -> None:
        await app.queue.aenqueue("plain", id="second", if_exists="skip")

    first.enqueue()
    app.chain(first.using(queue="default").job(), first.job(), first.job())
    work_off(app)
    assert app.queue.get("second").state is State.DONE
    assert app.queue.stats().unfinished == 0


def test_a_burst_does_not_wait_for_what_is_delayed(app: Tenure) -> None:
    task = app.task(name="work")(lambda: None)
    task.using(delay=60).enqueue()
    work_off(app)
    assert app.queue.stats().delayed == 1


def test_an_idle_runner_starts_a_new_job_at_once(app: Tenure) -> None:
    began: list[float] = []

    @app.task
    async def work() -> None:
        began.append(time.monotonic())

    async def main() -> None:
        async with running(app, poll_interval=60):
            for n in range(3):
                await work.aenqueue()
                async with asyncio.timeout(PATIENCE):
                    while len(began) <= n:
                        await asyncio.sleep(0.001)

    asyncio.run(main())


def test_a_delayed_job_starts_when_it_is_due_and_not_at_the_next_poll(app: Tenure) -> None:
    @app.task(backoff=fixed(0.05), max_attempts=2)
    async def work() -> int:
        if current_job().job.attempts == 1:
            raise ValueError
        return 1

    async def main() -> None:
        async with running(app, poll_interval=3600):
            handle = await work.using(delay=0.1).aenqueue()
            assert await handle.aresult(PATIENCE) == 1

    asyncio.run(main())


def test_a_snoozed_job_comes_back_with_its_attempt(app: Tenure) -> None:
    snoozes = 0

    @app.task(max_attempts=1)
    def work() -> Any:
        nonlocal snoozes
        snoozes += 1
        return Snooze(0.01) if snoozes < 4 else "done"

    async def main() -> None:
        async with running(app):
            handle = await work.aenqueue()
            assert await handle.aresult(PATIENCE) == "done"
            assert (await handle.ajob()).attempts == 1

    asyncio.run(main())


def test_progress_is_seen_while_the_job_runs(app: Tenure) -> None:
    going_on = threading.Event()

    @app.task
    def work() -> None:
        current_job().progress(30, "so far")
        assert going_on.wait(PATIENCE)

    async def main() -> None:
        async with running(app):
            handle = await work.aenqueue()
            async with asyncio.timeout(PATIENCE):
                while (await handle.ajob()).progress != 30:
                    await asyncio.sleep(0.005)
            assert (await handle.ajob()).note == "so far"
            going_on.set()
            await handle.aresult(PATIENCE)

    asyncio.run(main())


def test_the_last_words_of_a_task_are_heard(app: Tenure) -> None:
    @app.task
    async def in_the_loop() -> None:
        current_job().progress(100, "all of it")

    @app.task
    def in_a_thread() -> None:
        current_job().progress(100, "all of it")

    handles = [in_the_loop.enqueue(), in_a_thread.enqueue()]
    work_off(app)
    assert [handle.job().progress for handle in handles] == [100, 100]


def test_a_timeout_ends_what_runs_in_the_loop_and_in_a_thread(app: Tenure) -> None:
    ended: list[str] = []

    @app.task(timeout=0.05, max_attempts=1)
    async def in_the_loop() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append("loop")

    @app.task(timeout=0.05, max_attempts=1)
    def in_a_thread() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.append("thread")

    handles = [in_the_loop.enqueue(), in_a_thread.enqueue()]
    work_off(app)
    assert sorted(ended) == ["loop", "thread"]
    for handle in handles:
        with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.05 s"):
            handle.result(timeout=0)


def test_a_thread_that_was_interrupted_does_the_next_job(app: Tenure) -> None:
    @app.task(timeout=0.02, max_attempts=1)
    def long() -> None:
        while True:
            time.sleep(0.001)

    @app.task
    def short(n: int) -> int:
        return n

    for n in range(10):
        long.enqueue()
        short.enqueue(n)
    work_off(app, concurrency=1)
    stats = app.queue.stats()
    assert (stats.dead, stats.done) == (10, 10)


def test_one_that_waits_is_told_across_handles(app: Tenure) -> None:
    @app.task
    async def work() -> int:
        return 7

    def wait() -> None:
        with Tenure(app.queue.settings.url) as other:
            results.append(other.task(name="work")(work.function).enqueue().result(PATIENCE))

    results: list[int] = []

    async def main() -> None:
        async with running(app):
            await asyncio.to_thread(wait)

    asyncio.run(main())
    assert results == [7]


def test_a_lifespan_works_while_it_is_open(app: Tenure) -> None:
    @app.task
    async def work() -> int:
        return 7

    async def main() -> None:
        async with app.lifespan(object(), concurrency=2):
            assert await (await work.aenqueue()).aresult(PATIENCE) == 7

    asyncio.run(main())


def test_a_runner_that_was_stopped_leaves_no_threads(app: Tenure) -> None:
    app.task(name="work")(lambda: None).enqueue_many([()] * 50)
    app.queue.stats()
    asyncio.run(app.queue.aclaim("nothing"))  # the committer's thread stays with the handle
    before = threading.active_count()
    work_off(app)
    deadline = time.monotonic() + PATIENCE
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_what_one_runs_another_does_not(app: Tenure) -> None:
    runs: list[int] = []

    @app.task
    async def work(n: int) -> None:
        runs.append(n)
        await asyncio.sleep(0)

    work.enqueue_many([(n,) for n in range(500)])

    async def main() -> None:
        others = [Tenure(app.queue.settings.url) for _ in range(3)]
        for other in others:
            other.task(name="work")(work.function)
        await asyncio.gather(*(one.worker(burst=True).run() for one in [app, *others]))
        for other in others:
            other.close()

    asyncio.run(main())
    assert sorted(runs) == list(range(500))


class SkewedClock(SystemClock):
    """A clock that is wrong."""

    def __init__(self, seconds: float) -> None:
        self._ms = round(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._ms


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_worker_whose_clock_is_not_the_stores_works(seconds: float, tmp_path: Path) -> None:
    settings = Settings(url=f"sqlite:///{tmp_path}/jobs.db")
    engine = SqliteEngine(tmp_path / "jobs.db", settings, SkewedClock(seconds))
    with Queue(engine, settings, SystemClock()) as queue:
        jobs = [queue.enqueue("plain") for _ in range(3)]
        worker = Worker(queue, [post_of(Plain())], burst=True)
        asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
        assert {queue.get(job.id).attempts for job in jobs} == {1}
        assert {queue.get(job.id).state for job in jobs} == {State.DONE}


def test_an_open_queue_is_all_a_runner_needs(app: Tenure) -> None:
    queue: Queue = app.queue
    app.task(name="work")(lambda: None).enqueue()
    work_off(app, name="me")
    (job,) = queue.jobs().jobs
    assert job.worker == "me"
