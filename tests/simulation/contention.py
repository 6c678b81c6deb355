"""Many claimers on one hot lane, step by step side by side: how many of their commits are for
nothing, by claims as they are and by a naive claim that reads and writes. And services with
clients that claim, enqueue and acknowledge together: what conflicts make them do again.

    python -m tests.simulation.contention
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tenure.engines.foundationdb import engine as engines
from tenure.engines.foundationdb.claim import claim_serially
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.features.operate import implementation
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.simulation.servers.stepping import Actor, Driver, SteppedDatabase

CLAIMERS = 32
SERVICES = 8
JOBS = 1_500
AT_ONCE = 5


@dataclass
class Figures:
    """What a run came to."""

    attempted: int = 0  # commits of claims
    committed: int = 0
    given: int = 0  # jobs
    twice: int = 0

    @property
    def rate(self) -> float:
        """Committed of attempted."""
        return self.committed / self.attempted

    @property
    def jobs_per_commit(self) -> float:
        return self.given / self.attempted


def measure(*, naive: bool, jobs: int = JOBS, seed: int = 0, finish: bool = True) -> Figures:
    """Claim everything, and acknowledge it if `finish`."""
    chance = random.Random(seed)
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    producer = FoundationDbEngine(fdb_sim, fdb_sim.open(cluster), Settings(), clock, chance=chance)
    for start in range(0, jobs, 500):
        some = range(start, min(start + 500, jobs))
        specs = [JobSpec(str(n), "q", NULL, made_up_id=True) for n in some]
        producer.apply([ops.Enqueue(tuple(specs))])
    patient = Settings(busy_timeout=3600)  # the naive need it
    figures = Figures()
    seen: set[str] = set()
    driver = Driver(chance, crashes=0.0)

    def work(actor: Actor, n: int) -> None:
        db = fdb_sim.open(cluster)
        engine = FoundationDbEngine(
            fdb_sim, SteppedDatabase(db, actor), patient, clock, chance=random.Random(n)
        )
        while True:
            before = (db.stats.commits_attempted, db.stats.commits_committed)
            claim = ops.Claim(("q",), f"w{n}", 60_000, AT_ONCE)
            (answer,) = _naively(engine, claim) if naive else engine.apply([claim])
            figures.attempted += db.stats.commits_attempted - before[0]
            figures.committed += db.stats.commits_committed - before[1]
            assert isinstance(answer, ops.Leased)
            if not answer.jobs:
                return
            figures.given += len(answer.jobs)
            figures.twice += len(seen & {job.id for job in answer.jobs})
            seen.update(job.id for job in answer.jobs)
            if finish:
                engine.apply([ops.Ack(job.id, job.token) for job in answer.jobs])

    for n in range(CLAIMERS):
        driver.add(f"w{n}", partial(work, n=n))
    driver.run(lambda step: clock.advance(0.001))
    return figures


def _naively(engine: FoundationDbEngine, claim: ops.Claim) -> list[ops.Answer]:
    """Read the head of the line and write to it, and let conflicts decide."""
    answer, _ = engine._transactor.run(lambda tx: claim_serially(tx, claim))
    return [answer]


# Services ---------------------------------------------------------------------------------------


@dataclass
class ServiceFigures:
    """What the clients of services were given, and what that took."""

    given: int = 0
    twice: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # operations, with those done for nothing
    attempted: int = 0  # commits
    conflicted: int = 0

    def again(self, what: str) -> int:
        """How often such operations had to be done again."""
        return self.done[what] - self.calls[what]


@contextmanager
def _counted(done: Counter[str]) -> Iterator[None]:
    """Count how often the engine runs enqueues and acknowledgements."""
    kinds: tuple[type[ops.Op], ...] = (ops.Enqueue, ops.Ack)

    own = dict(engines._OWN)

    def count(kind: type[ops.Op], tx: Any, batch: list[Any]) -> list[ops.Answer]:
        done[kind.__name__] += len(batch)
        return implementation(kind, own)(tx, batch)

    try:
        for kind in kinds:
            engines._OWN[kind] = partial(count, kind)
        yield
    finally:
        engines._OWN.clear()
        engines._OWN.update(own)


def measure_service(jobs: int = 400, seed: int = 0) -> ServiceFigures:
    """Clients of several services work off a hot lane. A request has a key, and what several
    callers of one client want: to acknowledge, to enqueue, and to claim."""
    chance = random.Random(seed)
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    specs = tuple(JobSpec(str(n), "q", NULL, made_up_id=True) for n in range(jobs))
    FoundationDbEngine(fdb_sim, fdb_sim.open(cluster), Settings(), clock).apply(
        [ops.Enqueue(specs)]
    )
    figures = ServiceFigures()
    seen: set[str] = set()

    def work(actor: Actor, n: int) -> None:
        db = SteppedDatabase(fdb_sim.open(cluster), actor)
        settings = Settings(busy_timeout=3600)
        engine = FoundationDbEngine(fdb_sim, db, settings, clock, chance=random.Random(n))
        held: list[ops.Op] = []
        turn = 0
        while True:
            turn += 1
            new = JobSpec(f"{n}-{turn}", "other", NULL, made_up_id=True)
            claims = [ops.Claim(("q",), f"w{n}", 600_000, 1)] * 3
            requests = [
                ops.Once(f"{n}-{turn}", (*held, ops.Enqueue((new,)), *claims)),
                ops.Once(f"{n}-{turn}'", tuple(claims)),
            ]
            figures.calls += Counter(Enqueue=1, Ack=len(held), Claim=2 * len(claims))
            found = [
                job
                for answer in engine.apply(requests)
                for one in getattr(answer, "answers", ())
                if isinstance(one, ops.Leased)
                for job in one.jobs
            ]
            figures.given += len(found)
            figures.twice += len(seen & {job.id for job in found})
            seen.update(job.id for job in found)
            held = [ops.Ack(job.id, job.token) for job in found]
            if not found:
                return

    driver = Driver(chance, crashes=0.0)
    before = cluster.stats
    with _counted(figures.done):
        for n in range(SERVICES):
            driver.add(f"s{n}", partial(work, n=n))
        driver.run(lambda step: clock.advance(0.001))
    spent = cluster.stats.since(before)
    figures.attempted, figures.conflicted = spent.commits_attempted, spent.commits_conflicted
    return figures


def main() -> None:
    for naive in (True, False):
        one = measure(naive=naive)
        sys.stdout.write(
            f"{'naive' if naive else 'by versionstamp'}: {one.attempted} commits attempted, "
            f"{one.rate:.1%} committed, {one.jobs_per_commit:.2f} jobs a commit attempted, "
            f"{one.given} given, {one.twice} twice\n"
        )
    found = measure_service()
    sys.stdout.write(
        f"through {SERVICES} services: {found.attempted} commits attempted, {found.conflicted} "
        f"conflicts, {found.given / found.attempted:.2f} jobs a commit attempted; of "
        f"{found.calls['Enqueue']} enqueues and {found.calls['Ack']} acknowledgements, "
        f"{found.again('Enqueue')} and {found.again('Ack')} were done again\n"
    )


if __name__ == "__main__":
    main()
