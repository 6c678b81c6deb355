"""Workers report themselves while they live."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Forbidden, Queue, Tenure
from tenure.features.live_workers.data import Beat
from tenure.model import ops
from tenure.queue import store_of
from tenure.server.auth import Scope, Token
from tenure.server.checks import Checked
from tenure.testing import ManualClock
from tenure.worker import beats
from tenure.worker.beats import BEAT_SECONDS, Beats
from tenure.worker.post import Post
from tests.support.sizes import let
from tests.support.tokens import store_for
from tests.workers.conftest import PATIENCE, running, work_off
from tests.workers.life import WorkerProcess, a_place, until


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        yield queue


def test_a_worker_says_what_it_runs_and_disappears_when_it_stops(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_beats_of_a_worker=0.05)
    started, end = threading.Event(), threading.Event()

    @app.task
    def wait() -> None:
        started.set()
        end.wait(PATIENCE)

    job = wait.enqueue()

    async def work() -> None:
        async with running(app, name="w1", queues=["default"], concurrency=3):
            await asyncio.to_thread(started.wait, PATIENCE)
            await asyncio.to_thread(until, lambda: any(one.busy for one in app.queue.workers()))
            (found,) = app.queue.workers("default")
            assert (found.name, found.pid, found.concurrency) == ("w1", os.getpid(), 3)
            assert (found.running, found.busy) == ((job.id,), 1)
            assert found.version == tenure.__version__
            assert found.started_at <= found.seen_at
            end.set()

    try:
        asyncio.run(asyncio.wait_for(work(), PATIENCE))
    finally:
        end.set()

    assert app.queue.workers() == []


def test_a_worker_reports_itself_only_every_few_seconds(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    waits: list[float | None] = []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 3

    def do(batch: Any) -> Any:
        told.append(batch)
        return [ops.Ok()]

    monkeypatch.setattr(store_of(queue), "do", do)
    reports = Beats(queue, "w", [Post(["q"], 1, {})], list)
    reports._stopped = Stopped()
    assert told == []
    reports.begin()
    reports.begin()
    reports.stop()
    assert waits == [BEAT_SECONDS] * 3
    assert [batch[0].ttl_ms for batch in told] == [beats.TTL_MS] * 3 + [0]


def test_a_worker_that_may_not_report_itself_says_so_once_and_goes_on(
    app: Tenure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    let(monkeypatch, seconds_between_beats_of_a_worker=0.0)
    do = store_of(app.queue).do

    def refuse(wanted: Any) -> Any:
        if isinstance(wanted, list) and isinstance(wanted[0], Beat):
            raise Forbidden("Beat needs the scope 'work'; this token lacks it")
        return do(wanted)

    monkeypatch.setattr(store_of(app.queue), "do", refuse)

    @app.task
    def greet() -> str:
        return "hello"

    job = greet.enqueue()
    with caplog.at_level(logging.WARNING):
        work_off(app)

    assert app.queue.get(job.id).result == "hello"
    (record,) = [one for one in caplog.records if "live workers" in one.getMessage()]
    assert "needs the scope" in record.getMessage()


def done(store: Checked, op: ops.Op) -> Any:
    async def main() -> Any:
        return await store.ado([op])

    return asyncio.run(main())


def test_a_token_that_may_work_may_report_its_worker(queue: Queue) -> None:
    work = store_for(queue, Token("t", "h", (Scope.WORK,), queues=("q",)))
    read = store_for(queue, Token("r", "h", (Scope.READ,)))
    worker = Beats(queue, "w", [Post(["q"], 1, {})], list)._worker()

    (answer,) = done(work, Beat(worker, 1000))

    assert answer == ops.Ok()
    with pytest.raises(Forbidden):
        done(read, Beat(worker, 1000))
    other = Beats(queue, "w", [Post(["secret"], 1, {})], list)._worker()
    with pytest.raises(Forbidden):
        done(work, Beat(other, 1000))


def test_a_worker_that_is_killed_disappears_by_itself(tmp_path: Path) -> None:
    with a_place(tmp_path) as place, place.queue() as queue:
        worker = WorkerProcess(place).ready()
        until(lambda: bool(queue.workers()))
        worker.send(signal.SIGKILL)
        worker.process.wait(PATIENCE)
        (found,) = queue.workers()
        assert found.pid == worker.process.pid
        later = ManualClock(found.seen_at + beats.TTL_MS)
        with tenure.connect(place.url, clock=later) as then:
            assert then.workers() == []
