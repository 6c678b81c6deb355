"""Drain no-op jobs with Tenure: python -m bench.rivals.with_tenure URL JOBS; prints seconds, from
the start of the worker to its end, with every result stored."""

from __future__ import annotations

import asyncio
import sys
import time

from bench.batches import PAYLOAD
from tenure import Task, Tenure

CONCURRENCY = 500


def main(url: str, jobs: int) -> float:
    async def nothing(to: str, template: str, locale: str, n: int) -> None: ...

    with Tenure(url) as app:
        task: Task[..., object] = app.task(nothing)
        for start in range(0, jobs, 1000):
            task.enqueue_many([PAYLOAD] * min(1000, jobs - start))
        began = time.perf_counter()
        asyncio.run(app.worker(burst=True, concurrency=CONCURRENCY, schedule=False).run())
        seconds = time.perf_counter() - began
        assert app.queue.stats().unfinished == 0
    return seconds


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
