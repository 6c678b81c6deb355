"""Two processes that write to two shards, against the same two on one file.

In each process one caller waits for its call before it makes the next, or several do so at once, as
in a service. A caller that is alone often waits for the other process, because each of its batches
belongs to one shard. With several, there is something to do for both shards all the time.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Coroutine, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import tenure
from bench.batches import BATCH, PAYLOAD
from bench.report import Figure

PROCESSES = 2
ROUNDS = 7  # of each, in turns
BATCHES = 160  # of each process in a round
TENANTS = [f"tenant-{n}" for n in range(16)]  # eight on each of two shards, more or less
# By the number of callers in each process. Wanted was 1.5.
AT_LEAST = {1: {"enqueue": 0.9, "claim": 1.0}, 8: {"enqueue": 1.0, "claim": 1.5}}


def run(folder: Path) -> list[Figure]:
    """Rates of durable enqueues and of claims, in batches."""
    return [figure for callers in AT_LEAST for figure in _run(folder, callers)]


def _run(folder: Path, callers: int) -> Iterator[Figure]:
    urls = {
        "one": f"sqlite:///{folder}/one-{callers}.db",
        "two": f"sqlite:///{folder}/two-{callers}-{{0..1}}.db",
    }
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, url in urls.items():
            for step, rate in _round(url, callers).items():
                rates.setdefault((name, step), []).append(rate)
    for step in STEPS:
        two, one = rates["two", step], rates["one", step]
        yield Figure(
            f"two shards against one file: {step}, {PROCESSES} processes with {callers} "
            f"caller{'s' if callers > 1 else ''} each",
            rate=statistics.median(two),
            floor=statistics.median(one),
            ratios=[a / b for a, b in zip(two, one, strict=True)],
            at_least=AT_LEAST[callers][step],
        )


async def _enqueue(queue: tenure.Queue, number: int, batches: Iterator[int]) -> None:
    for n in batches:
        tenant = TENANTS[(number * len(TENANTS) // PROCESSES + n) % len(TENANTS)]
        await queue.aenqueue_many(
            [tenure.NewJob(queue="mail", payload=PAYLOAD, tenant=tenant) for _ in range(BATCH)]
        )


async def _claim(queue: tenure.Queue, number: int, batches: Iterator[int]) -> None:
    for _ in batches:
        await queue.aclaim("mail", limit=BATCH, worker=f"w{number}", lease=3600)


Step = Callable[[tenure.Queue, int, Iterator[int]], Coroutine[object, object, None]]
STEPS: dict[str, Step] = {"enqueue": _enqueue, "claim": _claim}


def _round(url: str, callers: int) -> dict[str, float]:
    """Jobs a second of all processes together."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES + 1)
    many = [
        context.Process(target=_life, args=(url, barrier, number, callers))
        for number in range(PROCESSES)
    ]
    for one in many:
        one.start()
    rates = {}
    for step in STEPS:
        barrier.wait()
        began = time.perf_counter()
        barrier.wait()
        rates[step] = PROCESSES * BATCHES * BATCH / (time.perf_counter() - began)
    for one in many:
        one.join()
    return rates


def _life(url: str, barrier: Barrier, number: int, callers: int) -> None:
    with tenure.connect(url) as queue:
        for step in STEPS.values():
            barrier.wait()
            asyncio.run(_at_once(queue, number, callers, step))
            barrier.wait()


async def _at_once(queue: tenure.Queue, number: int, callers: int, step: Step) -> None:
    batches = iter(range(BATCHES))
    await asyncio.gather(*(step(queue, number, batches) for _ in range(callers)))
