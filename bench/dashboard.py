"""What the dashboard reads, with many jobs and with 1,000, while workers run: the overview, a page
of 50 summaries for each filter that is offered (how many were found of how many that were looked
at), and explain.

    python -m bench.dashboard --engine sqlite --jobs 5000000
    python -m bench.dashboard --engine postgresql --jobs 1000000

PostgreSQL is started here unless --url says where it is. The time is taken in the process that has
the store. With --keep FOLDER or --url, the stores remain, and the next run need not load them.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import tenure
from bench.dashboard_store import BUSY, limit, load, worked_on
from bench.report import Figure, show
from tenure.features.overview.routes import overview_of
from tenure.model.queries import Summaries
from tests.support.postgres import Server

FEW = 1_000
ROUNDS = 7
MOST_RATIO = 2.0  # to the same with FEW jobs

Read = Callable[[tenure.Queue], object]


def lists(now: datetime) -> dict[str, dict[str, object]]:
    """Filters of a list of jobs."""
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
        "error": {"error": "0123456789ab"},
        "queue, error, kind": mail | {"error": "0123456789ab", "kind": "rare"},
    }


def _explain(**where: object) -> Callable[[tenure.Queue], Read]:
    """Explain the newest job of a list that is not delayed, which is looked up beforehand."""

    def of(queue: tenure.Queue) -> Read:
        now = time.time() * 1000
        found = queue.summaries(limit=50, **where).jobs  # type: ignore[arg-type]
        job = next(job for job in found if job.run_at <= now)
        return lambda queue: queue.explain(job.id)

    return of


def _first_ready(name: str) -> Callable[[tenure.Queue], Read]:
    """Explain the job that comes next."""

    def of(queue: tenure.Queue) -> Read:
        (job,) = queue.claim(name, limit=1, worker="looks")
        queue.release(job)
        return lambda queue: queue.explain(job.id)

    return of


# By name: what is read, given a store, and how many milliseconds it may take.
Reads = dict[str, tuple[Callable[[tenure.Queue], Read], float]]


def explained() -> Reads:
    """Jobs in all states, and with all kinds of limits."""
    found: Reads = {
        f"explain: {what}": (of, 20.0)
        for what, of in {
            "ready": _explain(queue="mail", state="pending"),
            "ready, of a full tenant": _explain(queue="crawl", state="pending"),
            "ready, of a limited queue": _explain(queue="web", state="pending"),
            "the next of a queue": _first_ready("mail"),
            "running": _explain(state="leased", worker=BUSY),
            "done": _explain(state="done"),
            "dead": _explain(state="dead"),
        }.items()
    }
    return found


def _reads() -> Reads:
    found: Reads = {"overview": (lambda _: _overview, 100.0)}
    for name, where in lists(datetime.now(UTC)).items():
        found[f"a page: {name}"] = (_page(where), 50.0)
    return found | explained()


def _overview(queue: tenure.Queue) -> object:
    return asyncio.run(overview_of(queue))


def _page(where: dict[str, object]) -> Callable[[tenure.Queue], Read]:
    return lambda _: lambda queue: queue.summaries(**where)  # type: ignore[arg-type]


def _measured(small: tenure.Queue, large: tenure.Queue, reads: Reads) -> Iterator[Figure]:
    """Each is read in both stores in turn."""
    for name, (of, most) in reads.items():
        times: tuple[list[float], list[float]] = ([], [])
        found: list[object] = [None, None]
        read = [of(queue) for queue in (small, large)]
        for _ in range(ROUNDS):
            for n, queue in enumerate((small, large)):
                start = time.perf_counter()
                found[n] = read[n](queue)
                times[n].append((time.perf_counter() - start) * 1000)
        few, many = map(median, times)
        yield Figure(
            f"{name}{_looked_at(found[1])} (first {times[1][0]:.1f})",
            rate=many,
            floor=few,
            ratios=[many / few],
            at_most=MOST_RATIO if _are_alike(*found) else None,
            most_rate=most,
            unit="ms",
        )


def _looked_at(found: object) -> str:
    if not isinstance(found, Summaries):
        return ""
    return f": {len(found.jobs)} of {found.scanned:,}"


def _are_alike(few: object, many: object) -> bool:
    """Whether a page of the small store has as many jobs, and looked at as many, as one of the
    large store. A list that finds few looks at up to 10,000 jobs, more than the small store has."""
    if not isinstance(few, Summaries) or not isinstance(many, Summaries):
        return True
    return len(few.jobs) >= len(many.jobs) and few.scanned >= many.scanned


def measure(small: str, large: str, jobs: int) -> list[Figure]:
    """Load both stores, and read each in turn: at first without workers, as a store is that nobody
    has claimed from."""
    load(small, FEW)
    load(large, jobs)
    with tenure.connect(small) as few, tenure.connect(large) as many:
        untouched = {
            f"{name}, no worker yet": of
            for name, of in {"overview": _reads()["overview"], **explained()}.items()
            if "next" not in name and "running" not in name
        }
        figures = list(_measured(few, many, untouched))
        for queue in (few, many):
            limit(queue)
        with worked_on(small, large):
            return figures + list(_measured(few, many, _reads()))


@contextmanager
def _stores(engine: str, url: str | None, folder: Path, jobs: int) -> Iterator[tuple[str, str]]:
    if engine == "sqlite":
        yield f"sqlite:///{folder / 'few.db'}", f"sqlite:///{folder / f'{jobs}.db'}"
        return
    server = Server(shared_buffers="256MB") if url is None else None
    where = url if server is None else server.url
    assert where is not None
    mark = "&" if "?" in where else "?"
    try:
        yield f"{where}{mark}schema=few", f"{where}{mark}schema=many_{jobs}"
    finally:
        if server is not None:
            server.stop()


def run(folder: Path, *, engine: str = "sqlite", jobs: int = 1_000_000) -> list[Figure]:
    with _stores(engine, None, folder, jobs) as (small, large):
        return measure(small, large, jobs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="the folder of the SQLite files")
    parser.add_argument("--url", help="of a PostgreSQL database")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as temporary:
        folder = (given.keep or Path(temporary)).absolute()
        with _stores(given.engine, given.url, folder, given.jobs) as (small, large):
            show(measure(small, large, given.jobs))


if __name__ == "__main__":
    main()
