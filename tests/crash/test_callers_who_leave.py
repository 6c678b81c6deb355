"""A caller that is cancelled or interrupted keeps no job, and keeps nobody waiting."""

from __future__ import annotations

import asyncio
import linecache
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.engines.sqlite.disk import Disk
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.features.rates.counter import RateCounter
from tenure.model import ops, queries
from tenure.model.ops import good
from tenure.queue import Calls, store_of
from tenure.queue.committer import Committer
from tenure.queue.open_store import OpenStore
from tenure.queue.wakeups import Changes
from tests.crash.watched import PATIENCE, Watched, handed_in, opened, start, until


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    if request.param == "memory":
        return Watched(MemoryEngine(SystemClock(), 1000))
    return Watched(SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock()))


@pytest.fixture
def queue(engine: Watched) -> Iterator[tenure.Queue]:
    with opened(engine) as queue:
        yield queue
        engine.let_all()


def untouched(queue: tenure.Queue, job: tenure.Job) -> bool:
    """Whether the job is ready, with all its attempts."""
    found = queue.get(job.id)
    return (found.state, found.attempts) == ("pending", 0)


def test_a_claim_cancelled_before_it_began_never_happens(
    engine: Watched, queue: tenure.Queue
) -> None:
    job = queue.enqueue("mail")
    engine.hold()
    opener = start(queue.enqueue, "other")
    engine.arrived()

    async def main() -> None:
        task = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    engine.let_all()
    opener.result(PATIENCE)
    queue.enqueue("other")
    assert not [op for batch in engine.batches for op in batch if isinstance(op, ops.Claim)]
    assert untouched(queue, job)


def test_a_claim_cancelled_while_it_is_committed_gives_the_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    jobs = [queue.enqueue("mail") for _ in range(3)]
    engine.hold()

    async def main() -> None:
        task = asyncio.ensure_future(queue.aclaim("mail", limit=3))
        await asyncio.to_thread(engine.arrived)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.let_all()
        await asyncio.to_thread(until, lambda: isinstance(engine.batches[-1][0], ops.Release))

    asyncio.run(main())
    assert all(untouched(queue, job) for job in jobs)


def test_a_claim_cancelled_when_its_answer_is_on_its_way_gives_the_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    job = queue.enqueue("mail")

    async def main() -> None:
        task = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.sleep(0)
        queue.enqueue("other")
        queue.enqueue("other")  # in a later batch: the claim's result waits for the loop
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    queue.enqueue("other")  # after the jobs were released
    assert untouched(queue, job)


def test_a_claim_cancelled_after_its_answer_came_gives_the_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    job = queue.enqueue("mail")

    async def main() -> None:
        task = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.sleep(0)
        queue.enqueue("other")
        queue.enqueue("other")
        # Runs after the result is set and before the task continues.
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    queue.enqueue("other")
    assert untouched(queue, job)


def test_jobs_claimed_for_a_loop_that_was_closed_are_given_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    job = queue.enqueue("mail")
    engine.hold()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_aclaim(queue))
    loop.run_until_complete(asyncio.sleep(0))
    engine.arrived()
    loop.close()
    engine.let_all()
    until(lambda: isinstance(engine.batches[-1][0], ops.Release))
    assert untouched(queue, job)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task


async def _aclaim(queue: tenure.Queue) -> list[tenure.Job]:
    return await queue.aclaim("mail")


