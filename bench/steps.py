"""Durable steps: what recording one costs, and what many suspended jobs cost those that run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

import tenure
from bench.batches import PAYLOAD, TEXT
from bench.callers import CALLERS
from bench.floor import Floor
from bench.report import Figure
from tenure import Job, NewJob, Queue
from tenure.features.steps.data import Checkpoint, Suspend
from tenure.queue import store_of

RESULT = msgspec.Raw(msgspec.json.encode(PAYLOAD))
MANY = 1_000  # jobs that are enqueued, claimed and suspended together


async def _enqueue(queue: Queue, calls: int) -> float:
    async def caller() -> None:
        for _ in range(calls):
            await queue.aenqueue("other", PAYLOAD)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return CALLERS * calls / (time.perf_counter() - start)


async def _record(queue: Queue, jobs: Sequence[Job], first: int, calls: int) -> float:
    """Each job records so many steps, one after the other."""
    store = store_of(queue)

    async def task(job: Job) -> None:
        for n in range(first, first + calls):
            await store.ado([Checkpoint(job.id, job.token, f"step {n}", result=RESULT)])

    start = time.perf_counter()
    await asyncio.gather(*map(task, jobs))
    return len(jobs) * calls / (time.perf_counter() - start)


def _jobs(queue: Queue, count: int, name: str = "q") -> list[Job]:
    queue.enqueue_many(NewJob(queue=name, payload=PAYLOAD) for _ in range(count))
    return queue.claim(name, limit=count, lease=3_600)


def _together(folder: Path, rounds: int, calls: int) -> Figure:
    pairs: list[tuple[float, float]] = []
    with tenure.connect(f"sqlite:///{folder / 'together.db'}") as queue:
        for _ in range(rounds):
            jobs = _jobs(queue, CALLERS)  # as many steps as tasks have, not ever more
            base = asyncio.run(_enqueue(queue, calls))
            pairs.append((base, asyncio.run(_record(queue, jobs, 0, calls))))
            queue.ack_many(jobs)
    return _figure("checkpoints, 64 at once, against enqueue", pairs, 0.6)


def _in_tasks(folder: Path, rounds: int, calls: int) -> Figure:
    """The same by a worker that runs 64 tasks."""
    app = tenure.Tenure(f"sqlite:///{folder / 'tasks.db'}")
    took: list[float] = []

    async def one(n: int) -> dict[str, object]:
        return {"n": n}

    @app.task(queue="q", name="many")
    async def many() -> None:
        run = tenure.current_job()
        start = time.perf_counter()
        for n in range(calls):
            await run.step(one, n, key=str(n))
        took.append(time.perf_counter() - start)

    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        base = asyncio.run(_enqueue(app.queue, calls))
        for _ in range(CALLERS):
            many.enqueue()
        took.clear()
        asyncio.run(app.worker(queues=["q"], burst=True, concurrency=CALLERS).run())
        pairs.append((base, CALLERS * calls / max(took)))
    app.queue.close()
    return _figure("run.step, 64 tasks, against enqueue", pairs, 0.6)


def _alone(folder: Path, rounds: int, calls: int) -> Figure:
    floor = Floor(folder / "floor.db")
    pairs: list[tuple[float, float]] = []
    with tenure.connect(f"sqlite:///{folder / 'alone.db'}") as queue:
        for _ in range(rounds):
            jobs = _jobs(queue, 1)
            start = time.perf_counter()
            for _ in range(calls):
                floor.enqueue([TEXT])
            base = calls / (time.perf_counter() - start)
            pairs.append((base, asyncio.run(_record(queue, jobs, 0, calls))))
            queue.ack_many(jobs)
    floor.close()
    return _figure("a step alone, against one commit", pairs, 0.3)


def _figure(name: str, pairs: Sequence[tuple[float, float]], at_least: float) -> Figure:
    return Figure(
        name,
        rate=median(ours for _, ours in pairs),
        floor=median(base for base, _ in pairs),
        ratios=[ours / base for base, ours in pairs],
        at_least=at_least,
    )


def _suspend(queue: Queue, count: int, kind: str) -> None:
    """Jobs that sleep, or wait for a signal."""
    for _ in range(count // MANY):
        leases = [(job.id, job.token) for job in _jobs(queue, MANY)]
        store_of(queue).do(
            [
                Suspend(*lease, "nap", delay_ms=86_400_000)
                if kind == "sleep"
                else Suspend(*lease, "approval", kind="wait")
                for lease in leases
            ]
        )


def _drain(queue: Queue, count: int) -> float:
    queue.enqueue_many(NewJob(queue="q", payload=PAYLOAD) for _ in range(count))
    start = time.perf_counter()
    while jobs := queue.claim("q", limit=100):
        queue.ack_many(jobs)
    return count / (time.perf_counter() - start)


def _beside_suspended(folder: Path, rounds: int, suspended: int, drained: int) -> Figure:
    pairs: list[tuple[float, float]] = []
    with (
        tenure.connect(f"sqlite:///{folder / 'empty.db'}") as empty,
        tenure.connect(f"sqlite:///{folder / 'full.db'}") as full,
    ):
        for kind in ("sleep", "wait"):
            _suspend(full, suspended, kind)
        for _ in range(rounds):
            pairs.append((_drain(empty, drained), _drain(full, drained)))
    return _figure(f"claims beside {2 * suspended:,} suspended jobs", pairs, 0.8)


def run(
    folder: Path, *, rounds: int = 7, calls: int = 10, suspended: int = 100_000
) -> list[Figure]:
    """Turns of both sides alternate."""
    return [
        _together(folder, rounds, calls),
        _in_tasks(folder, rounds, calls),
        _alone(folder, rounds, 20),
        _beside_suspended(folder, rounds, suspended, 5_000),
    ]
