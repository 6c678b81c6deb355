"""A worker with room for many jobs commits two batches at once, if a lane has enough jobs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.worker.handler import HandlerSpec
from tenure.worker.lease_keeper import Keeper
from tenure.worker.post import ENOUGH, Post
from tenure.worker.worker import Worker
from tests.crash.watched import PATIENCE, Watched, opened, start, until

MANY = 2 * ENOUGH


class Counting(Watched):
    """An engine that counts the batches with a claim that are in progress."""

    def __init__(self) -> None:
        super().__init__(MemoryEngine(SystemClock(), 1000), in_flight=4)
        self._lock = threading.Lock()
        self.claiming = self.most = 0

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        claims = any(isinstance(op, ops.Claim) for op in batch)
        with self._lock:
            self.claiming += claims
            self.most = max(self.most, self.claiming)
        try:
            return super().apply(batch)
        finally:
            with self._lock:
                self.claiming -= claims

    def let_all_but_two(self) -> None:
        """Let batches through, until two with a claim are at the gate."""
        until(lambda: self.claiming == 1)
        self.let_one()
        until(lambda: self.claiming == 2)


class AtOnce(Counting):
    """An engine in which claims run beside each other."""

    claims_at_once = True


@pytest.fixture
def engine() -> AtOnce:
    return AtOnce()


@pytest.fixture
def queue(engine: AtOnce) -> Iterator[tenure.Queue]:
    with opened(engine) as queue:
        yield queue
        engine.let_all()


async def nothing(job: Job) -> None:
    """What most jobs of these tests do."""


def fill(queue: tenure.Queue, n: int, tenants: Sequence[str] = ("",)) -> None:
    queue.enqueue_many(
        [tenure.NewJob(queue="q", tenant=tenants[i % len(tenants)]) for i in range(n)]
    )


def worker_of(
    queue: tenure.Queue,
    call: Callable[[Job], Any] = nothing,
    concurrency: int = MANY,
    queues: Sequence[str] = ("q",),
    **options: Any,
) -> Worker:
    post = Post(queues, concurrency, {}, default=HandlerSpec(call, "loop", "q"), poll_interval=0.02)
    return Worker(queue, [post], schedule=False, **options)


def limits(engine: Counting) -> list[int]:
    """How many jobs each claim asked for."""
    return [op.limit for batch in engine.batches for op in batch if isinstance(op, ops.Claim)]


def test_while_a_batch_is_committed_another_is_sent(engine: AtOnce, queue: tenure.Queue) -> None:
    fill(queue, 5 * ENOUGH)
    engine.hold()
    done = start(asyncio.run, worker_of(queue, burst=True).run())
    engine.let_all_but_two()
    engine.let_all()
    done.result(PATIENCE)
    assert queue.stats().done == 5 * ENOUGH
    assert limits(engine)[:3] == [MANY, ENOUGH, ENOUGH]


@pytest.mark.parametrize(
    ("tenants", "options"),
    [
        pytest.param(("a", "b"), {}, id="several lanes"),
        pytest.param(("",), {"concurrency": MANY - 1}, id="too small"),
        pytest.param(("",), {"queues": ("q", "other")}, id="several queues"),
    ],
)
def test_a_worker_commits_one_batch_at_a_time_otherwise(
    engine: AtOnce, queue: tenure.Queue, tenants: Sequence[str], options: dict[str, Any]
) -> None:
    fill(queue, 5 * ENOUGH, tenants)
    asyncio.run(asyncio.wait_for(worker_of(queue, burst=True, **options).run(), PATIENCE))
    assert queue.stats().done == 5 * ENOUGH
    assert engine.most == 1


def test_a_store_in_which_claims_wait_for_each_other_gets_one_at_a_time() -> None:
    engine = Counting()
    with opened(engine) as queue:
        fill(queue, 5 * ENOUGH)
        asyncio.run(asyncio.wait_for(worker_of(queue, burst=True).run(), PATIENCE))
    assert engine.most == 1


def test_no_more_jobs_run_at_once_than_may_and_each_runs_once(
    engine: AtOnce, queue: tenure.Queue
) -> None:
    ran: Counter[str] = Counter()
    now = most = 0

    async def count(job: Job) -> None:
        nonlocal now, most
        ran[job.id] += 1
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    fill(queue, 10 * ENOUGH)
    worker = worker_of(queue, count, burst=True)
    asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
    assert set(ran.values()) == {1}
    assert len(ran) == worker.handled == queue.stats().done == 10 * ENOUGH
    assert ENOUGH < most <= MANY


def test_two_batches_together_take_no_more_than_max_jobs(queue: tenure.Queue) -> None:
    fill(queue, 10 * ENOUGH)
    worker = worker_of(queue, max_jobs=5 * ENOUGH + 3)
    asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
    found = queue.stats()
    assert (found.done, found.leased) == (5 * ENOUGH + 3, 0)


def test_a_worker_that_stops_waits_for_both_batches(engine: AtOnce, queue: tenure.Queue) -> None:
    fill(queue, 10 * ENOUGH)

    async def main() -> None:
        engine.hold()
        worker = worker_of(queue)
        await worker.start()
        await asyncio.to_thread(engine.let_all_but_two)
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        engine.let_all()
        await asyncio.wait_for(stopping, PATIENCE)

    asyncio.run(main())
    found = queue.stats()
    assert found.leased == 0
    assert found.done + found.ready == 10 * ENOUGH


def test_the_leases_of_both_batches_are_kept(engine: AtOnce, queue: tenure.Queue) -> None:
    """The outcomes of both are on their way."""
    fill(queue, 5 * ENOUGH)
    engine.hold()
    worker = worker_of(queue, burst=True)
    done = start(asyncio.run, worker.run())
    engine.let_all_but_two()
    until(lambda: len(worker._untold()) == MANY)
    engine.let_all()
    done.result(PATIENCE)
    assert worker._untold() == []


@pytest.mark.parametrize("max_jobs", [None, 4 * ENOUGH + 3])
def test_a_batch_that_renews_leases_first_counts_against_the_other(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch, max_jobs: int | None
) -> None:
    """The other batch is committed meanwhile, and claims again."""
    now = most = 0

    async def count(job: Job) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.05)
        now -= 1

    async def renew(worker: Worker) -> None:
        await asyncio.sleep(0.05 if asyncio.current_task() is worker._serving[1] else 0)

    monkeypatch.setattr(Keeper, "was_suspended", property(lambda keeper: True))
    monkeypatch.setattr(Worker, "_renew_first", renew)
    fill(queue, 10 * ENOUGH)
    worker = worker_of(queue, count, burst=True, max_jobs=max_jobs)
    asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
    assert worker.handled == queue.stats().done == (max_jobs or 10 * ENOUGH)
    assert most <= MANY


def test_a_worker_whose_second_batch_fails_stops_at_once(
    engine: AtOnce, queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(queue, 10 * ENOUGH)

    async def main() -> None:
        asked, fails = asyncio.Event(), asyncio.Event()

        async def fail(batch: Sequence[Op]) -> list[Answer]:
            asked.set()
            await fails.wait()
            raise tenure.Closed("it fails")

        monkeypatch.setattr(store_of(queue), "ado_beside", fail)
        worker = worker_of(queue)
        await worker.start()
        await asyncio.wait_for(asked.wait(), PATIENCE)
        stopping = asyncio.create_task(worker.stop(grace=2 * PATIENCE))
        while worker.running() or worker._posts[0].to_tell or len(worker._posts[0].telling) > 1:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        fails.set()
        with pytest.raises(tenure.Closed):
            await asyncio.wait_for(stopping, PATIENCE)

    asyncio.run(main())
    found = queue.stats()
    assert found.leased == 0
    assert found.done + found.ready == 10 * ENOUGH