def interrupted(
    call: Callable[[], object],
    ready: Callable[[], object] = lambda: None,
    then: Callable[[], object] = lambda: None,
) -> None:
    """Make the call in this thread, and interrupt it by a signal once everything is ready."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    main = threading.get_ident()

    def interrupt() -> None:
        ready()
        at_rest(main)
        signal.pthread_kill(main, signal.SIGUSR1)
        then()

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        interrupter = start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            call()
        interrupter.result(PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, before)


def at_rest(thread: int) -> None:
    """Wait until the thread is blocked in a call that waits."""
    seen = [(0, 0)]

    def same_again() -> bool:
        frame = sys._current_frames()[thread]
        seen.append((id(frame.f_code), frame.f_lasti))
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    until(same_again)


def test_a_thread_interrupted_while_it_claims_gives_the_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    job = queue.enqueue("mail")
    engine.hold()
    interrupted(lambda: queue.claim("mail"), engine.arrived)
    engine.let_all()
    queue.enqueue("other")
    until(lambda: untouched(queue, job))


def test_a_thread_interrupted_after_its_claim_was_committed_gives_the_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    """As if the signal arrives during the sync to disk, which takes the longest."""
    job = queue.enqueue("mail")
    committed, go_on = threading.Event(), threading.Event()

    def linger(_batch: object) -> None:
        committed.set()
        assert go_on.wait(PATIENCE)

    engine.after = linger
    interrupted(lambda: queue.claim("mail"), lambda: committed.wait(PATIENCE))
    go_on.set()
    queue.enqueue("other")
    until(lambda: untouched(queue, job))


def test_a_thread_interrupted_while_it_waits_to_claim_leaves_the_jobs(
    engine: Watched, queue: tenure.Queue
) -> None:
    job = queue.enqueue("mail")
    engine.hold()
    opener = start(queue.enqueue, "other")
    engine.arrived()
    interrupted(lambda: queue.claim("mail"), lambda: handed_in(queue, 1))
    engine.let_all()
    opener.result(PATIENCE)
    queue.enqueue("other")
    assert untouched(queue, job)


def test_a_thread_interrupted_while_it_waits_for_the_lock_lets_go_of_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with tenure.connect(f"sqlite:///{path}") as queue:
        job = queue.enqueue("mail")
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            # The signal may be handled while it waits, or once it has the lock.
            interrupted(lambda: queue.claim("mail"), then=lambda: other.execute("ROLLBACK"))
            other.execute("PRAGMA busy_timeout = 1000")
            other.execute("BEGIN IMMEDIATE")  # nobody holds it
            other.execute("ROLLBACK")
        queue.enqueue("other")
        until(lambda: untouched(queue, job))


def test_a_claim_cancelled_just_before_close_gives_the_jobs_back(
    engine: Watched, tmp_path: Path
) -> None:
    """This is what a worker does when it is told to stop."""
    queue = opened(engine)
    job = queue.enqueue("mail")
    engine.hold()

    async def main() -> None:
        task = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.to_thread(engine.arrived)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        closing = asyncio.ensure_future(queue.aclose())
        await asyncio.to_thread(until, lambda: store_of(queue).committer._closed)
        engine.let_all()
        await closing

    asyncio.run(main())
    again = engine if isinstance(engine.inner, MemoryEngine) else _reopened(tmp_path)
    found = again.read(queries.GetJob(job.id))
    assert isinstance(found, tenure.Job)
    if again is not engine:
        again.close()
    assert (found.state, found.attempts) == ("pending", 0)


def _reopened(folder: Path) -> SqliteEngine:
    return SqliteEngine(folder / "jobs.db", tenure.Settings(), SystemClock())


def test_a_thread_that_left_a_full_committer_leaves_nobody_unanswered(engine: Watched) -> None:
    with opened(engine, max_waiting=2) as queue:
        job = queue.enqueue("mail")
        engine.hold()
        calls = [start(queue.enqueue, "other")]
        engine.arrived()

        def ready() -> None:
            handed_in(queue, 1)
            engine.let_one()
            engine.arrived()  # the claim is at the gate

        interrupted(lambda: queue.claim("mail"), ready)
        calls += [start(queue.enqueue, "other") for _ in range(2)]
        handed_in(queue, 2)  # there is no room to submit the releases
        engine.let_all()
        for call in calls:
            call.result(5)
        until(lambda: untouched(queue, job))


def test_a_task_that_left_a_full_committer_leaves_nobody_unanswered(engine: Watched) -> None:
    with opened(engine, max_waiting=2) as queue:
        jobs = [queue.enqueue("mail", id=f"job-{n}") for n in range(2)]
        engine.hold()
        calls = [start(queue.enqueue, "other")]
        engine.arrived()

        async def main() -> list[tenure.Job]:
            leaves = asyncio.ensure_future(_aclaim(queue))
            stays = asyncio.ensure_future(_aclaim(queue))
            for _ in range(2):  # turns of the loop: they are called, then submitted
                await asyncio.sleep(0)
            engine.let_one()
            engine.arrived()  # both claims are at the gate
            leaves.cancel()
            calls.append(start(queue.enqueue, "other"))
            handed_in(queue, 1)
            engine.let_one()
            engine.arrived()  # the claims are done; their results wait for this loop
            calls.extend(start(queue.enqueue, "other") for _ in range(2))
            handed_in(queue, 2)  # there is no room to submit the releases
            try:
                answered = await asyncio.wait_for(stays, 5)
            finally:
                engine.let_all()
                (left,) = await asyncio.gather(leaves, return_exceptions=True)
            assert isinstance(left, asyncio.CancelledError)
            return answered

        assert asyncio.run(main()) == [queue.get("job-1")]
        for call in calls:
            call.result(PATIENCE)
        until(lambda: untouched(queue, jobs[0]))


def _lines(function: Any) -> set[tuple[str, int]]:
    """The lines of a function, except where it takes and gives back a lock, and those without
    instructions at which Python looks for signals."""
    code = function.__code__
    lines = {(code.co_filename, line) for _, _, line in code.co_lines() if line}
    left_out = ("with ", "try:")
    return {line for line in lines if not linecache.getline(*line).strip().startswith(left_out)}


# Not Committer.run: what it does with the answers is no instruction at which Python looks.
_INTERRUPTIBLE: list[Any] = [
    tenure.Queue.claim,
    Calls._claim,
    good,
    OpenStore.do,
    SqliteEngine.apply_to,
    Committer._run_here,
    Committer._apply_if_open,
    Committer._apply,
    Committer._apply_counted,
    Committer._apply_to,
    Disk.shorten_log,
    RateCounter.count,
    Changes.committed,
]


def _claim_interrupted_at(queue: tenure.Queue, line: tuple[str, int]) -> bool:
    """Claim, as if a signal arrived before this line is run. Returns whether it is run at all."""

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        jobs = queue.claim("mail", limit=2)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    queue.ack_many(jobs)
    return False


def test_an_interrupt_at_any_line_around_the_commit_of_a_claim_loses_no_job(tmp_path: Path) -> None:
    """Claims are committed in the caller's thread, where signals arrive."""
    with tenure.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        lines = sorted(line for function in _INTERRUPTIBLE for line in _lines(function))
        reached = 0
        for line in lines:
            queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(2)])
            if _claim_interrupted_at(queue, line):
                reached += 1
                until(lambda: queue.stats().leased == 0)
                assert queue.stats().ready == 2, line
                queue.ack_many(queue.claim("mail", limit=2))
        assert reached > 30
