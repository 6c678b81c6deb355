"""How long a page of 50 summaries takes in a large store, for each filter that a dashboard offers.

A store of 5,000,000 jobs needs about three minutes and 3 GB: python -m bench.lists 5000000
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

import tenure
from bench.report import Figure, show
from tenure import NewJob
from tenure.testing import ManualClock

CHUNK = 10_000
PAYLOAD = {"to": "ann@example.com", "template": "welcome", "n": 12345}
MOST_MS = 50.0
QUEUES = ("mail", "web", "crawl")

# Of a hundred jobs, 90 are done, 3 dead, 3 delayed and the rest are ready.
_END = """
INSERT INTO tenure_states (seq, queue, state, at, attempts, worker, started_at, updated_at, run_at,
    errors)
SELECT j.seq, t.queue, CASE WHEN j.seq % 100 < 90 THEN 4 WHEN j.seq % 100 < 93 THEN 5 ELSE 1 END,
    j.created_at + CASE WHEN j.seq % 100 < 93 THEN 5000 ELSE 864000000 END, 1,
    'worker-' || (j.seq % 50), j.created_at + 1000, j.created_at + 5000, j.created_at,
    CASE WHEN j.seq % 100 BETWEEN 90 AND 92 THEN '[{"at":5,"attempt":1,"message":"boom",' ||
        '"type":"ValueError","traceback":"' || printf('%.*c', 3000, 'x') || '"}]' END
FROM tenure_jobs j JOIN tenure_lanes l ON l.id = j.lane JOIN tenure_tenants t ON t.id = l.tenant
WHERE j.seq % 100 < 96
"""


def _jobs(start: int, count: int) -> Iterator[NewJob]:
    for n in range(start, start + count):
        yield NewJob(
            queue=QUEUES[n % 3] if n % 10_000 else "rare",
            payload=PAYLOAD,
            tenant=f"tenant-{n % 997}" if n % 20_000 else "rare",
            group=f"group-{n % 7}",
            kind="common" if n % 50_000 else "rare",
        )


def build(path: Path, jobs: int) -> ManualClock:
    """Make a store whose jobs were created over ten days. Returns its clock."""
    clock = ManualClock()
    with tenure.connect(f"sqlite:///{path}", clock=clock) as queue:
        for start in range(0, jobs, CHUNK):
            queue.enqueue_many(_jobs(start, CHUNK))
            clock.advance(864_000 * CHUNK / jobs)
    with sqlite3.connect(path) as connection:
        connection.execute(_END)
        connection.execute("DELETE FROM tenure_ready WHERE seq % 100 < 96")
    connection.close()
    with tenure.connect(f"sqlite:///{path}", clock=clock) as queue:
        for name in (*QUEUES, "rare"):
            queue.reconcile(name)
        queue.claim(list(QUEUES), limit=200, worker="busy", lease=864_000)
    return clock


def _filters(now: datetime) -> dict[str, dict[str, object]]:
    day = timedelta(days=1)
    mail: dict[str, object] = {"queue": "mail"}
    return {
        "everything": {},
        "queue": mail,
        "rare queue": {"queue": "rare"},
        "queue, pending": mail | {"state": "pending"},
        "queue, leased": mail | {"state": "leased"},
        "queue, leased, worker": mail | {"state": "leased", "worker": "nobody"},
        "queue, done": mail | {"state": "done"},
        "queue, dead": mail | {"state": "dead"},
        "queue, dead, tenant": mail | {"state": "dead", "tenant": "tenant-5"},
        "queue, dead, rare kind": mail | {"state": "dead", "kind": "rare"},
        "queue, done, rare kind": mail | {"state": "done", "kind": "rare"},
        "queue, done, worker": mail | {"state": "done", "worker": "nobody"},
        "queue, done a week ago": mail | {"state": "done", "finished_before": now - 7 * day},
        "queue, done in an hour": mail
        | {"state": "done", "finished_after": now - day, "finished_before": now - day * 23 / 24},
        "queue, tenant": mail | {"tenant": "tenant-5"},
        "queue, rare tenant": mail | {"tenant": "rare"},
        "queue, unknown tenant": mail | {"tenant": "nobody"},
        "queue, tenant, group": mail | {"tenant": "tenant-5", "group": "group-3"},
        "queue, group": mail | {"group": "group-3"},
        "queue, kind": mail | {"kind": "rare"},
        "queue, created a week ago": mail | {"created_before": now - 7 * day},
        "queue, created and kind": mail
        | {"created_after": now - 2 * day, "created_before": now - day, "kind": "rare"},
        "tenant": {"tenant": "tenant-5"},
        "kind": {"kind": "rare"},
        "finished": {"finished_before": now - 7 * day},
        "dead, all queues": {"state": "dead"},
        "dead, all queues, kind": {"state": "dead", "kind": "rare"},
        "pending, tenant": {"state": "pending", "tenant": "tenant-5"},
        "worker": {"worker": "worker-7"},
        "unknown worker": {"worker": "nobody"},
    }


def run(folder: Path, *, jobs: int = 1_000_000) -> list[Figure]:
    """Time each list on a large store, and compare it with what a page may take."""
    clock = build(folder / "jobs.db", jobs)
    figures = []
    with tenure.connect(f"sqlite:///{folder / 'jobs.db'}", clock=clock) as queue:
        now = datetime.fromtimestamp(clock.now_ms() / 1000).astimezone()
        for name, where in _filters(now).items():
            times = []
            for _ in range(5):
                start = time.perf_counter()
                page = queue.summaries(**where)  # type: ignore[arg-type]
                times.append((time.perf_counter() - start) * 1000)
            took = median(times)
            found = f"{len(page.jobs)} found, {page.scanned:,} looked at, first {times[0]:.1f} ms"
            figures.append(
                Figure(
                    f"a page: {name} ({found})",
                    rate=1000 / took,
                    floor=1000 / MOST_MS,
                    ratio=MOST_MS / took,
                    at_least=1.0,
                )
            )
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as temporary:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
        show(run(Path(temporary).absolute(), jobs=count))
