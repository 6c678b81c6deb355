"""Jobs of a kind that a worker has no task for: left for other workers, and dead in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tenure import Job, Settings, State, Tenure, connect
from tenure.observe.metrics import Metrics, measured
from tenure.testing import ManualClock
from tenure.worker.unknown_kind import FIRST_DELAY_MS, LONGEST_DELAY_MS
from tenure.worker.worker import Worker
from tests.workers.conftest import PATIENCE, work_off

DAY = 86_400


def on(path: Path, clock: ManualClock, **settings: float | None) -> Tenure:
    """An app with one task."""
    app = Tenure(f"sqlite:///{path}/jobs.db", settings=Settings(**settings), clock=clock)  # type: ignore[arg-type]
    app.task(name="known")(lambda: None)
    return app


def test_a_job_of_an_unknown_kind_is_left_for_others_with_a_growing_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    with on(tmp_path, clock) as app:
        id = app.queue.enqueue("default", {}, kind="unknown", max_attempts=1).id
        delays = [0]
        while delays[-1] < LONGEST_DELAY_MS and len(delays) < 60:
            work_off(app)
            job = app.queue.get(id)
            assert (job.state, job.attempts) == (State.PENDING, 0)
            delays.append(job.run_at - clock.now_ms())
            clock.advance(delays[-1] / 1000)
        assert delays[1] == FIRST_DELAY_MS
        assert delays == sorted(delays)
        assert delays[-1] == LONGEST_DELAY_MS
        assert job.error == "no worker has a task named 'unknown' yet"
        assert len(job.errors) == 1


def test_a_worker_that_knows_the_kind_runs_the_job_with_all_its_attempts(tmp_path: Path) -> None:
    clock = ManualClock()
    seen: list[int] = []
    with on(tmp_path, clock) as old:
        id = old.queue.enqueue("default", {}, kind="added", max_attempts=1).id
        work_off(old)
    with on(tmp_path, clock) as new:

        @new.task
        def added() -> int:
            return 1

        clock.advance(FIRST_DELAY_MS / 1000)
        work_off(new)
        seen.append(new.queue.get(id).attempts)
        assert (new.queue.get(id).state, seen) == (State.DONE, [1])


def test_a_kind_that_nobody_knows_for_a_day_is_dead_with_that_reason(tmp_path: Path) -> None:
    clock = ManualClock()
    with on(tmp_path, clock) as app:
        job = app.queue.enqueue("default", {}, kind="unknown", delay=2 * DAY)
        clock.advance(2 * DAY)
        assert _after(app, job, clock, 0).state is State.PENDING  # only the wait for it counts
        assert _after(app, job, clock, DAY - 1).state is State.PENDING
        dead = _after(app, job, clock, LONGEST_DELAY_MS / 1000)
        assert dead.state is State.DEAD
        assert dead.error == "no worker has had a task named 'unknown' for 86400 s"
        clock.advance(DAY)
        app.queue.replay([job.id])
        assert _after(app, job, clock, 0).state is State.PENDING  # it waits for another day


@pytest.mark.parametrize(("keep", "state"), [(10.0, State.DEAD), (None, State.PENDING)])
def test_how_long_it_waits_is_a_setting(tmp_path: Path, keep: float | None, state: State) -> None:
    clock = ManualClock()
    with on(tmp_path, clock, unknown_kind=keep) as app:
        job = app.queue.enqueue("default", {}, kind="unknown")
        assert _after(app, job, clock, 0).state is State.PENDING
        assert _after(app, job, clock, 10 * DAY).state is state


def test_two_services_on_one_queue_each_run_their_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    ran: dict[str, set[int]] = {"mail": set(), "invoice": set()}

    async def main() -> None:
        apps = [Tenure(url), Tenure(url)]
        for app, name in zip(apps, ran, strict=True):
            app.task(name=name)(_adder(ran[name]))
        for n in range(20):
            for name in ran:
                apps[0].queue.enqueue("default", {"n": n}, kind=name, max_attempts=1)
        workers = [app.worker(concurrency=3) for app in apps]
        for worker in workers:
            await worker.start()
        async with asyncio.timeout(PATIENCE):
            while apps[0].queue.stats().done < 40:
                await asyncio.sleep(0.05)
        for worker, app in zip(workers, apps, strict=True):
            await worker.stop()
            app.close()

    asyncio.run(main())
    assert ran == {"mail": set(range(20)), "invoice": set(range(20))}


def test_each_unknown_kind_is_logged_once_with_its_fields(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(name="known")(lambda: None)
    for kind in ("one", "two", "one"):
        app.queue.enqueue("default", {}, kind=kind, tenant="acme")
    with caplog.at_level(logging.WARNING):
        work_off(app)
    told = [record for record in caplog.records if "no task named" in record.getMessage()]
    assert [vars(record)["kind"] for record in told] == ["one", "two"]
    assert {record.levelname for record in told} == {"WARNING"}
    assert {vars(record)["tenant"] for record in told} == {"acme"}


def test_an_unknown_job_does_not_count_as_handled(app: Tenure) -> None:
    app.task(name="known")(lambda: None).enqueue_many([()] * 2)
    app.queue.enqueue("default", {}, kind="unknown", priority=-1)
    worker = app.worker(max_jobs=2)
    asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
    assert (worker.handled, app.queue.stats().done) == (2, 2)


def test_unknown_kinds_are_a_metric() -> None:
    metrics = Metrics()
    with connect("memory://", wrap=partial(measured, metrics)) as queue:
        app = Tenure("memory://")
        app.task(name="known")(lambda: None)
        queue.enqueue("default", {}, kind="unknown")
        worker = Worker(queue, app.posts(), burst=True)
        asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
        text = asyncio.run(metrics.text(queue)).decode()
    assert 'tenure_unknown_kinds_total{queue="default"} 1.0' in text


def _adder(numbers: set[int]) -> Callable[[int], None]:
    def add(n: int) -> None:
        numbers.add(n)

    return add


def _after(app: Tenure, job: Job, clock: ManualClock, seconds: float) -> Job:
    """The job after some time, and after a worker has looked at what is ready."""
    clock.advance(seconds)
    work_off(app)
    return app.queue.get(job.id)
