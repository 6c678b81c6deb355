"""Many claimers on one hot lane, step by step side by side: how many of their commits are for
nothing, by claims as they are and by a naive claim that reads and writes.

    python -m tests.simulation.contention
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from functools import partial

from tenure import ops
from tenure.engines import fdb_sim
from tenure.engines.foundationdb.claim import claim_serially
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests.simulation.servers.stepping import Actor, Driver, SteppedDatabase

CLAIMERS = 32
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


def main() -> None:
    for naive in (True, False):
        one = measure(naive=naive)
        sys.stdout.write(
            f"{'naive' if naive else 'by versionstamp'}: {one.attempted} commits attempted, "
            f"{one.rate:.1%} committed, {one.jobs_per_commit:.2f} jobs a commit attempted, "
            f"{one.given} given, {one.twice} twice\n"
        )


if __name__ == "__main__":
    main()
