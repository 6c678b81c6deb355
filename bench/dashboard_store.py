"""A store like that of a busy service: three queues, 1,000 tenants with seven groups each, and jobs
of the last ten days, most of which are done. It is filled through the engine's interface, so that
it is the same on every engine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import msgspec
from rich.progress import track

import tenure
from tenure.clock import SystemClock
from tenure.engines import open_engine
from tenure.model import ops
from tenure.model.job import Failure, Job, JobSpec, State, new_ids
from tenure.settings import Settings
from tenure.testing import ManualClock

PAYLOAD = msgspec.Raw(b'{"to":"ann@example.com","template":"welcome","n":12345}')
QUEUES = ("mail", "web", "crawl")
CHUNK = 10_000
PAST_MS = 10 * 86_400_000
GROUP = "0123456789ab"  # of errors
TRACEBACK = "x" * 3_000
BUSY = "busy"  # a worker whose leases do not end


def load(url: str, jobs: int) -> None:
    """Fill a store, set limits, and lease some jobs. A store that has jobs is not changed."""
    with tenure.connect(url) as queue:
        if queue.stats().queues:
            return
    now = SystemClock().now_ms()
    clock = ManualClock(now - PAST_MS)
    engine = open_engine(Settings(url=url), clock)
    try:
        for start in track(range(0, jobs, CHUNK), f"{jobs:,} jobs"):
            numbers = range(start, min(start + CHUNK, jobs))
            entries = [_entry(n, jobs, now) for n in numbers]
            past = ops.Import(tuple(entry for entry in entries if not entry.ready))
            ready = ops.Enqueue(tuple(_spec(entry.job) for entry in entries if entry.ready))
            answers = engine.apply([past, ready])
            assert all(isinstance(answer, ops.Enqueued) for answer in answers), answers
            clock.advance(PAST_MS * CHUNK / jobs / 1000)
    finally:
        engine.close()


def _spec(job: Job) -> JobSpec:
    """A job that is ready is enqueued: one that is imported is stored in another way."""
    return JobSpec(job.id, job.queue, PAYLOAD, job.kind, job.tenant, job.group)


def _entry(n: int, jobs: int, now: int) -> ops.Entry:
    """Of a hundred jobs, 90 are done, 3 are dead, 3 delayed and 4 ready. A tenant enqueues ten at a
    time."""
    created = now - PAST_MS + PAST_MS * n // jobs
    batch, kind = n // 10, n * 7 % 100
    state = State.DONE if kind < 90 else State.DEAD if kind < 93 else State.PENDING
    ended = created + 5_000 if state is not State.PENDING else None
    job = Job(
        id=new_ids(created, 1)[0],
        queue=QUEUES[batch % 3] if n % 10_000 else "rare",
        state=state,
        raw_payload=PAYLOAD,
        priority=0,
        run_at=now + PAST_MS if 93 <= kind < 96 else created,
        created_at=created,
        updated_at=ended or created,
        attempts=0 if ended is None else 1,
        max_attempts=20 if state is not State.DEAD else 1,
        tenant=f"tenant-{batch % 997}" if n % 20_000 else "rare",
        group=f"group-{batch % 7}",
        kind="common" if n % 50_000 else "rare",
        started_at=None if ended is None else created + 1_000,
        worker="" if ended is None else f"worker-{n % 50}",
        finished_at=ended,
        errors=() if state is not State.DEAD else (_failure(created),),
    )
    return ops.Entry(job, ready=kind >= 96)


def _failure(at: int) -> Failure:
    return Failure(at, 1, "boom", "ValueError", TRACEBACK, group=GROUP)


def limit(queue: tenure.Queue) -> None:
    """Set limits, and let a worker hold some jobs."""
    queue.limits.set("web", concurrency=200)
    queue.limits.set("crawl", tenant="*", concurrency=2)
    for name in QUEUES:
        queue.claim(name, limit=3, worker=BUSY, lease=864_000)


def work(url: str) -> None:
    """Enqueue, claim and finish about a hundred jobs a second, until the process is ended."""
    with tenure.connect(url) as queue:
        for n in count():
            name = QUEUES[n % 3]
            new = [
                tenure.NewJob(queue=name, payload=1, tenant=f"tenant-{i % 997}", group="group-1")
                for i in range(10 * n, 10 * n + 10)
            ]
            queue.enqueue_many(new)
            queue.ack_many(queue.claim(name, limit=10, worker="worker-1"))
            time.sleep(0.1)


@contextmanager
def worked_on(*urls: str) -> Iterator[None]:
    """Let a worker run on each of these stores."""
    command = [sys.executable, "-m", "bench.dashboard_store"]
    workers = [subprocess.Popen([*command, url]) for url in urls]
    try:
        time.sleep(1)
        yield
        assert all(worker.poll() is None for worker in workers), "a worker has ended"
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


if __name__ == "__main__":
    work(sys.argv[1])
