"""What a worker adds: draining no-op tasks, the start of a job when idle, idleness, memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median, quantiles

from rich.progress import Progress

from bench.batches import BATCH, PAYLOAD, TEXT, Pair, timed
from bench.floor import Floor
from bench.memory import resident_mib
from bench.report import Figure
from tenure import Task, Tenure

JOBS = 5_000  # of one round
CONCURRENCY = 200

OTHER = """
import sys, time
from tenure import Tenure
app = Tenure(sys.argv[1])
@app.task
async def other(at: float) -> None: ...
for _ in range(int(sys.argv[2])):
    time.sleep(0.1)
    other.enqueue(time.time())
"""


def _cycle(floor: Floor) -> None:
    for _ in range(JOBS // BATCH):
        floor.enqueue([TEXT] * BATCH)
    for _ in range(JOBS // BATCH):
        floor.ack(floor.claim(BATCH))


def _drain(app: Tenure) -> None:
    worker = app.worker(burst=True, concurrency=CONCURRENCY)
    asyncio.run(worker.run())


def _against_the_floor(folder: Path, app: Tenure, rounds: int) -> list[Figure]:
    async def in_the_loop(to: str, template: str, locale: str, n: int) -> None: ...

    def in_a_thread(to: str, template: str, locale: str, n: int) -> None: ...

    figures = []
    kinds = (("async tasks", in_the_loop, 0.25), ("plain functions in threads", in_a_thread, 0.1))
    for name, function, promise in kinds:
        task: Task[..., object] = app.task(function)
        pair, floor = Pair(), Floor(folder / f"floor-{task.name}.db")
        for _ in range(rounds):
            for _ in range(JOBS // 1000):
                task.enqueue_many([PAYLOAD] * 1000)
            timed(pair.floor, partial(_cycle, floor))
            timed(pair.tenure, partial(_drain, app))
            assert app.queue.stats().unfinished == 0
        floor.close()
        figures.append(
            Figure(
                f"draining {name}, to a cycle of enqueue, claim, ack",
                rate=JOBS / median(pair.tenure),
                floor=JOBS / median(pair.floor),
                ratios=pair.ratios(),
                at_least=promise,
            )
        )
    return figures


def _limited(name: str, seconds: float, limit: float) -> Figure:
    """A time, and what it may be at most in place of a floor."""
    return Figure(
        name, seconds * 1e6, limit * 1e6, ratios=[seconds / limit], at_most=1.0, unit="microseconds"
    )


async def _idle(app: Tenure, url: str, floor: Floor, starts: int, seconds: float) -> list[Figure]:
    began = asyncio.Event()
    at = 0.0
    waits: dict[str, list[float]] = {"here": [], "answered": [], "other": [], "commit": []}

    @app.task
    async def here() -> None:
        nonlocal at
        at = time.perf_counter()
        began.set()

    @app.task
    async def other(at: float) -> None:
        waits["other"].append(time.time() - at)

    worker = app.worker(queues=["default"])
    await worker.start()
    for _ in range(starts):
        await asyncio.sleep(0.05)
        timed(waits["commit"], lambda: floor.enqueue([TEXT]))
        began.clear()
        asked = time.perf_counter()
        await here.aenqueue()
        answered = time.perf_counter()
        await began.wait()
        waits["here"].append(at - asked)
        waits["answered"].append(at - answered)
    command = [sys.executable, "-c", OTHER, url, str(starts // 3)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    while (await app.queue.astats()).unfinished:
        await asyncio.sleep(0.05)
    used = time.process_time()
    await asyncio.sleep(seconds)
    used = (time.process_time() - used) / seconds
    await worker.stop()
    last = {name: quantiles(some, n=100)[98] for name, some in waits.items()}
    found = {name: (median(some), last[name]) for name, some in waits.items()}
    return [
        *(
            _limited(f"{what}, idle, one process: {which}", found[name][n], limit)
            for name, what in (
                ("here", "call of enqueue to start of the task"),
                ("answered", "answer of enqueue to start of the task"),
            )
            for n, (which, limit) in enumerate((("median", 0.002), ("p99", 0.010)))
        ),
        Figure(
            "call of enqueue to start, to one plain durable commit",
            found["here"][0] * 1e6,
            found["commit"][0] * 1e6,
            [found["here"][0] / found["commit"][0]],
            unit="microseconds",
        ),
        _limited("enqueue to start, across processes: median", found["other"][0], 0.050),
        _limited("enqueue to start, across processes: p99", found["other"][1], 0.050),
        Figure("an idle worker", used * 1e6, 1e4, [used / 0.01], at_most=1.0, unit="us of CPU/s"),
    ]


def _flat(app: Tenure, jobs: int) -> Figure:
    """Drain a million: what a worker holds must not grow with what it has done."""

    async def nothing() -> None: ...

    task: Task[..., object] = app.task(nothing)
    sizes: list[float] = []
    with Progress() as progress:
        bar = progress.add_task(f"draining {jobs:,} jobs", total=jobs)
        for _ in range(10):
            for _ in range(jobs // 10_000):
                task.enqueue_many([()] * 1000)
            _drain(app)
            sizes.append(resident_mib())
            progress.advance(bar, jobs // 10)
    return Figure(
        f"resident memory after {jobs:,} jobs, to after {jobs // 10:,}",
        sizes[-1],
        sizes[0],
        [sizes[-1] / sizes[0]],
        at_most=1.1,
        unit="MiB",
    )


def run(
    folder: Path, *, rounds: int = 7, starts: int = 300, seconds: float = 10, jobs: int = 1_000_000
) -> list[Figure]:
    figures: list[Figure] = []
    with Tenure(f"sqlite:///{folder / 'drain.db'}") as app:
        figures += _against_the_floor(folder, app, rounds)
    url = f"sqlite:///{folder / 'idle.db'}"
    floor = Floor(folder / "floor-idle.db")
    with Tenure(url) as app:
        figures += asyncio.run(_idle(app, url, floor, starts, seconds))
    floor.close()
    with Tenure(f"sqlite:///{folder / 'flat.db'}") as app:
        figures.append(_flat(app, jobs))
    return figures
