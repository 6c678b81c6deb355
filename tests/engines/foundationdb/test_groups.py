"""The jobs of a group are counted over all tenants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops, queries
from tenure.model.job import JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim


def opened(db: Any, clock: ManualClock) -> FoundationDbEngine:
    return FoundationDbEngine(fdb_sim, db, Settings(), clock)


def fill(engine: FoundationDbEngine, tenants: int, groups: int) -> None:
    specs = [
        JobSpec(f"job-{n}", "q", msgspec.Raw(b"1"), tenant=f"t{n}", group=f"g{n % groups:04}")
        for n in range(tenants)
    ]
    for start in range(0, tenants, 500):
        engine.apply([ops.Enqueue(tuple(specs[start : start + 500]))])


def test_a_total_reads_two_counters_however_many_tenants_there_are() -> None:
    clock = ManualClock()
    db = fdb_sim.open(fdb_sim.Cluster(clock))
    engine = opened(db, clock)
    fill(engine, tenants=2_000, groups=1_000)
    engine.apply([ops.Claim(("q",), "w", 60_000, 1_000)])
    before = replace(db.stats)
    found = engine.read(queries.ListGroupTotals("q", group="g0007"))
    assert found == [queries.GroupTotal("q", "g0007", 2, 0)]
    assert db.stats.since(before).keys_read <= 3
    before = replace(db.stats)
    assert len(engine.read(queries.ListGroupTotals("q", 50, "g0007"))) == 50  # type: ignore[arg-type]
    assert db.stats.since(before).keys_read <= 2 * 50 + 1
