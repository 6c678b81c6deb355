"""What a claim costs as the backlog grows, and when most of it cannot run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rich.progress import track

import tenure
from bench.batches import PAYLOAD
from bench.memory import resident_mib
from bench.report import Figure
from tenure import NewJob

CHUNK = 10_000


def _load(queue: tenure.Queue, jobs: Iterator[NewJob], total: int, what: str) -> None:
    chunk: list[NewJob] = []
    for new in track(jobs, what, total=total):
        chunk.append(new)
        if len(chunk) == CHUNK:
            queue.enqueue_many(chunk)
            chunk = []
    queue.enqueue_many(chunk)


def _claim_times(queue: tenure.Queue, limit: int, claims: int) -> list[float]:
    """Claim and give back, so that the backlog does not change."""
    times = []
    for _ in range(claims):
        start = time.perf_counter()
        jobs = queue.claim("work", limit=limit, worker="w")
        times.append(time.perf_counter() - start)
        assert len(jobs) == limit
        for job in jobs:
            queue.release(job)
    return times


def _plain(n: int) -> Iterator[NewJob]:
    return (NewJob(queue="work", payload=PAYLOAD) for _ in range(n))


def _blocked(n: int, tenants: int) -> Iterator[NewJob]:
    """One in a hundred can run; the others are delayed, waiting, paused or of full groups."""
    for i in range(n):
        tenant, kind = f"tenant-{i % tenants}", i // tenants % 100
        if kind == 0:
            yield NewJob(queue="work", payload=PAYLOAD, tenant=tenant)
        elif kind <= 25:
            yield NewJob(queue="work", payload=PAYLOAD, tenant=tenant, delay=86_400)
        elif kind <= 50:
            yield NewJob(queue="work", payload=PAYLOAD, tenant=tenant, after=["never"])
        elif kind <= 75:
            yield NewJob(queue="work", payload=PAYLOAD, tenant=tenant, group="paused")
        else:
            yield NewJob(queue="work", payload=PAYLOAD, tenant=tenant, group=f"full-{i % 3}")


def _block(queue: tenure.Queue, tenants: int) -> None:
    """Fill the groups, and pause others, before the backlog comes."""
    queue.enqueue("elsewhere", id="never", delay=864_000)
    queue.pause("work", group="paused")
    for group in range(3):
        queue.limits.set("work", group=f"full-{group}", concurrency=1)
    full = [
        NewJob(queue="work", payload=PAYLOAD, tenant=f"tenant-{i}", group=f"full-{group}")
        for i in range(tenants)
        for group in range(3)
    ]
    queue.enqueue_many(full)
    held = 0
    while held < len(full):
        held += len(queue.claim("work", limit=1000, lease=86_400, worker="holder"))


def run(folder: Path, *, jobs: int = 1_000_000, tenants: int = 1_000) -> list[Figure]:
    """A small queue and a large one side by side, claimed from in turn."""
    figures = []
    with (
        tenure.connect(f"sqlite:///{folder / 'small.db'}") as small,
        tenure.connect(f"sqlite:///{folder / 'large.db'}") as large,
    ):
        _load(small, _plain(1_000), 1_000, "1,000 jobs")
        before = resident_mib()
        _load(large, _plain(jobs // 10), jobs // 10, f"{jobs // 10:,} jobs")
        some = resident_mib()
        _load(large, _plain(jobs - jobs // 10), jobs - jobs // 10, f"{jobs:,} jobs")
        for limit in (1, 100):
            pairs = []
            for _ in range(20):
                few = median(_claim_times(small, limit, 3))
                many = median(_claim_times(large, limit, 3))
                pairs.append((few, many))
            figures.append(
                Figure(
                    f"claim of {limit} at {jobs:,} against 1,000",
                    rate=limit / median(many for _, many in pairs),
                    floor=limit / median(few for few, _ in pairs),
                    ratios=[few / many for few, many in pairs],
                    at_least=0.7,
                )
            )
        figures.append(
            Figure(
                f"resident memory at {jobs:,} against {jobs // 10:,}",
                rate=resident_mib(),
                floor=some,
                ratios=[resident_mib() / some],
                at_most=1.2,
                unit=f"MiB ({before:.0f} before)",
            )
        )
    with (
        tenure.connect(f"sqlite:///{folder / 'free.db'}") as free,
        tenure.connect(f"sqlite:///{folder / 'blocked.db'}") as blocked,
    ):
        _load(free, (NewJob(queue="work", payload=PAYLOAD, tenant=f"tenant-{i}")
                     for i in range(1_000)), 1_000, "1,000 jobs, nothing blocked")  # fmt: skip
        _block(blocked, tenants)
        _load(blocked, _blocked(jobs, tenants), jobs, f"{jobs:,} jobs, 99% blocked")
        for limit in (1, 10, 100):
            pairs = []
            for _ in range(20):
                few = median(_claim_times(free, limit, 3))
                many = median(_claim_times(blocked, limit, 3))
                pairs.append((few, many))
            figures.append(
                Figure(
                    f"claim of {limit} of {tenants:,} tenants, 99% of {jobs:,} blocked: cost",
                    rate=median(many for _, many in pairs) * 1e6,
                    floor=median(few for few, _ in pairs) * 1e6,
                    ratios=[many / few for few, many in pairs],
                    at_most=3.0,
                    unit="us",
                )
            )
    return figures
