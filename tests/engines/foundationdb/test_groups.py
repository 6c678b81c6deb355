"""The jobs of a group are counted over all tenants, in stores of every format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tenure.engines.foundationdb import formats
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops, queries
from tenure.model.job import JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb_audit import wrong_keys


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


def as_format_1(db: Any, engine: FoundationDbEngine) -> None:
    keys = engine._store.keys
    db.clear_range(*keys.span(k.GROUP_TOTAL))
    db.set(keys.pack(k.FORMAT), b"1")


def test_a_store_of_format_1_gets_its_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_STEP", 7)  # so that it takes several transactions
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    engine = opened(db, clock)
    fill(engine, tenants=60, groups=4)
    leased = engine.apply([ops.Claim(("q",), "w", 60_000, 10)])[0]
    assert isinstance(leased, ops.Leased)
    engine.apply([ops.Ack(job.id, job.token) for job in leased.jobs])
    expected = engine.read(queries.ListGroupTotals("q"))
    as_format_1(db, engine)
    again = opened(db, clock)
    assert again.read(queries.ListGroupTotals("q")) == expected
    assert wrong_keys(db) == []
    assert opened(db, clock).read(queries.ListGroupTotals("q")) == expected


def test_a_migration_that_was_broken_off_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formats, "_STEP", 7)
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    engine = opened(db, clock)
    fill(engine, tenants=60, groups=4)
    expected = engine.read(queries.ListGroupTotals("q"))
    as_format_1(db, engine)
    for _ in range(3):
        engine._transactor.run(formats._step)
    assert wrong_keys(db) != []
    assert opened(db, clock).read(queries.ListGroupTotals("q")) == expected
    assert wrong_keys(db) == []


def test_a_store_of_format_2_is_used_as_it_is() -> None:
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    engine = opened(db, clock)
    fill(engine, tenants=6, groups=2)
    expected = engine.read(queries.ListGroupTotals("q"))
    db.set(engine._store.keys.pack(k.FORMAT), b"2")
    again = opened(db, clock)
    assert db.get(engine._store.keys.pack(k.FORMAT)) == formats.FORMAT
    assert again.read(queries.ListGroupTotals("q")) == expected
