"""Drain no-op jobs with PgQueuer: python with_pgqueuer.py URL JOBS; prints seconds.

As in its own benchmark and its guide to performance: uvloop, asyncpg, batches of 100, its settings
of autovacuum, tables that are logged (the others lose jobs when the server does), and several
managers in the process, each with a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 100
MANAGERS = 2


async def main(url: str, jobs: int) -> float:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    if not await queries.schema_is_installed():
        await queries.install()
        await queries.optimize_autovacuum()
    payload = b'{"to":"somebody@example.org","template":"aaaaaaaaaaaaaaaa","locale":"da-DK","n":1}'
    for start in range(0, jobs, 1000):
        n = min(1000, jobs - start)
        await queries.enqueue(["nothing"] * n, [payload] * n, [0] * n)
    last = 0.0

    async def nothing(job: Job) -> None:
        nonlocal last
        last = time.perf_counter()

    managers = []
    for _ in range(MANAGERS):
        manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))
        manager.entrypoint("nothing")(nothing)
        managers.append(manager)
    began = time.perf_counter()
    await asyncio.gather(
        *(
            manager.run(
                batch_size=BATCH,
                mode=QueueExecutionMode.drain,
                dequeue_timeout=timedelta(seconds=1),
            )
            for manager in managers
        )
    )
    return last - began


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(main(sys.argv[1], int(sys.argv[2]))))
