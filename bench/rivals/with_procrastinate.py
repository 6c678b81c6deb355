"""Drain no-op jobs with Procrastinate: python with_procrastinate.py URL JOBS; prints seconds.

As its documentation has it for many short jobs: an async task, concurrency above one, a pool of
connections. Done jobs are deleted as they end, which it does in the statement that ends them. It is
given uvloop, which the documentation does not mention.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import procrastinate
import uvloop

CONCURRENCY = 30
CONNECTIONS = 10


async def main(url: str, jobs: int) -> float:
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(
            conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS
        )
    )
    last = 0.0

    async def do_nothing(to: str, template: str, locale: str, n: int) -> None:
        nonlocal last
        last = time.perf_counter()

    nothing = app.task(do_nothing, name="nothing")
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        payload = {"to": "somebody@example.org", "template": "a" * 30, "locale": "da-DK", "n": 1}
        for start in range(0, jobs, 1000):
            await nothing.batch_defer_async(*[payload] * min(1000, jobs - start))
        began = time.perf_counter()
        await app.run_worker_async(
            wait=False,
            concurrency=CONCURRENCY,
            listen_notify=False,
            delete_jobs="always",
            install_signal_handlers=False,
        )
    return last - began


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(main(sys.argv[1], int(sys.argv[2]))))
