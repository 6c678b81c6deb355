"""A worker whose jobs are locked by a transaction of the application: the others go on."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure.core.grants import Named
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops
from tests.crash.watched import PATIENCE, until
from tests.engines.postgres.test_locks import claimed
from tests.support import postgres


@contextmanager
def locked(schema: str, *ids: str) -> Iterator[None]:
    """The rows of jobs are locked until the end of the block."""
    query = (
        f"SELECT FROM {schema}.states s JOIN {schema}.jobs j ON j.seq = s.seq "
        "WHERE j.id = ANY (%s) FOR UPDATE OF s"
    )
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(query.encode(), (list(ids),))
        yield


def test_jobs_that_overrun_while_they_are_locked_cost_no_other_job_its_lease(
    queue: tenure.Queue, schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = tenure.Tenure(postgres.url_of(tmp_path))
    ran: Counter[str] = Counter()
    may_end = threading.Event()
    late = [f"late-{n}" for n in range(4)]

    @app.task(queue="q", timeout=0.05, no_retry_on=TimeoutError, max_attempts=3)
    def overrun() -> None:
        ran[tenure.current_job().job.id] += 1
        may_end.wait(PATIENCE)

    @app.task(queue="q", max_attempts=3)
    def healthy() -> None:
        ran[tenure.current_job().job.id] += 1
        may_end.wait(PATIENCE)

    seen: set[int | None] = set()

    def renewed() -> bool:
        seen.add(queue.get("healthy").lease_until)
        return len(seen) >= 10

    async def main() -> None:
        worker = app.worker(lease=2, poll_interval=0.2, concurrency=10)
        working = asyncio.create_task(worker.run())
        await asyncio.to_thread(until, lambda: ran.total() == 5)
        with locked(schema, *late):
            gone = "does not end after its timeout"
            await asyncio.to_thread(until, lambda: caplog.text.count(gone) == 4)
            await asyncio.to_thread(until, renewed)
            quick = await asyncio.to_thread(queue.enqueue, "q", {}, kind="quick")
            await asyncio.to_thread(until, lambda: queue.get(quick.id).state == "done")
        await asyncio.to_thread(until, lambda: all(queue.get(id).state == "dead" for id in late))
        may_end.set()
        await worker.stop()
        await working

    @app.task(queue="q", name="quick")
    async def quick() -> None: ...

    healthy.using(id="healthy").enqueue()
    for id in late:
        overrun.using(id=id).enqueue()
    try:
        asyncio.run(main())
    finally:
        may_end.set()
        app.close()
    assert ran["healthy"] == queue.get("healthy").attempts == 1


def test_the_outcome_of_a_job_that_overruns_while_it_is_locked_is_stored_when_it_is_free(
    queue: tenure.Queue, schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = tenure.Tenure(postgres.url_of(tmp_path))
    ran: list[str] = []
    may_end = threading.Event()

    @app.task(queue="q", timeout=1, no_retry_on=TimeoutError, max_attempts=3)
    def overrun() -> None:
        ran.append(tenure.current_job().job.id)
        may_end.wait(PATIENCE)

    async def main() -> None:
        worker = app.worker(lease=60, poll_interval=0.2)
        working = asyncio.create_task(worker.run())
        await asyncio.to_thread(until, lambda: ran == ["late"])
        with locked(schema, "late"):
            await asyncio.to_thread(until, lambda: "is kept until" in caplog.text)
        await asyncio.to_thread(until, lambda: queue.get("late").state == "dead")
        may_end.set()
        await worker.stop()
        await working

    overrun.using(id="late").enqueue()
    try:
        asyncio.run(main())
    finally:
        may_end.set()
        app.close()
    assert (ran, queue.get("late").attempts) == (["late"], 1)


def test_what_was_applied_apart_does_not_look_undone_if_the_server_fails_then(
    engine: PostgresEngine, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = claimed(engine, "free", "held")
    looks: list[int] = []
    look = engine._held

    def fails(named: list[Named]) -> Any:
        looks.append(len(named))
        if len(looks) > 1:
            raise tenure.StoreError("the server is gone")
        return look(named)

    monkeypatch.setattr(engine, "_held", fails)
    with locked(schema, "held"):
        answers = engine.apply([ops.Ack(job.id, job.token) for job in jobs.values()])
    assert looks == [2, 1]
    assert dict(zip(jobs, answers, strict=True)) == {
        "free": ops.Ok(),
        "held": tenure.StoreError("the server is gone"),
    }
