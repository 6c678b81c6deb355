"""How the cost of a job grows with the backlog, tenants, worker processes and payload, as charts.

    python -m bench.curves                                    all charts, into docs/images
    python -m bench.curves --axis tenants --largest 10000     one of them, and a smaller one

Rates are shown as ratios to a floor that is measured in turn with Tenure: hand-written code on one
narrow table that holds no backlog. The workers are processes that claim and ack ten jobs at a time;
their rate is shown as a multiple of that of one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track

import tenure
from bench import floor as sqlite_floor
from bench import postgres as postgres_floor
from bench.batches import BATCH, PAYLOAD, Pair, timed
from bench.chart import Panel, draw
from tenure import NewJob
from tests.support.postgres import Server

CHUNK = 10_000
IMAGES = Path(__file__).parents[1] / "docs" / "images"
Lines = dict[str, list[tuple[float, float]]]

WORKER = """
import sys, tenure
with tenure.connect(sys.argv[1]) as queue:
    print("ready", flush=True)
    sys.stdin.readline()
    while jobs := queue.claim("work", limit=10, worker=sys.argv[2]):
        queue.ack_many(jobs)
"""


@contextmanager
def sqlite() -> Iterator[tuple[str, Any]]:
    """The URL of a new store, and the floor."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        place = Path(folder).absolute()
        floor = sqlite_floor.Floor(place / "floor.db")
        yield f"sqlite:///{place / 'jobs.db'}", floor
        floor.close()


@contextmanager
def postgres() -> Iterator[tuple[str, Any]]:
    server = Server(shared_buffers="512MB")
    try:
        floor = postgres_floor.Floor(server.url)
        yield server.url, floor
        floor.close()
    finally:
        server.stop()


ENGINES = {"SQLite": sqlite, "PostgreSQL": postgres}


def load(queue: tenure.Queue, jobs: Iterator[NewJob], total: int) -> None:
    """Add many jobs, with a progress bar."""
    chunk: list[NewJob] = []
    for new in track(jobs, f"loading {total:,} jobs", total=total):
        chunk.append(new)
        if len(chunk) == CHUNK:
            queue.enqueue_many(chunk)
            chunk.clear()
    if chunk:
        queue.enqueue_many(chunk)
    queue.maintain()


def measure(
    queue: tenure.Queue, floor: Any, jobs: Iterator[NewJob], text: str, batch: int = BATCH
) -> dict[str, float]:
    """The ratios of enqueue, claim and ack to the floor, over batches in turn."""
    pairs = {"enqueue": Pair(), "claim": Pair(), "ack": Pair()}
    for _ in range(60):
        some = [next(jobs) for _ in range(batch)]
        timed(pairs["enqueue"].floor, partial(floor.enqueue, [text] * batch))
        timed(pairs["enqueue"].tenure, partial(queue.enqueue_many, some))
        rows = timed(pairs["claim"].floor, partial(floor.claim, batch))
        mine = timed(pairs["claim"].tenure, partial(queue.claim, "work", limit=batch, worker="w"))
        assert len(mine) == batch
        timed(pairs["ack"].floor, partial(floor.ack, rows))
        timed(pairs["ack"].tenure, partial(queue.ack_many, mine))
    return {name: median(pair.ratios()) for name, pair in pairs.items()}


def powers(first: int, last: int) -> list[int]:
    """The powers of ten between two numbers."""
    return [10**n for n in range(9) if first <= 10**n <= last]


def add(lines: Lines, x: float, found: dict[str, float]) -> None:
    for name, y in found.items():
        lines.setdefault(name, []).append((x, y))
    figures = ", ".join(f"{name} {y:.2f}" for name, y in found.items())
    Console().print(f"  {x:,.0f}: {figures}")


def plain(payload: Any = PAYLOAD) -> Iterator[NewJob]:
    while True:
        yield NewJob(queue="work", payload=payload)


def of_tenants(tenants: int) -> Iterator[NewJob]:
    """One job of each tenant after another."""
    while True:
        for n in range(tenants):
            yield NewJob(queue="work", payload=PAYLOAD, tenant=f"tenant-{n}")


def first_of(jobs: Iterator[NewJob], count: int) -> Iterator[NewJob]:
    return (next(jobs) for _ in range(count))


def text_of(payload: Any) -> str:
    return msgspec.json.encode(payload).decode()


def backlog(engine: Callable[[], Any], largest: int) -> Lines:
    """One store that grows."""
    lines: Lines = {}
    with engine() as (url, floor), tenure.connect(url) as queue:
        held = 0
        for size in powers(1_000, largest):
            load(queue, first_of(plain(), size - held), size - held)
            held = size
            add(lines, size, measure(queue, floor, plain(), text_of(PAYLOAD)))
    return lines


def tenants(engine: Callable[[], Any], largest: int) -> Lines:
    """A job of each tenant waits, and each batch is of the next hundred tenants."""
    lines: Lines = {}
    for count in powers(1, largest):
        with engine() as (url, floor), tenure.connect(url) as queue:
            jobs = of_tenants(count)
            load(queue, first_of(jobs, max(count, BATCH)), max(count, BATCH))
            add(lines, count, measure(queue, floor, jobs, text_of(PAYLOAD)))
    return lines


def payload(engine: Callable[[], Any], largest: int) -> Lines:
    lines: Lines = {}
    for size in powers(100, largest):
        with engine() as (url, floor), tenure.connect(url) as queue:
            text = {"text": "x" * (size - len('{"text":""}'))}
            batch = max(1, min(BATCH, 4_000_000 // size))
            add(lines, size, measure(queue, floor, plain(text), text_of(text), batch))
    return lines


def workers(engine: Callable[[], Any], largest: int) -> Lines:
    """Processes that drain a queue of 20 tenants together."""
    lines: Lines = {}
    one = 0.0
    for count in (n for n in (1, 2, 4, 8, 16) if n <= largest):
        with engine() as (url, _):
            rate = _drained(url, count, jobs=20_000)
        one = one or rate
        add(lines, count, {"drained": rate / one})
    return lines


def _drained(url: str, count: int, jobs: int) -> float:
    with tenure.connect(url) as queue:
        load(queue, first_of(of_tenants(20), jobs), jobs)
        command = [sys.executable, "-c", WORKER, url]
        running = [
            subprocess.Popen(
                [*command, f"w{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for n in range(count)
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        began = time.perf_counter()
        for process in running:
            process.communicate("\n")
        took = time.perf_counter() - began
        assert [process.returncode for process in running] == [0] * count
        assert queue.stats("work").done == jobs
    return jobs / took


FLOOR = "rate, to the floor"
# what it measures, the largest value, the horizontal axis, the vertical one
AXES: dict[str, tuple[Callable[[Callable[[], Any], int], Lines], int, str, str]] = {
    "backlog": (backlog, 10_000_000, "jobs in the backlog", FLOOR),
    "tenants": (tenants, 100_000, "tenants, in strict turns", FLOOR),
    "payload": (payload, 1_000_000, "bytes of payload", FLOOR),
    "workers": (workers, 16, "worker processes on two cores", "rate, to one worker"),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--axis", action="append", choices=AXES)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--largest", type=int, help="the largest value of the axis")
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args(arguments)
    for axis in options.axis or AXES:
        run, largest, across, upwards = AXES[axis]
        panels = []
        for name in options.engine or ENGINES:
            Console().print(f"{axis}, {name}")
            panels.append(Panel(name, run(ENGINES[name], options.largest or largest)))
        path = options.out / f"curve-{axis}.svg"
        path.write_text(draw(panels, across, upwards))
        Console().print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
