"""Nothing that runs after a commit looks like a failed commit: callers get their answers, and no
operation is applied a second time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tenure.observe.metrics import Measured, Metrics, measured
from tenure.queue import store_of
from tests.crash.watched import PATIENCE, Watched, handed_in, opened, start


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    if request.param == "memory":
        return Watched(MemoryEngine(SystemClock(), 1000))
    return Watched(SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock()))


def broken(*_: object) -> Any:
    raise ZeroDivisionError("a bug")


def enqueue_together(engine: Watched, queue: tenure.Queue, n: int) -> None:
    """One caller, and then `n` who share a commit; each must get its job."""
    engine.hold()
    first = start(queue.enqueue, "mail", id="first")
    engine.arrived()
    calls = [start(queue.enqueue, "mail", id=f"{n}") for n in range(n)]
    handed_in(queue, n)
    engine.let_all()
    assert first.result(PATIENCE).id == "first"
    assert [call.result(PATIENCE).id for call in calls] == [f"{n}" for n in range(n)]


def listens(queue: tenure.Queue) -> object:
    return queue.changes.listen(broken)


def watches(queue: tenure.Queue) -> object:
    return queue.changes.watch(broken)


@pytest.mark.parametrize("hear", [listens, watches])
def test_a_listener_that_fails_is_logged_and_nothing_is_applied_again(
    engine: Watched,
    hear: Callable[[tenure.Queue], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Sequence[Op]] = []
    woken: list[object] = []
    with opened(engine) as queue:
        hear(queue)
        queue.changes.watch(lambda batch, answers: heard.append(batch))
        queue.changes.listen(woken.append)
        enqueue_together(engine, queue, 5)
        asyncio.run(queue.aenqueue("mail", id="task"))
        assert queue.stats("mail").ready == 7
    assert [len(batch) for batch in engine.batches] == [1, 5, 1]
    assert len(heard) == 3  # those who come after it are told
    assert woken.count({"mail"}) == 3
    assert "a bug" in caplog.text


def test_a_listener_that_fails_does_not_end_what_listens_to_the_store() -> None:
    told: list[Callable[[], None]] = []
    engine = MemoryEngine(SystemClock(), 1000)

    def listen(wake: Callable[[], None]) -> Callable[[], None]:
        told.append(wake)
        return lambda: None

    engine.listen = listen  # type: ignore[method-assign]
    with tenure.Queue(engine, tenure.Settings(), SystemClock()) as queue:
        woken: list[object] = []
        queue.changes.listen(broken)
        queue.changes.listen(woken.append)
        told[0]()
        assert woken == [None]


def test_figures_that_cannot_be_counted_are_logged_and_nothing_is_applied_again(
    engine: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Measured, "_count", broken)
    counted: Any = Measured(engine, Metrics(), SystemClock())
    with tenure.Queue(counted, tenure.Settings(), SystemClock()) as queue:
        enqueue_together(engine, queue, 5)
        assert queue.stats("mail").ready == 6
    assert [len(batch) for batch in engine.batches] == [1, 5]
    assert "a bug" in caplog.text


def test_an_engine_that_returns_too_few_answers_is_not_asked_again(engine: Watched) -> None:
    """It is not known which of them happened."""
    right = engine.apply

    def wrong(batch: Sequence[Op]) -> list[Answer]:
        return right(batch)[1:]

    engine.apply = wrong  # type: ignore[method-assign]
    with opened(engine) as queue:
        engine.hold()
        first = start(queue.enqueue, "mail", id="first")
        engine.arrived()
        calls = [start(queue.enqueue, "mail") for _ in range(3)]
        handed_in(queue, 3)
        engine.let_all()
        for call in [first, *calls]:
            with pytest.raises(tenure.OutcomeUnknown):
                call.result(PATIENCE)
        assert queue.stats("mail").ready == 4


def test_a_lease_that_cannot_be_given_back_keeps_nobody_from_an_answer(
    queue_of_two: tenure.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of_two
    monkeypatch.setattr(ops, "Release", broken)

    async def main() -> list[tenure.Job]:
        leaves = asyncio.ensure_future(queue.aclaim("mail"))
        stays = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.sleep(0)
        committer = store_of(queue).committer
        resolve = committer._resolve

        def late(tickets: Any) -> None:
            leaves.cancel()
            resolve(tickets)

        committer._resolve = late  # type: ignore[method-assign]
        return await asyncio.wait_for(stays, PATIENCE)

    assert len(asyncio.run(main())) == 1
    assert "a bug" in caplog.text


@pytest.fixture
def queue_of_two(engine: Watched) -> Any:
    with opened(engine) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(2)])
        yield queue


def test_a_reused_key_is_a_conflict_that_is_counted_and_concerns_nobody_else(
    engine: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def once(*ids: str) -> ops.Once:
        return ops.Once("k", tuple(ops.Enqueue((JobSpec(id, "mail", NULL),)) for id in ids))

    caplog.set_level(logging.WARNING)
    metrics = Metrics()
    counted: Any = measured(metrics, engine, SystemClock())
    with tenure.Queue(counted, tenure.Settings(), SystemClock()) as queue:
        store_of(queue).do([once("a")])
        engine.hold()
        first = start(queue.enqueue, "mail", id="first")
        engine.arrived()
        reused = start(store_of(queue).do, [once("b", "c")])
        handed_in(queue, 1)
        calls = [start(queue.enqueue, "mail", id=f"{n}") for n in range(3)]
        handed_in(queue, 4)
        engine.let_all()
        for call in [first, *calls]:
            call.result(PATIENCE)
        (answer,) = reused.result(PATIENCE)
        assert type(answer) is tenure.Conflict
        assert queue.stats("mail").ready == 5
    assert [len(batch) for batch in engine.batches] == [1, 1, 4]
    assert metrics.operations.counts["Enqueue", "conflict"] == 2
    assert caplog.text == ""


def test_the_wrapped_engine_is_the_one_that_the_service_uses() -> None:
    """So that the tests above are about what `tenure serve` runs."""
    metrics = Metrics()
    with tenure.connect("memory://", wrap=partial(measured, metrics)) as queue:
        queue.enqueue("mail")
    assert metrics.operations.counts["Enqueue", "ok"] == 1
