"""Workers on a simulated FoundationDB where much goes wrong, and on a real one if there is one, in
real time: woken by watches, and patient with leases that are over by one clock only."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tenure
from tenure import NewJob, Retry, State, Tenure
from tenure.model import ops
from tenure.queue import store_of
from tests.support import fdb
from tests.support.sizes import let
from tests.workers.conftest import PATIENCE, running, work_off

SOON = 5.0  # seconds on a busy machine; what waits for the next look comes a minute later
NEVER = 60.0  # seconds between two looks that nothing prompts


@pytest.fixture(params=["simulated", "real"] if fdb.CLUSTER_FILE else ["simulated"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "real":
        yield fdb.url_of(tmp_path)
        assert fdb.audit_cluster(tmp_path) == []
    else:
        yield fdb.faulty_url(tmp_path)
        assert fdb.audit(tmp_path) == []


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    with Tenure(url) as app:
        yield app


async def seen(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.01)


def test_a_burst_of_tasks_of_both_kinds_is_worked_off(app: Tenure) -> None:
    ran: Counter[int] = Counter()

    @app.task
    async def in_the_loop(n: int) -> int:
        await asyncio.sleep(0)
        ran[n] += 1
        return n * n

    @app.task(queue="plain")
    def in_a_thread(n: int) -> int:
        ran[n] += 1
        return n * n

    handles = [(n, in_the_loop.enqueue(n)) for n in range(20)]
    handles += [(n, in_a_thread.enqueue(n)) for n in range(20, 40)]
    worker = work_off(app, concurrency=10)
    assert worker.handled == 40
    assert ran == dict.fromkeys(range(40), 1)
    assert all(handle.result(timeout=PATIENCE) == n * n for n, handle in handles)
    assert app.queue.stats().done == 40


def test_what_fails_is_tried_again_until_it_is_dead(app: Tenure) -> None:
    ran: list[int] = []

    @app.task(max_attempts=3, backoff=tenure.fixed(0.02))
    async def always_fails() -> None:
        ran.append(tenure.current_job().job.attempts)
        raise ValueError("no")

    @app.task
    async def asks_for_another_try() -> str:
        if tenure.current_job().job.attempts == 1:
            raise Retry(0.02)
        return "well"

    failing, asking = always_fails.enqueue(), asks_for_another_try.enqueue()

    async def main() -> None:
        async with running(app, poll_interval=NEVER, schedule=False):
            await seen(lambda: app.queue.get(failing.id).state is State.DEAD)
            await seen(lambda: app.queue.get(asking.id).state is State.DONE)

    asyncio.run(main())
    assert ran == [1, 2, 3]
    assert asking.result(timeout=PATIENCE) == "well"
    assert [error.message for error in app.queue.get(failing.id).errors] == ["no"] * 3


def test_of_a_unique_task_one_is_there_at_a_time(app: Tenure) -> None:
    @app.task(unique=True)
    async def single(n: int) -> None: ...

    first = single.enqueue(1)
    assert single.enqueue(1).id == first.id
    assert single.enqueue(2).id != first.id
    work_off(app)
    assert single.enqueue(1).id != first.id
    assert work_off(app).handled == 1


def test_a_schedule_fires_once_however_many_workers_there_are(app: Tenure, url: str) -> None:
    ran: list[str] = []

    @app.task(name="tick")
    async def tick() -> None:
        ran.append(tenure.current_job().job.id)

    app.queue.schedules.put("often", "* * * * * *", NewJob(queue="default", kind="tick"))

    async def main() -> None:
        with Tenure(url) as other:
            other.task(name="tick")(tick.function)
            async with running(app), running(other):
                await seen(lambda: len(ran) >= 3)

    began = time.time()
    asyncio.run(main())
    assert len(set(ran)) == len(ran) <= time.time() - began + 2


def test_a_job_of_another_handle_starts_soon(app: Tenure, url: str) -> None:
    started: dict[str, float] = {}

    @app.task(name="look")
    async def look() -> None:
        started[tenure.current_job().job.id] = time.time()

    async def main() -> dict[str, float]:
        enqueued = {}
        with tenure.connect(url) as other:
            async with running(app, poll_interval=NEVER, schedule=False):
                for _ in range(5):
                    job = await other.aenqueue("default", {}, kind="look")
                    enqueued[job.id] = time.time()
                    await seen(lambda: len(started) == len(enqueued))
        return enqueued

    for id, at in asyncio.run(main()).items():
        assert started[id] - at < SOON


def test_the_place_that_another_leaves_is_taken_soon(app: Tenure, url: str) -> None:
    """A limit kept the worker from the job; nothing but the other's acknowledgement says that it
    no longer does."""
    ran = asyncio.Event()

    @app.task(name="wait")
    async def wait() -> None:
        ran.set()

    with tenure.connect(url) as other:
        other.limits.set("default", concurrency=1)
        other.enqueue("default", {}, kind="wait")
        (held,) = other.claim("default", lease=3600)
        other.enqueue("default", {}, kind="wait")

        async def main() -> None:
            async with running(app, poll_interval=NEVER, schedule=False):
                await asyncio.sleep(0.3)
                assert not ran.is_set()
                await asyncio.to_thread(other.ack, held)
                await asyncio.wait_for(ran.wait(), SOON)

        asyncio.run(main())


def test_the_job_of_a_dead_worker_is_taken_over_and_nobody_spins_until_then(
    app: Tenure, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own end the lease is over after a second; by the store's versions, some later."""
    let(monkeypatch, grace_of_versions_ms=2_000)
    ran = asyncio.Event()
    claims = 0

    @app.task(name="long")
    async def long() -> None:
        ran.set()

    with tenure.connect(url) as dead:
        dead.enqueue("default", {}, kind="long")
        dead.claim("default", lease=1)
    apply = store_of(app.queue).engine.apply

    def counting(batch: list[ops.Op]) -> list[ops.Answer]:
        nonlocal claims
        claims += any(isinstance(op, ops.Claim) for op in batch)
        return apply(batch)

    monkeypatch.setattr(store_of(app.queue).engine, "apply", counting)

    async def main() -> None:
        async with running(app, poll_interval=NEVER, schedule=False):
            await asyncio.wait_for(ran.wait(), PATIENCE)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began > 2.5
    assert claims < 15
