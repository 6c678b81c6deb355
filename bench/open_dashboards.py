"""What ten open dashboards cost those who enqueue and claim.

    python -m bench.open_dashboards --jobs 5000000 --keep FOLDER

A process enqueues, claims and finishes jobs of a large SQLite store as fast as it can; a service
has the same store. In turn, nobody looks, and ten dashboards are open: six show the overview, two a
list of jobs, two a job. Each reads again once in a second, which is how often a page does while
jobs change all the time. The stores of `bench.dashboard --keep` can be used again.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import tenure
from bench.dashboard_store import QUEUES, load
from bench.http_load import Talk, request
from bench.report import Figure, show
from tests.server.process import ServiceProcess

DASHBOARDS = 10
ROUNDS = 8
SECONDS = 3.0
EVERY_SECONDS = 1.0
PATIENCE_SECONDS = 20.0
KEEP = {"TENURE_KEEP_DONE": "none"}  # otherwise it would delete the old ones meanwhile
MANY = 10

OVERVIEW = ("/v1/overview",)
LIST = (
    "/v1/overview",
    "/v1/queues/mail/limits",
    "/v1/jobs?summary=true&queue=mail&state=pending&limit=50",
)


def pages_of(job: str) -> list[tuple[str, ...]]:
    """What each dashboard reads."""
    one = tuple(f"/v1/jobs/{job}{part}" for part in ("", "/why", "/history", "/related?limit=20"))
    return [*[OVERVIEW] * 6, LIST, LIST, one, one]


async def look(port: int, job: str) -> None:
    """Keep ten dashboards open until the process is ended."""
    pages = pages_of(job)
    assert len(pages) == DASHBOARDS
    await asyncio.gather(*(_dashboard(port, page) for page in pages))


async def _dashboard(port: int, page: tuple[str, ...]) -> None:
    loop = asyncio.get_running_loop()
    _, talk = await loop.create_connection(Talk, "127.0.0.1", port)
    while True:
        start = loop.time()
        for path in ("/v1/changes?wait=0", *page):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await talk.ask(request(path, b"", "GET"))
        await asyncio.sleep(max(0.0, start + EVERY_SECONDS - loop.time()))


@contextmanager
def open_dashboards(url: str, job: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.open_dashboards", "--look", str(urlsplit(url).port)]
    process = subprocess.Popen([*command, "--job", job])
    try:
        time.sleep(1.5)
        yield
        assert process.poll() is None, "the dashboards have ended"
    finally:
        process.terminate()
        process.wait()


def _work(queue: tenure.Queue, seconds: float) -> tuple[float, float]:
    """Jobs per second, and per second of this process's CPU time."""
    done, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        name = QUEUES[done % len(QUEUES)]
        queue.enqueue_many(
            tenure.NewJob(queue=name, payload=1, tenant=f"tenant-{n}", group="group-1")
            for n in range(MANY)
        )
        queue.ack_many(queue.claim(name, limit=MANY, worker="worker-1"))
        done += MANY
    return done / (time.perf_counter() - start), done / (time.process_time() - cpu)


def measure(url: str, folder: Path) -> list[Figure]:
    alone: list[tuple[float, float]] = []
    watched: list[tuple[float, float]] = []
    service = ServiceProcess(folder, store=url, environment=KEEP)
    try:
        service.start()
        with tenure.connect(url) as queue:
            job = queue.summaries(queue="mail", state="pending", limit=1).jobs[0].id
            _work(queue, 1)
            for _ in range(ROUNDS):
                alone.append(_work(queue, SECONDS))
                with open_dashboards(service.url, job):
                    watched.append(_work(queue, SECONDS))
    finally:
        service.kill()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU time of the service and the dashboards: {used.ru_utime + used.ru_stime:.1f} s")
    names = ("enqueue, claim and ack", "the same, by CPU time of that process")
    figures = []
    for n, name in enumerate(names):
        ratios = [
            with_them[n] / without[n] for without, with_them in zip(alone, watched, strict=True)
        ]
        figures.append(
            Figure(
                f"{name}, with {DASHBOARDS} dashboards open",
                rate=median(one[n] for one in watched),
                floor=median(one[n] for one in alone),
                ratios=ratios,
                at_least=0.95,
            )
        )
    return figures


def run(folder: Path, *, jobs: int = 100_000) -> list[Figure]:
    url = f"sqlite:///{folder / f'{jobs}.db'}"
    load(url, jobs)
    return measure(url, folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.open_dashboards", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="the folder of the SQLite files")
    parser.add_argument("--look", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.look:
        asyncio.run(look(given.look, given.job))
        return
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as temporary:
        show(run((given.keep or Path(temporary)).absolute(), jobs=given.jobs))


if __name__ == "__main__":
    main()
