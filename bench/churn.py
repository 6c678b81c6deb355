"""Many jobs through a PostgreSQL queue that always holds some, while a reader keeps an old
snapshot for part of the time: what was done and cannot be vacuumed must not slow down claims.

The long form: python -m bench.churn --jobs 2000000 --held 100000
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import psycopg
from rich.progress import track

import tenure
from bench.batches import BATCH, PAYLOAD
from bench.report import Figure, show
from tests.support.postgres import Server

LEASE = 0.5  # seconds: so that the leases of jobs that are done run out, too


def run(folder: Path, *, jobs: int = 200_000, held: int = 10_000) -> list[Figure]:
    server = Server(shared_buffers="128MB")
    try:
        return _run(server.url, jobs, held)
    finally:
        server.stop()


def _run(url: str, jobs: int, held: int) -> list[Figure]:
    slices, rates, sizes = 20, [], []
    with tenure.connect(url) as queue, psycopg.connect(url) as reader:
        for _ in range(held // BATCH):
            _enqueue(queue)
        for n in track(range(slices), f"{jobs:,} jobs"):
            if n == slices // 4:
                reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                reader.execute("SELECT count(*) FROM tenure.queues")
            if n == slices * 3 // 4:
                reader.rollback()
            rates.append(_cycle(queue, jobs // slices))
            queue.maintain(limit=10_000) if n % 2 else None
            sizes.append(_size(url))
    start, end = rates[1:4], rates[-3:]
    return [
        Figure(
            f"PostgreSQL: claim after {jobs:,} jobs against the first",
            rate=sum(end) / len(end),
            floor=sum(start) / len(start),
            ratios=[sum(end) / sum(start)],
            at_least=0.7,
        ),
        Figure(
            "PostgreSQL: size of the hot tables but for finished jobs",
            rate=sizes[-1],
            floor=sizes[slices // 4],
            ratios=[sizes[-1] / sizes[slices // 4]],
            unit="MiB",
        ),
    ]


def _enqueue(queue: tenure.Queue) -> None:
    queue.enqueue_many([tenure.NewJob(queue="mail", payload=PAYLOAD) for _ in range(BATCH)])


def _cycle(queue: tenure.Queue, jobs: int) -> float:
    """Claim, ack and enqueue; jobs claimed in a second of claiming."""
    spent = 0.0
    for _ in range(jobs // BATCH):
        begin = time.perf_counter()
        mine = queue.claim("mail", limit=BATCH, lease=LEASE, worker="w")
        spent += time.perf_counter() - begin
        assert len(mine) == BATCH
        for job in mine:
            assert job.attempts == 1
        queue.ack_many(mine)
        _enqueue(queue)
    return jobs / spent


def _size(url: str) -> float:
    """MiB of the tables whose rows come and go."""
    with psycopg.connect(url) as connection:
        ((size,),) = connection.execute(
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = 'tenure'::regnamespace "
            "AND relname IN ('news', 'lanes', 'tenants', 'queues', 'keys', 'deps')"
        ).fetchall()
    return float(size) / 2**20


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.churn")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--held", type=int, default=10_000)
    options = parser.parse_args(arguments)
    figures = run(Path(), jobs=options.jobs, held=options.held)
    show(figures)
    return 0 if all(figure.kept for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
