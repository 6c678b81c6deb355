"""Lanes that a limit or a pause holds back cost a claim next to nothing, however many they are, and
are served as soon as nothing holds them back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops
from tenure.model.job import NULL, Job, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.simulation.servers.stepping import Actor, Driver, SteppedDatabase
from tests.support.fdb_audit import Rows, wrong_keys
from tests.support.sizes import let

AT_ONCE = 100  # lanes that one transaction puts aside or back, here
LANES = 250
FEW = 150  # keys: what a claim may read that finds nothing
LEASE_MS = 10**9

Names = Callable[[int], dict[str, Any]]


def of_tenants(n: int) -> dict[str, Any]:
    return {"tenant": f"t{n}"}


def of_groups(n: int) -> dict[str, Any]:
    return {"tenant": "t", "group": f"g{n}"}


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, lanes_parked_at_once=AT_ONCE)
    let(monkeypatch, lanes_held_back_of_a_claim=AT_ONCE)


class Bench:
    """An engine whose reads are counted, on a queue with two jobs in each of many lanes."""

    def __init__(self, names: Names) -> None:
        self.cluster = fdb_sim.Cluster(ManualClock())
        self.db = fdb_sim.open(self.cluster)
        self.engine = FoundationDbEngine(
            fdb_sim, self.db, Settings(), ManualClock(), hybrid=False, chance=random.Random(1)
        )
        specs = [
            JobSpec(f"{turn}-{n}", "q", NULL, made_up_id=True, **names(n))
            for turn in range(2)
            for n in range(LANES)
        ]
        self.do(*(ops.Enqueue(tuple(specs[n : n + 500])) for n in range(0, len(specs), 500)))

    def do(self, *batch: ops.Op) -> list[ops.Answer]:
        return self.engine.apply(batch)

    def claim(self, limit: int = 1) -> list[Job]:
        (answer,) = self.do(ops.Claim(("q",), "w", LEASE_MS, limit))
        assert isinstance(answer, ops.Leased)
        return answer.jobs

    def claim_all(self) -> list[Job]:
        found: list[Job] = []
        while more := self.claim(1000):
            found += more
        return found

    def keys_of_a_claim(self) -> int:
        before = self.db.stats.keys_read
        assert self.claim() == []
        return self.db.stats.keys_read - before


@pytest.mark.parametrize(
    ("names", "scope"),
    [(of_tenants, {"tenant": "*"}), (of_groups, {"tenant": "*", "group": "*"})],
)
def test_full_lanes_are_passed_over_at_no_cost(names: Names, scope: dict[str, Any]) -> None:
    bench = Bench(names)
    bench.do(ops.SetLimit("q", **scope, concurrency=1))
    leased = bench.claim_all()
    assert len(leased) == LANES
    assert bench.keys_of_a_claim() < FEW
    # One place becomes free: its lane is served at once, and no other.
    bench.do(ops.Ack(leased[7].id, leased[7].token))
    (job,) = bench.claim()
    assert (job.tenant, job.group) == (leased[7].tenant, leased[7].group)
    # A lane that never was full is found among all those that are.
    bench.do(ops.Enqueue((JobSpec("new", "q", NULL, **names(LANES)),)))
    assert [job.id for job in bench.claim(10)] == ["new"]
    assert bench.keys_of_a_claim() < FEW
    # The limit is raised: all of them are.
    bench.do(ops.SetLimit("q", **scope, concurrency=2))
    assert len(bench.claim_all()) == LANES - 1
    assert wrong_keys(bench.db) == []


def test_paused_tenants_are_passed_over_at_no_cost() -> None:
    bench = Bench(of_tenants)
    bench.do(*(ops.Pause("q", f"t{n}") for n in range(LANES)))
    assert bench.claim_all() == []
    bench.do(ops.Pause("q", "another"))  # has the limits read again
    bench.claim()
    assert bench.keys_of_a_claim() < FEW
    bench.do(ops.Resume("q", "t5"))
    assert {job.tenant for job in bench.claim_all()} == {"t5"}
    assert wrong_keys(bench.db) == []


def test_a_few_tenants_that_are_held_back_are_not_put_aside() -> None:
    bench = Bench(of_tenants)
    assert bench.engine._store.aside_from == 32
    bench.do(*(ops.Pause("q", f"t{n}") for n in range(31)))
    assert len(bench.claim_all()) == 2 * (LANES - 31)
    assert len(Rows(bench.db, ("tenure",)).of(k.PARKED)) == 0
    bench.do(ops.Enqueue((JobSpec("new", "q", NULL, tenant="new"),)), ops.Pause("q", "new"))
    assert bench.claim() == []
    assert len(Rows(bench.db, ("tenure",)).of(k.PARKED)) == 32


def test_a_recount_finds_lanes_that_were_wrongly_thought_full() -> None:
    bench = Bench(of_tenants)
    bench.do(ops.SetLimit("q", tenant="*", concurrency=1))
    bench.claim_all()
    bench.do(ops.Reconcile("q"))
    assert bench.claim_all() == []
    assert wrong_keys(bench.db) == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("operated", [False, True])
def test_whoever_frees_a_lane_while_another_puts_it_aside_is_heard(
    seed: int, operated: bool
) -> None:
    """Claims, acknowledgements and perhaps changes of limits, step by step side by side: in the end
    everything was claimed, so no lane was forgotten."""
    chance, clock = random.Random(seed), ManualClock()
    cluster = fdb_sim.Cluster(ManualClock())
    driver = Driver(chance, crashes=0.0)
    done: set[str] = set()

    def engine_of(db: Any, n: int) -> FoundationDbEngine:
        return FoundationDbEngine(
            fdb_sim, db, Settings(), clock, hybrid=False, chance=random.Random(n), aside_from=1
        )

    def work(actor: Actor, n: int) -> None:
        engine = engine_of(SteppedDatabase(fdb_sim.open(cluster), actor), n)
        while len(done) < 40:
            (answer,) = engine.apply([ops.Claim(("q",), f"w{n}", LEASE_MS, 2)])
            assert isinstance(answer, ops.Leased)
            for job in answer.jobs:
                assert engine.apply([ops.Ack(job.id, job.token)]) == [ops.Ok()]
                done.add(job.id)

    def change(actor: Actor) -> None:
        engine = engine_of(SteppedDatabase(fdb_sim.open(cluster), actor), 99)
        while len(done) < 40:
            engine.apply([ops.Pause("q", "t1"), ops.SetLimit("q", tenant="*", concurrency=2)])
            engine.apply([ops.Resume("q", "t1"), ops.SetLimit("q", tenant="*", concurrency=1)])

    calm = engine_of(fdb_sim.open(cluster), 0)
    calm.apply(
        [
            ops.SetLimit("q", tenant="*", concurrency=1),
            ops.SetLimit("q", tenant="*", group="*", concurrency=1),
            *(
                ops.Enqueue((JobSpec(str(n), "q", NULL, tenant=f"t{n % 3}", group=f"g{n % 2}"),))
                for n in range(40)
            ),
        ]
    )
    for n in range(3):
        driver.add(f"w{n}", lambda actor, n=n: work(actor, n))  # type: ignore[misc]
    if operated:  # who often has everything looked at again
        driver.add("operator", change)

    def between(step: int) -> None:
        assert step < 20_000, f"{40 - len(done)} jobs are never given out"
        clock.advance(0.001)

    driver.run(between)
    assert wrong_keys(fdb_sim.open(cluster)) == []
