"""Recounting a queue ends: with the counters right, or with an error that says what to do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb import upkeep
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.record import decode_record
from tenure.engines.foundationdb.transact import TooSlow
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import InvalidInput
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb_audit import wrong_keys
from tests.support.sizes import let

JOBS = 30


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> FoundationDbEngine:
    db = fdb_sim.open(clock=clock)
    engine = FoundationDbEngine(
        fdb_sim, db, Settings(), clock, hybrid=False, chance=random.Random(1), aside_from=1
    )
    specs = tuple(JobSpec(str(n), "q", NULL, tenant=f"t{n % 3}") for n in range(JOBS))
    engine.apply([ops.Enqueue(specs)])
    return engine


def slow_down(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, seconds: float) -> None:
    """Have each job that is read take a while."""
    decode = decode_record

    def slowly(data: bytes) -> Any:
        clock.advance(seconds)
        return decode(data)

    monkeypatch.setattr(upkeep, "decode_record", slowly)
    let(monkeypatch, steps_of_a_recount_at_once=1)


def test_a_recount_that_takes_longer_than_a_transaction_may_is_rejected(
    engine: FoundationDbEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, clock, 0.5)
    began = clock.monotonic()
    before, rejected, after = engine.apply(
        [ops.Pause("q", "t0"), ops.Reconcile("q"), ops.Resume("q", "t0")]
    )
    assert isinstance(rejected, InvalidInput)
    assert "more jobs than can be counted" in str(rejected)
    assert before == after == ops.Ok()
    assert clock.monotonic() - began < 20  # and not as long as a store is waited for


def test_a_recount_that_takes_less_is_made(
    engine: FoundationDbEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, clock, 0.1)
    assert engine.apply([ops.Reconcile("q")]) == [ops.Corrected({})]


def test_a_query_that_takes_longer_than_a_snapshot_lives_ends(
    engine: FoundationDbEngine, clock: ManualClock
) -> None:
    def slowly(tx: Any) -> None:
        tx.tr.get_read_version().wait()
        clock.advance(6)
        engine._store.db.set(b"other", b"")
        tx.tr.get(b"key").wait()

    with pytest.raises(TooSlow):
        engine._transactor.read(slowly)


def test_a_recount_puts_right_what_was_counted_wrong(engine: FoundationDbEngine) -> None:
    keys, db = engine._store.keys, engine._store.db
    db.add(keys.pack(k.QUEUE_COUNT, "q", "active"), (7).to_bytes(8, "little"))
    db.add(keys.pack(k.TENANT_COUNT, "q", "t1", "done"), (2).to_bytes(8, "little"))
    assert engine.apply([ops.Reconcile("q")]) == [ops.Corrected({"ready": -7})]
    assert wrong_keys(db) == []


@pytest.mark.parametrize(
    ("scope", "counter"),
    [
        ({"tenant": "t1"}, (k.TENANT_COUNT, "q", "t1", "active")),
        ({"tenant": "t1", "group": ""}, (k.GROUP_COUNT, "q", "t1", "", "active")),
    ],
    ids=["tenant", "group"],
)
def test_a_recount_of_a_part_says_what_was_wrong_there(
    engine: FoundationDbEngine, scope: dict[str, Any], counter: tuple[Any, ...]
) -> None:
    keys, db = engine._store.keys, engine._store.db
    db.add(keys.pack(*counter), (7).to_bytes(8, "little"))
    assert engine.apply([ops.Reconcile("q", **scope)]) == [ops.Corrected({"ready": -7})]
    assert wrong_keys(db) == []
    assert engine.apply([ops.Reconcile("q", **scope)]) == [ops.Corrected({})]


def test_a_recount_has_claims_look_at_tenants_that_were_wrongly_thought_full(
    engine: FoundationDbEngine,
) -> None:
    """Leases that nobody has count against a limit: claims put its tenants aside."""
    engine.apply([ops.SetLimit("q", tenant="*", concurrency=1)])
    keys, db = engine._store.keys, engine._store.db
    for n in range(3):
        db.add(keys.pack(k.TAKEN, "q", f"t{n}", None), (1).to_bytes(8, "little"))
    claim = ops.Claim(("q",), "w", 60_000, JOBS)
    assert engine.apply([claim]) == [ops.Leased([])]
    engine.apply([ops.Reconcile("q")])
    (answer,) = engine.apply([claim])
    assert isinstance(answer, ops.Leased)
    assert sorted(job.tenant for job in answer.jobs) == ["t0", "t1", "t2"]
    assert wrong_keys(db) == []


def test_a_recount_of_a_queue_without_limits_conflicts_with_no_claim(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = fdb_sim.Cluster(clock)
    db = fdb_sim.open(cluster)
    engine, other = (
        FoundationDbEngine(fdb_sim, one, Settings(), clock, hybrid=False)
        for one in (db, fdb_sim.open(cluster))
    )
    engine.apply([ops.Enqueue((JobSpec("a", "q", NULL),))])
    recount = upkeep._recount
    claimed: list[str] = []

    def while_others_claim(tx: Transaction, op: ops.Reconcile) -> Any:
        (answer,) = other.apply([ops.Claim(("q",), "w", 60_000, 1)])
        assert isinstance(answer, ops.Leased)
        claimed.extend(job.id for job in answer.jobs)
        return recount(tx, op)

    monkeypatch.setattr(upkeep, "_recount", while_others_claim)
    assert engine.apply([ops.Reconcile("q")]) == [ops.Corrected({})]
    assert claimed == ["a"]
    assert db.stats.commits_conflicted == 0
    assert wrong_keys(db) == []
