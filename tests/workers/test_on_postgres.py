"""Workers on PostgreSQL: woken by the server, indifferent to its clock, and there again when it
is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import tenure
from tenure import NewJob, State, Tenure
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.queue.schedule_calls import ScheduleCalls
from tenure.worker.scheduler import Scheduler
from tests.support import audit_postgres, postgres
from tests.workers import errands
from tests.workers.conftest import PATIENCE, running, work_off
from tests.workers.life import ROOT, Place, WorkerProcess, a_place, until

SOON = 5.0  # seconds on a busy machine; what waits for the next look comes a minute later
NEVER = 60.0  # seconds between two looks that nothing prompts


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield postgres.url_of(tmp_path)
    assert audit_postgres.audit(postgres.shared_url(), postgres.schema_of(tmp_path)) == []
    postgres.drop(tmp_path)


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    with Tenure(url) as app:
        yield app


@pytest.fixture
def place(url: str, tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        place.url = url
        yield place


def in_another_process(url: str, code: str) -> list[str]:
    """The lines that a script prints which has a queue on this store."""
    script = f"import time, tenure\nqueue = tenure.connect({url!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def seen(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.01)


# Working ----------------------------------------------------------------------------------------


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

    handles = [(n, in_the_loop.enqueue(n)) for n in range(60)]
    handles += [(n, in_a_thread.enqueue(n)) for n in range(60, 120)]
    worker = work_off(app, concurrency=20)
    assert worker.handled == 120
    assert ran == dict.fromkeys(range(120), 1)
    assert all(handle.result(timeout=PATIENCE) == n * n for n, handle in handles)
    assert app.queue.stats().done == 120


def test_a_large_worker_has_two_batches_committed_at_once(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: Counter[int] = Counter()
    lock = threading.Lock()
    now = most = 0
    apply = PostgresEngine.apply

    def watched(engine: PostgresEngine, batch: Sequence[Op], *fence: Any) -> list[Answer]:
        nonlocal now, most
        claims = any(isinstance(op, ops.Claim) for op in batch)
        with lock:
            now += claims
            most = max(most, now)
        try:
            return apply(engine, batch, *fence)
        finally:
            with lock:
                now -= claims

    @app.task
    async def count(n: int) -> None:
        ran[n] += 1

    count.enqueue_many([(n,) for n in range(3000)])
    monkeypatch.setattr(PostgresEngine, "apply", watched)
    work_off(app, concurrency=500)
    assert ran == Counter(range(3000))
    assert app.queue.stats().done == 3000
    assert most == 2


def test_worker_processes_share_the_jobs(place: Place) -> None:
    with place.queue() as queue:
        kinds = (errands.quick, errands.quick_in_a_thread, errands.quick_in_a_process)
        jobs = [kinds[n % 3].job(0.01) for n in range(90)]
        ids = queue.enqueue_many(jobs)
        # Each runs its jobs in as many processes, and starting one takes long.
        options = ("--burst", "--no-schedule", "--concurrency", "3")
        workers = [WorkerProcess(place, *options) for _ in range(2)]
        assert [worker.wait() for worker in workers] == [0, 0]
        assert queue.stats().done == 90
    assert Counter(event.id for event in place.events("did")) == dict.fromkeys(ids, 1)


# Waking -----------------------------------------------------------------------------------------


def test_a_job_of_another_process_starts_soon(app: Tenure, url: str) -> None:
    started: dict[str, float] = {}

    @app.task(name="look")
    async def look() -> None:
        started[tenure.current_job().job.id] = time.time()

    async def main() -> list[str]:
        async with running(app, poll_interval=NEVER, schedule=False):
            code = (
                "for n in range(5):\n"
                "    id = queue.enqueue('default', {}, kind='look').id\n"
                "    print(id, time.time())\n"
                "    time.sleep(0.2)\n"
            )
            lines = await asyncio.to_thread(in_another_process, url, code)
            await seen(lambda: len(started) == 5)
            return lines

    for line in asyncio.run(main()):
        id, at = line.split()
        assert started[id] - float(at) < SOON


def test_who_waits_for_a_result_hears_of_it_from_another_process(place: Place) -> None:
    worker = WorkerProcess(place, "--no-schedule").ready()
    took = []
    with Tenure(place.url) as app:
        quick = app.task(name=errands.quick.name)(errands.quick.function)
        for _ in range(5):
            start = time.monotonic()
            assert quick.enqueue().result(timeout=PATIENCE) == "well"
            took.append(time.monotonic() - start)
    assert min(took) < 0.5, worker.log  # without a word it is a second until the next look


def test_the_place_that_another_process_leaves_is_taken_soon(app: Tenure, url: str) -> None:
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


# Clocks -----------------------------------------------------------------------------------------


@pytest.fixture(params=[-1, 1], ids=["behind", "ahead"])
def hour_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """This machine's clock is an hour behind the server's, or ahead of it."""
    right, hours = SystemClock.now_ms, request.param
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: right(self) + hours * 3_600_000)
    return int(hours)


def count(app: Tenure, monkeypatch: pytest.MonkeyPatch) -> Counter[type[Op]]:
    """Counts what is sent to the store from here on."""
    counts: Counter[type[Op]] = Counter()
    engine: Any = store_of(app.queue).engine
    apply = engine.apply

    def counting(batch: Sequence[Op]) -> list[Answer]:
        counts.update(map(type, batch))
        answers: list[Answer] = apply(batch)
        return answers

    monkeypatch.setattr(engine, "apply", counting)
    return counts


@pytest.mark.usefixtures("hour_off")
def test_a_delayed_job_starts_in_time_whatever_the_clocks_say(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[float] = []

    @app.task
    async def late() -> None:
        started.append(time.monotonic())

    counts = count(app, monkeypatch)

    async def main() -> None:
        async with running(app, poll_interval=NEVER, schedule=False):
            at = time.monotonic()
            await late.using(delay=2).aenqueue()
            await seen(lambda: bool(started))
            assert 1.99 < started[0] - at < 2 + SOON

    asyncio.run(main())
    assert counts[ops.Claim] < 12  # nobody looks again and again until it is time


@pytest.mark.usefixtures("hour_off")
def test_leases_are_kept_and_taken_over_whatever_the_clocks_say(app: Tenure, url: str) -> None:
    ran: Counter[str] = Counter()

    @app.task(name="long")
    async def long() -> None:
        ran[tenure.current_job().job.id] += 1
        await asyncio.sleep(2.5)

    with tenure.connect(url) as dead:
        first = dead.enqueue("default", {}, kind="long").id
        dead.claim("default", lease=1)  # by somebody who died
    second = long.enqueue().id

    async def main() -> None:
        async with running(app, lease=1, poll_interval=NEVER):
            await seen(lambda: app.queue.stats("default").done == 2)

    asyncio.run(main())
    assert ran == {first: 1, second: 1}
    assert [app.queue.get(id).attempts for id in (first, second)] == [2, 1]


def test_a_schedule_that_is_due_by_a_wrong_clock_is_left_alone(
    app: Tenure, hour_off: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.queue.schedules.put("a", "0 0 1 1 *", NewJob(queue="q"))
    year_off_ms = hour_off * 366 * 86_400_000
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: time.time_ns() // 10**6 + year_off_ms)
    counts = count(app, monkeypatch)
    looked = Mock(wraps=app.queue.schedules.timetable)
    monkeypatch.setattr(ScheduleCalls, "timetable", looked)
    scheduler = Scheduler(app.queue, "w", upkeep=False)
    scheduler.start()
    time.sleep(1.5)
    scheduler.stop()
    assert 1 <= looked.call_count <= 4
    assert counts[ops.Fire] == 0
    assert app.queue.jobs().jobs == []


# The server goes away ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["shut_down", "kill"])
def test_a_worker_outlives_a_restart_of_the_server(tmp_path: Path, how: str) -> None:
    """No job is lost, and none is run twice: the worker has not crashed."""
    server = postgres.Server()
    try:
        with a_place(tmp_path) as place:
            place.url = server.url
            with place.queue() as queue:
                kinds = (errands.quick, errands.quick_in_a_thread)
                ids = queue.enqueue_many([kinds[n % 2].job(0.03) for n in range(400)])
                worker = WorkerProcess(place, "--lease", "60s", "--concurrency", "5").ready()
                for so_far in (50, 200):
                    place.wait_for("did", so_far)
                    getattr(server, how)()
                    time.sleep(0.5)
                    server.start()
                until(lambda: queue.stats().done == 400)
                # It listens again, too.
                start = time.monotonic()
                last = queue.enqueue_many([errands.quick.job(0)])
                place.wait_for("did", id=last[0])
                assert time.monotonic() - start < SOON
                until(lambda: queue.stats().done == 401)
                assert {job.attempts for id in ids for job in [queue.get(id)]} == {1}
                assert not worker.ended()
            for kind in ("began", "did"):
                events = Counter(event.id for event in place.events(kind))
                assert events == dict.fromkeys([*ids, *last], 1)
            assert audit_postgres.audit(server.url, "tenure") == []
    finally:
        server.stop()


def test_results_of_while_the_server_was_away_are_told_when_it_is_back(tmp_path: Path) -> None:
    server = postgres.Server()
    try:
        with a_place(tmp_path) as place:
            place.url = server.url
            with place.queue() as queue:
                (id,) = queue.enqueue_many([errands.until_told.job()])
                WorkerProcess(place, "--lease", "60s").ready()
                place.wait_for("began")
                server.kill()
                place.give()
                place.wait_for("did")
                time.sleep(1)
                server.start()
                until(lambda: queue.get(id).state is State.DONE)
                assert queue.get(id).attempts == 1
            assert len(place.events("began")) == 1
    finally:
        server.stop()
