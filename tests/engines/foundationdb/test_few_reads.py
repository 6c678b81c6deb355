"""What a claim reads before it claims, and what a transaction writes once."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import Raw

from bench.fdb_replay import Database
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.record import PART_BYTES, parts_of
from tenure.engines.foundationdb.transact import begin
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import JobNotFound
from tenure.features.why.data import Explain
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Grant
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.fdb_sim import Stats

TENANTS = 50


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.db = fdb_sim.open(fdb_sim.Cluster(self.clock))
        self.engine = FoundationDbEngine(
            fdb_sim, self.db, Settings(), self.clock, hybrid=True, chance=random.Random(1)
        )
        self.claim()

    def enqueue(self) -> None:
        specs = [JobSpec(f"job-{n}", "q", NULL, tenant=f"t{n}") for n in range(TENANTS)]
        self.engine.apply([ops.Enqueue(tuple(specs))])

    def claim(self, tenant: str | None = None) -> int:
        (answer,) = self.engine.apply([ops.Claim(("q",), "w", 60_000, 1, tenant)])
        assert isinstance(answer, ops.Leased)
        return len(answer.jobs)

    def spent(self, before: Stats) -> Stats:
        return self.db.stats.since(before)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_claim_that_finds_nothing_takes_one_transaction(rig: Rig) -> None:
    before = replace(rig.db.stats)
    assert rig.claim() == 0
    assert rig.spent(before).read_versions == 1


def test_a_claim_takes_two_transactions(rig: Rig) -> None:
    rig.enqueue()
    before = replace(rig.db.stats)
    assert rig.claim() == 1
    assert rig.spent(before).read_versions == 2


def test_what_a_batch_needs_is_requested_at_once() -> None:
    """Waits cost more than anything else: a claim waits for what is due, the limits and the
    tenants; for the groups; for the first jobs; for what they hold; for its commit; and for the
    claims of others. An ack waits for its jobs and its commit."""
    clock = ManualClock()
    db = Database(fdb_sim.open(fdb_sim.Cluster(clock)))
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock, hybrid=True)
    engine.apply([ops.Enqueue(tuple(JobSpec(f"job-{n}", "q", NULL) for n in range(20)))])
    claim = ops.Claim(("q",), "w", 60_000, 10)
    engine.apply([claim])  # reads the leases, which is done once a second
    recording = db.record()
    (answer,) = engine.apply([claim])
    db.stop()
    assert isinstance(answer, ops.Leased)
    assert recording.calls["wait"] == 6
    recording = db.record()
    engine.apply([ops.Ack(job.id, job.token) for job in answer.jobs])
    db.stop()
    assert recording.calls["wait"] == 2


def test_the_oldest_of_many_lanes_is_found_without_waiting_for_each_of_them() -> None:
    clock = ManualClock()
    db = Database(fdb_sim.open(fdb_sim.Cluster(clock)))
    engine = FoundationDbEngine(
        fdb_sim, db, Settings(), clock, hybrid=False, aside_from=1, near_from=1
    )
    began = clock.now_ms()
    engine.apply([ops.Enqueue((JobSpec("old", "q", NULL, tenant="t7", group="old", priority=9),))])
    clock.advance(1)
    specs = [JobSpec(f"job-{n}", "q", NULL, tenant=f"t{n}", group="g") for n in range(TENANTS)]
    engine.apply([ops.Enqueue(tuple(specs)), ops.Pause("q", tenant="t7")])
    engine.apply([ops.Claim(("q",), "w", 60_000, 1)])  # puts the paused tenant aside
    engine.apply([ops.Pause("q", tenant="t7", group="old"), ops.Resume("q", tenant="t7")])
    engine.apply([ops.Claim(("q",), "w", 60_000, 1, "t7")])  # and the group alone
    recording = db.record()
    assert engine.read(queries.OldestReady(("q",))) == queries.Due(began)
    db.stop()
    assert recording.calls["wait"] <= 8


def test_acks_do_not_read_the_limits_of_many_queues(rig: Rig) -> None:
    for queue in "abcdef":
        rig.engine.apply([ops.Claim((queue,), "w", 60_000, 1)])
    rig.engine.apply([ops.Enqueue((JobSpec("one", "q", NULL),))])
    (answer,) = rig.engine.apply([ops.Claim(("q",), "w", 60_000, 1)])
    assert isinstance(answer, ops.Leased)
    before = replace(rig.db.stats)
    rig.engine.apply([ops.Ack(job.id, job.token) for job in answer.jobs])
    assert rig.spent(before).point_reads == 1  # the limits of its queue


@pytest.mark.parametrize(
    "limit", [ops.SetLimit("q", concurrency=1), ops.SetLimit("q", rate=1, per_ms=3_600_000)]
)
def test_a_claim_does_not_look_for_tenants_if_the_queue_is_full(
    rig: Rig, limit: ops.SetLimit
) -> None:
    rig.engine.apply([ops.Enqueue((JobSpec("a", "q", NULL),))])
    rig.engine.apply([limit])
    rig.enqueue()
    assert rig.claim() == 1
    before = replace(rig.db.stats)
    assert rig.claim() == 0
    assert rig.spent(before).keys_read < 20
    rig.engine.apply([ops.Pause("q")])
    assert rig.claim() == 0
    before = replace(rig.db.stats)
    assert rig.claim() == 0
    assert rig.spent(before).keys_read < 20


def test_a_claim_for_a_tenant_reads_no_others(rig: Rig) -> None:
    rig.enqueue()
    before = replace(rig.db.stats)
    assert rig.claim("t7") == 1
    assert rig.spent(before).keys_read < 20
    assert rig.claim("t7") == 0


def test_a_claim_sees_a_limit_that_was_set_meanwhile(rig: Rig) -> None:
    """What is prefetched follows from the limits that were last known; what is claimed does not."""
    rig.enqueue()
    other = FoundationDbEngine(fdb_sim, rig.db, Settings(), rig.clock, hybrid=True)
    assert rig.claim() == 1
    other.apply([ops.Pause("q")])
    assert rig.claim() == 0
    other.apply([ops.Resume("q")])
    assert rig.claim() == 1


def test_a_lane_that_was_put_aside_is_marked_again_in_the_same_transaction(rig: Rig) -> None:
    store = rig.engine._store
    for key in (store.keys.lane("q", "t", "g"), store.keys.turn("q", "t")):
        tx = Transaction(store, begin(rig.db), rig.clock.now_ms())
        for n in range(2):
            tx.insert([JobSpec(f"{n}-{key.hex()}", "q", NULL, tenant="t", group="g")], None)
            if n == 0:
                tx.clear(key)
        tx.finish()
        tx.tr.commit().wait()
        tr = rig.db.create_transaction()
        assert tr.get(key).value is not None
        tr.clear_range_startswith(store.keys.pack(k.LANE))
        tr.clear_range_startswith(store.keys.pack(k.TURN))
        tr.commit().wait()


@pytest.mark.parametrize(
    ("size", "parts"),
    [(0, [0]), (1, [1]), (PART_BYTES, [PART_BYTES]), (PART_BYTES + 1, [PART_BYTES, 1])],
)
def test_a_value_that_fits_has_one_part(size: int, parts: list[int]) -> None:
    found = list(parts_of(b"x" * size))
    assert [(n, len(part)) for n, part in found] == list(enumerate(parts))


def test_of_a_job_that_must_not_be_seen_only_its_record_is_read(rig: Rig) -> None:
    """Or the time would tell that another tenant has a large job with this id."""
    rig.enqueue()
    parents = tuple(f"job-{n}" for n in range(TENANTS))
    large = JobSpec("large", "q", Raw(b'"%s"' % (b"x" * 500_000)), tenant="other", after=parents)
    child = JobSpec("child", "q", NULL, tenant="other", after=("large",))
    rig.engine.apply([ops.Enqueue((large, child))])
    acme = Grant(tenants=("acme",))

    def spent(query: queries.Query) -> Stats:
        before = replace(rig.db.stats)
        found = rig.engine.read(query)
        assert isinstance(found, JobNotFound) or found == queries.Page([]), found
        return rig.spent(before)

    def asked(id: str) -> list[queries.Query]:
        one, related = queries.GetJob(id, grant=acme), queries.ListRelated(id, 20, grant=acme)
        return [one, queries.GetJobs((id,), grant=acme), related, Explain(id, grant=acme)]

    spent(queries.GetJob("missing", grant=acme))  # the first reads more
    for query, other in zip(asked("large"), asked("missing"), strict=True):
        hidden, missing = spent(query), spent(other)
        reads = hidden.point_reads, hidden.range_reads, hidden.keys_read
        assert reads == (missing.point_reads, missing.range_reads, missing.keys_read), query
        assert hidden.bytes_read - missing.bytes_read < 500, query
