"""A rate holds whatever the clocks of the servers say, and however many of them claim at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.simulation.servers.stepping import Actor, Driver, SteppedDatabase

RATE, PER_S = 10, 60
YEAR_MS = 365 * 86_400_000


def server(cluster: fdb_sim.Cluster, *, skew_ms: int = 0, db: Any = None) -> FoundationDbEngine:
    opened = fdb_sim.open(cluster, skew_ms=skew_ms)
    return FoundationDbEngine(fdb_sim, db or opened, Settings(), opened.clock, hybrid=True)


def limited(cluster: fdb_sim.Cluster, jobs: int = 500) -> None:
    specs = tuple(JobSpec(str(n), "q", NULL, made_up_id=True) for n in range(jobs))
    server(cluster).apply(
        [ops.Enqueue(specs), ops.SetLimit("q", rate=RATE, per_ms=PER_S * 1000)],
    )


def claim(engine: FoundationDbEngine, limit: int = 1) -> int:
    (answer,) = engine.apply([ops.Claim(("q",), "w", 3_600_000, limit)])
    assert isinstance(answer, ops.Leased)
    return len(answer.jobs)


def test_servers_whose_clocks_differ_do_not_exceed_a_rate_together() -> None:
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    limited(cluster)
    servers = [server(cluster), server(cluster, skew_ms=10_000)]
    given = 0
    for n in range(600):  # a minute
        given += claim(servers[n % 2])
        clock.advance(0.1)
    assert given in range(2 * RATE - 1, 2 * RATE + 1)  # the full bucket, and what came in


@pytest.mark.parametrize("skew_ms", [YEAR_MS, -YEAR_MS])
def test_a_server_whose_clock_is_a_year_off_changes_nothing_for_the_others(skew_ms: int) -> None:
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    limited(cluster)
    right, wrong = server(cluster), server(cluster, skew_ms=skew_ms)
    assert claim(right, RATE) == RATE
    assert claim(wrong, RATE) == claim(right, RATE) == 0
    clock.advance(PER_S / 2 + 1)  # an idle store counts in seconds
    assert claim(wrong, RATE) == RATE // 2
    assert claim(right, RATE) == 0
    clock.advance(PER_S / 2 + 1)  # an idle store counts in seconds
    assert claim(right, RATE) == RATE // 2


def test_claims_that_come_faster_than_a_token_lose_no_part_of_it() -> None:
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    limited(cluster)
    engine = server(cluster)
    assert claim(engine, RATE) == RATE
    given = 0
    for _ in range(10_007):  # more often than a millisecond of versions
        clock.advance(0.001)
        given += claim(engine)
    assert given == 1


def test_versions_that_fell_behind_by_a_restore_do_not_stop_a_rate() -> None:
    old_clock, clock = ManualClock(), ManualClock()
    old = fdb_sim.Cluster(old_clock)
    old_clock.advance(YEAR_MS / 1000)
    limited(old)
    stored = fdb_sim.open(old).get(_bucket_key(old))
    young = fdb_sim.Cluster(clock)
    limited(young)
    assert stored is not None
    fdb_sim.open(young).set(_bucket_key(young), bytes(stored))
    engine = server(young)
    assert claim(engine, 2 * RATE) == RATE
    clock.advance(PER_S + 1)
    assert claim(engine, 2 * RATE) == RATE


def _bucket_key(cluster: fdb_sim.Cluster) -> bytes:
    return server(cluster)._store.keys.pack(k.BUCKET, "q")


@pytest.mark.parametrize("seed", range(4))
def test_servers_that_claim_at_once_do_not_exceed_a_rate_together(seed: int) -> None:
    """Step by step side by side: of two claims that saw the same bucket only one is committed."""
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    limited(cluster, jobs=100)
    given: list[int] = []

    def work(actor: Actor) -> None:
        engine = server(cluster, db=SteppedDatabase(fdb_sim.open(cluster), actor))
        for _ in range(6):
            given.append(claim(engine, 2))

    driver = Driver(random.Random(seed), crashes=0.0)
    for n in range(4):
        driver.add(f"w{n}", work)
    driver.run(lambda step: None)
    assert sum(given) == RATE
