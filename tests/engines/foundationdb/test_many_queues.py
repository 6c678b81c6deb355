"""Queues that are forgotten while others use them."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb import upkeep
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb_audit import Rows, wrong_keys
from tests.support.sizes import let

ENQUEUE = ops.Enqueue((JobSpec("a", "q", NULL),))
LIMIT = ops.SetLimit("q", concurrency=1)


@pytest.mark.parametrize("op", [ENQUEUE, LIMIT])
@pytest.mark.parametrize("hours", [0, 1])
def test_a_queue_that_is_used_meanwhile_is_not_forgotten(
    op: ops.Op, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    db = fdb_sim.open(fdb_sim.Cluster(clock))
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock, hybrid=False)
    engine.apply([ops.Pause("q"), ops.Resume("q")])
    if hours:
        engine.apply([ops.Maintain()])
        clock.advance(3600)
    forget = upkeep._forget_queues
    tries: list[ops.Op] = []

    def forget_late(tx: Any, **kwargs: Any) -> None:
        forget(tx, **kwargs)
        if not tries:
            engine.apply([op])
        tries.append(op)

    monkeypatch.setattr(upkeep, "_forget_queues", forget_late)
    engine.apply([ops.Maintain()])
    assert len(tries) == 2  # the first conflicted
    monkeypatch.undo()
    clock.advance(3600)
    engine.apply([ops.Maintain()])
    found: Any = engine.read(queries.GetStats())
    assert [stats.queue for stats in found] == ["q"]
    assert wrong_keys(db) == []


def test_nothing_is_left_of_a_forgotten_queue() -> None:
    clock = ManualClock()
    db = fdb_sim.open(fdb_sim.Cluster(clock))
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock, hybrid=False)
    jobs = tuple(JobSpec(str(n), "q", NULL, tenant=f"t{n}", group=f"g{n}") for n in range(20))
    engine.apply([ops.SetLimit("q", rate=50, per_ms=1), ops.SetLimit("q", concurrency=50)])
    engine.apply([ops.Enqueue(jobs), ops.Claim(("q",), "w", 10**6, 10)])
    engine.apply([ops.ClearLimit("q"), ops.Delete(tuple(job.id for job in jobs))])
    for _ in range(2):
        engine.apply([ops.Maintain()])
        clock.advance(3600)
    rows = Rows(db, ("tenure",))
    kept = {k.FORMAT, k.DID, k.WAKE}
    assert {kind for kind, found in rows.by_kind.items() if found} <= kept


def test_maintenance_goes_on_while_any_kind_of_work_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let(monkeypatch, jobs_of_a_step_of_a_recount=2)
    clock = ManualClock()
    db = fdb_sim.open(fdb_sim.Cluster(clock))
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock, hybrid=False)
    engine.apply([ops.Enqueue(tuple(JobSpec(str(n), "q", NULL, delay_ms=10) for n in range(7)))])
    clock.advance(1)
    assert engine.apply([ops.Maintain()]) == [ops.Maintained(promoted=7)]
