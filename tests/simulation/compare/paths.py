"""The table of production paths: how often each must be taken in a run as long as in CI, and how
many jobs it must move.

The code names its paths in comments (`path: NAME`, see `counting.py`). Each must be taken at least
once. Paths that carry most of the load in production have their own minimum. The minimum of a
longer run is half of what would be proportional.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.compare.counting import Counts


class CiRun(NamedTuple):
    """The run of an engine in CI."""

    seeds: tuple[int, ...]
    steps: int  # of each

    @property
    def total(self) -> int:
        return len(self.seeds) * self.steps


CI: dict[str, CiRun] = {
    "sqlite": CiRun((0, 1, 2, 3), 300),
    "postgres": CiRun((0, 1, 2, 3, 4, 5), 140),
    "shards-one": CiRun((0, 1), 120),
    "http": CiRun((0, 1, 2, 3), 150),
    "foundationdb": CiRun((0, 1, 2, 3, 4, 5, 12, 20, 31), 110),
    "foundationdb-faults": CiRun((1,), 80),
}

Floor = tuple[int, int]  # times, jobs

FLOORS: dict[str, dict[str, Floor]] = {
    "shards-one": {
        "a batch over shards": (50, 0),
        "a claim over shards": (20, 0),
        "a keyed call over shards": (5, 0),
        "a list over shards": (5, 0),
    },
    "sqlite": {
        "an enqueue by the rules": (200, 3_000),
        "plain jobs stored": (80, 1_500),
        "a job with options stored": (120, 300),
        "a claim": (200, 3_000),
        "a claim in turns": (250, 0),
        "a claim for one tenant": (20, 0),
        "jobs read as one value": (200, 800),
        "the first jobs of a lane": (400, 0),
        "jobs read by lane": (400, 2_000),
        "jobs read by number": (100, 300),
        "large payloads read": (10, 10),
        "a plain ack": (150, 2_000),
        "an ack of jobs that the books know": (200, 300),
        "a row of jobs finished": (200, 300),
        "several jobs finished": (80, 300),
        "one job finished": (200, 400),
        "an insert by columns: plain": (120, 0),
        "an insert by columns: others": (50, 0),
        "jobs that join a lane together": (50, 0),
        "jobs that leave a lane together: the next is known": (20, 0),
        "an ack by the rules": (200, 200),
        "a failure": (20, 50),
        "a release": (10, 30),
        "a renewal": (20, 200),
        "jobs that become ready": (20, 50),
        "a keyed call": (20, 200),
        "an import": (5, 20),
        "a child that learns of its parent": (60, 0),
        "maintenance of a store": (25, 1_000),
    },
    "postgres": {
        "an enqueue in one statement": (60, 1_000),
        "a claim in one statement": (10, 50),
        "an ack in one statement": (20, 50),  # those without a lost lease
        "acks and a claim in one statement: some jobs": (6, 50),
        "acks and a claim in one statement: no job": (1, 0),
        "acks and a claim in one statement: refused, a limit": (2, 0),
        "acks and a claim in one statement: refused, several lanes": (4, 0),
        "acks and a claim in one statement: refused, something is due": (2, 0),
        "acks and a claim in one statement: refused, a child waits": (1, 0),
        "acks and a claim in one statement: refused, a lost lease": (5, 0),
        "a claim from one lane": (10, 0),
        "an enqueue by the server": (150, 0),
        "books brought up to date": (100, 0),
        "a claim": (60, 800),
        "a claim in turns": (60, 0),
        "an enqueue by the rules": (60, 100),
        "an ack": (30, 300),
        "a plain ack": (10, 100),
        "an ack by the rules": (30, 30),
        "a child that learns of its parent": (30, 0),
        "a keyed call": (10, 50),
        "candidates in turns": (80, 0),
        "jobs leased": (60, 800),
    },
    "http": {
        "operations sent": (200, 3_000),
        "a request": (200, 0),
        "a query sent": (800, 0),
        "operations measured": (200, 3_000),
        "claims measured": (80, 0),
        "ends measured": (400, 0),
        "an operation received": (600, 0),
    },
    "foundationdb": {
        "a claim": (30, 200),
        "a claim with a key": (2, 5),
        "an enqueue by the rules": (60, 400),
        "an ack by the rules": (60, 60),
        "jobs picked": (60, 200),
        "lanes parked": (10, 0),
        "a sweep": (60, 0),
    },
    "foundationdb-faults": {
        "a claim": (5, 20),
        "another try": (20, 0),
    },
}

# The least share of the functions and statements of an engine, and of the rules, that a run must
# use. The others open and migrate stores, listen, fork, explain, share a caller's transaction, or
# meet faults and locks: other tests have these.
LEAST_USED: dict[str, float] = {
    "sqlite": 0.83,
    "postgres": 0.78,
    "http": 0.70,
    "foundationdb": 0.86,
}


class Row(NamedTuple):
    """A row of the table."""

    path: str
    times: int
    jobs: int
    floor: Floor

    @property
    def is_short(self) -> bool:
        return self.times < self.floor[0] or self.jobs < self.floor[1]


def rows(engine: str, counts: Counts, steps: int) -> Iterator[Row]:
    """The table for a run with so many steps."""
    floors = FLOORS[engine]
    others = (1, 0) if engine in LEAST_USED else (0, 0)
    share = 1.0 if steps <= CI[engine].total else steps / CI[engine].total / 2
    for path in sorted(counts.known | floors.keys()):
        least = floors.get(path, others)
        floor = (int(least[0] * share), int(least[1] * share))
        yield Row(path, counts.times[path], counts.jobs[path], floor)


def table(engine: str, counts: Counts, steps: int, *, everything: bool = True) -> str:
    """The table as text, or only the rows below their minimum."""
    lines = [f"{engine}, {steps} steps", f"{'path':50} {'times':>9} {'jobs':>9}   floor"]
    for row in rows(engine, counts, steps):
        if everything or row.is_short:
            short = "  SHORT" if row.is_short else ""
            floor = f"{row.floor[0]} / {row.floor[1]}" if any(row.floor) else "-"
            lines.append(f"{row.path:50} {row.times:9} {row.jobs:9}   {floor}{short}")
    lines.append(f"{counts.share:.0%} of {len(counts.there)} functions and statements are used")
    if _uses_too_little(engine, counts):
        lines += ["not used:", *counts.unused]
    return "\n".join(lines) + "\n"


def short(engine: str, counts: Counts, steps: int) -> list[str]:
    """The paths that were not taken often enough."""
    missed = [row.path for row in rows(engine, counts, steps) if row.is_short]
    if _uses_too_little(engine, counts):
        missed.append(f"{LEAST_USED[engine]:.0%} of the functions and statements")
    return missed


def _uses_too_little(engine: str, counts: Counts) -> bool:
    return counts.share < LEAST_USED.get(engine, 0)
