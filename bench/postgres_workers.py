"""No-op jobs of 1,000 tenants, with limits of the queue and of each tenant, on PostgreSQL: four
worker processes against one, in turn. Each process is started before the time is taken.

    python -m bench.postgres_workers URL    is one of these processes
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from statistics import median

import tenure
from bench.batches import PAYLOAD
from bench.report import Figure
from tenure import Tenure
from tests.support.postgres import Server

TENANTS, JOBS = 1_000, 40_000  # enough that the start of the workers does not count
PROCESSES = 4
CONCURRENCY = 100
QUEUE = "work"


def run(*, rounds: int = 3) -> list[Figure]:
    """Drain the same backlog with one process and with four."""
    rates: dict[int, list[float]] = {1: [], PROCESSES: []}
    server = Server(shared_buffers="128MB")
    try:
        for n in range(rounds):
            for processes, mine in rates.items():
                url = f"{server.url}&schema=drained_{n}_by_{processes}"
                mine.append(JOBS / _drain(url, processes))
    finally:
        server.stop()
    one, four = rates.values()
    return [
        Figure(
            f"PostgreSQL: {TENANTS:,} tenants, limits on, {PROCESSES} worker processes to 1",
            rate=median(four),
            floor=median(one),
            ratios=[a / b for a, b in zip(four, one, strict=True)],
            at_least=0.9,
        )
    ]


def _drain(url: str, processes: int) -> float:
    """Seconds from the start of all workers to the end of the last."""
    with tenure.connect(url) as queue:
        queue.limits.set(QUEUE, concurrency=PROCESSES * CONCURRENCY)
        queue.limits.set(QUEUE, tenant="*", concurrency=5)
        for start in range(0, JOBS, 1_000):
            numbers = range(start, start + 1_000)
            queue.enqueue_many(
                tenure.NewJob(
                    queue=QUEUE, payload=PAYLOAD, kind="nothing", tenant=f"t{n % TENANTS}"
                )
                for n in numbers
            )
        command = [sys.executable, "-m", "bench.postgres_workers", url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = [subprocess.Popen(command, **pipes) for _ in range(processes)]  # type: ignore[call-overload]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        began = time.time()
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        ended = max(float(worker.communicate()[0]) for worker in workers)
        assert queue.stats(QUEUE).done == JOBS
    return ended - began


def work(url: str) -> None:
    """Run jobs until there are none left, once told to."""
    with Tenure(url) as app:

        @app.task(name="nothing", queue=QUEUE)
        async def nothing(to: str, template: str, locale: str, n: int) -> None: ...

        worker = app.worker(burst=True, concurrency=CONCURRENCY, schedule=False)
        print("ready", flush=True)
        sys.stdin.readline()
        asyncio.run(worker.run())
        print(time.time())


if __name__ == "__main__":
    work(sys.argv[1])
