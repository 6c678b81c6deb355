"""Runs of several servers on one simulated cluster.

python -m tests.simulation.servers.run --seeds 1000
python -m tests.simulation.servers.run --first 4711 --seeds 1      # this one again
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops, queries
from tenure.model.job import Job
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.simulation.servers.auditor import GROUP_LIMIT, QUEUE_LIMIT, TENANT_LIMIT, Auditor
from tests.simulation.servers.stepping import Driver
from tests.simulation.servers.workload import QUEUES, SCOPES, Program

SERVERS = 4
OPERATIONS = 30
SKEW_MS = 30_000


def simulate(seed: int) -> list[str]:
    """What went wrong in the run of this seed; nothing, if the engine keeps its promises."""
    chance = random.Random(seed)
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    auditor = Auditor(cluster)
    calm = _calm_engine(cluster, clock, seed)
    calm.apply(
        [
            ops.SetLimit("web", concurrency=QUEUE_LIMIT),
            ops.SetLimit("web", tenant="*", concurrency=TENANT_LIMIT),
            ops.SetLimit("web", tenant="*", group="*", concurrency=GROUP_LIMIT),
        ]
    )
    driver = Driver(chance, crashes=0.004)
    for n in range(SERVERS):
        faults = fdb_sim.Faults(
            seed=chance.getrandbits(32),
            conflict=0.05,
            unknown_applied=0.04,
            unknown_lost=0.04,
            too_old=0.001,
            recovery=0.005,
            timeout=0.02,
            delay_s=0.003,
        )
        skew = chance.randint(-SKEW_MS, SKEW_MS)
        db = fdb_sim.open(cluster, faults=faults, skew_ms=skew)
        program = Program(f"s{n}", chance.getrandbits(32), db, auditor, OPERATIONS)
        driver.add(f"s{n}", program.run)

    def between(step: int) -> None:
        clock.advance(chance.choice([0, 0, 0.001, 0.01, 0.05]))
        if chance.random() < 0.01:
            clock.advance(chance.choice([1, 3, 6]))
        if step % 7 == 0:
            auditor.look(thoroughly=step % 49 == 0)

    driver.run(between)
    jobs = _finish(calm, clock, auditor)
    auditor.look(thoroughly=True)
    auditor.at_the_end(jobs)
    for queue in QUEUES:
        (answer,) = calm.apply([ops.Reconcile(queue)])
        if answer != ops.Corrected({}):
            auditor.wrong.append(f"the counters of {queue} were off by {answer}")
    return auditor.wrong


def _calm_engine(cluster: fdb_sim.Cluster, clock: ManualClock, seed: int) -> FoundationDbEngine:
    db = fdb_sim.open(cluster)
    return FoundationDbEngine(
        fdb_sim,
        db,
        Settings(),
        clock,
        hybrid=True,
        chance=random.Random(seed),
        aside_from=1,
        near_from=1,
    )


def _finish(engine: FoundationDbEngine, clock: ManualClock, auditor: Auditor) -> dict[str, Job]:
    """Wait until every lease is over, and do the work that is left."""
    engine.apply([ops.Resume("web", *scope) for scope in SCOPES])
    for _ in range(60):
        clock.advance(100)
        engine.apply([ops.Maintain()])
        while True:
            (answer,) = engine.apply([ops.Claim(QUEUES, "last", 60_000, 100)])
            assert isinstance(answer, ops.Leased)
            if not answer.jobs:
                break
            auditor.claimed("last", answer.jobs, 60_000)
            for job in answer.jobs:
                auditor.may_have_ended(job.id, job.token)
                auditor.ack(job.id)
            engine.apply([ops.Ack(job.id, job.token) for job in answer.jobs])
        counts = engine.read(queries.GetStats())
        assert isinstance(counts, list)
        if not any(one.unfinished for one in counts):  # type: ignore[union-attr]
            break
    page = engine.read(queries.ListJobs(limit=10_000))
    assert isinstance(page, queries.Page)
    return {job.id: job for job in page.jobs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.seeds)
    started, failed = time.monotonic(), 0
    for seed in seeds:
        wrong = simulate(seed)
        if wrong:
            failed += 1
            sys.stdout.write(f"seed {seed}: {len(wrong)} wrong\n")
            sys.stdout.writelines(f"    {one}\n" for one in wrong[:10])
            sys.stdout.write(
                f"    again: python -m tests.simulation.servers.run --first {seed} --seeds 1\n"
            )
    taken = time.monotonic() - started
    sys.stdout.write(f"{len(seeds)} seeds, {failed} failed, {taken:.0f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
