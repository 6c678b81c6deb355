"""What the engine on FoundationDB promises besides the contract: who conflicts with whom, when a
lease is over, how turns are dealt out, that nothing happens twice."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.record import PART_BYTES
from tenure.engines.foundationdb.store import NTP_GRACE_MS, VERSION_GRACE_MS, Lease
from tenure.errors import Busy, InvalidInput, LeaseLost, StoreError
from tenure.model import ops, queries
from tenure.model.job import NULL, Job, JobSpec, State
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.fdb_sim.faults import Fate
from tests.simulation.contention import measure
from tests.simulation.servers.stepping import Actor, Driver, SteppedDatabase


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> fdb_sim.Cluster:
    return fdb_sim.Cluster(clock)


def engine_of(
    cluster: fdb_sim.Cluster, *, skew_ms: int = 0, hybrid: bool = True, **faults: Any
) -> FoundationDbEngine:
    db = fdb_sim.open(cluster, skew_ms=skew_ms, faults=fdb_sim.Faults(**faults))
    chance = random.Random(1)
    return FoundationDbEngine(fdb_sim, db, Settings(), db.clock, hybrid=hybrid, chance=chance)


def enqueue(engine: FoundationDbEngine, *ids: str, **fields: Any) -> None:
    specs = [msgspec.structs.replace(JobSpec(one, "q", NULL), **fields) for one in ids]
    (answer,) = engine.apply([ops.Enqueue(tuple(specs))])
    assert isinstance(answer, ops.Enqueued), answer


def claim(engine: FoundationDbEngine, limit: int = 1, lease_ms: int = 10_000) -> list[Job]:
    (answer,) = engine.apply([ops.Claim(("q",), "w", lease_ms, limit)])
    assert isinstance(answer, ops.Leased)
    return answer.jobs


# Conflicts --------------------------------------------------------------------------------------


def test_of_many_claimers_on_one_lane_few_commit_for_nothing() -> None:
    naive, ours = measure(naive=True, jobs=300), measure(naive=False, jobs=1000)
    assert ours.rate >= 0.95 > naive.rate
    assert ours.jobs_per_commit > naive.jobs_per_commit
    assert (ours.twice, naive.twice) == (0, 0)
    assert (ours.given, naive.given) == (1000, 300)


def test_enqueues_and_acks_conflict_with_nobody(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    driver = Driver(random.Random(5), crashes=0.0)
    conflicts: Counter[str] = Counter()
    commits: Counter[str] = Counter()

    def counted(db: fdb_sim.Database, engine: FoundationDbEngine, op: ops.Op) -> ops.Answer:
        before = (db.stats.commits_conflicted, db.stats.commits_committed)
        (answer,) = engine.apply([op])
        conflicts[type(op).__name__] += db.stats.commits_conflicted - before[0]
        commits[type(op).__name__] += db.stats.commits_committed - before[1]
        return answer

    def work(actor: Actor, name: str, tenant: str) -> None:
        db = fdb_sim.open(cluster)
        stepped = SteppedDatabase(db, actor)
        engine = FoundationDbEngine(fdb_sim, stepped, Settings(), clock)
        for n in range(20):
            spec = JobSpec(f"{name}-{n}", "q", NULL, tenant=tenant)
            assert isinstance(counted(db, engine, ops.Enqueue((spec,))), ops.Enqueued)
            leased = counted(db, engine, ops.Claim(("q",), name, 600_000, 2))
            assert isinstance(leased, ops.Leased)
            for job in leased.jobs:
                assert counted(db, engine, ops.Ack(job.id, job.token)) == ops.Ok()

    for n in range(12):
        driver.add(f"w{n}", partial(work, name=f"w{n}", tenant=f"t{n % 3}"))
    driver.run(lambda step: clock.advance(0.001))
    assert conflicts["Enqueue"] == conflicts["Ack"] == 0
    assert commits["Enqueue"] == 240


# Leases -----------------------------------------------------------------------------------------


def test_a_lease_is_over_when_the_store_has_counted_it_off(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    engine = engine_of(cluster)
    enqueue(engine, "a")
    claim(engine, lease_ms=10_000)
    clock.advance((10_000 + VERSION_GRACE_MS) / 1000 - 1)
    assert claim(engine) == []
    clock.advance(3)  # an idle store counts in seconds
    assert [job.id for job in claim(engine)] == ["a"]


def test_a_lease_that_ends_soon_is_looked_at_again_when_it_has_ended(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    """Otherwise the leases of a queue are looked at once a second."""
    engine = engine_of(cluster)
    enqueue(engine, "a")
    claim(engine, lease_ms=10_000)
    clock.advance((10_000 + VERSION_GRACE_MS) / 1000 - 0.3)
    enqueue(engine, "b", delay_ms=60_000)  # a commit has the store count exactly
    assert claim(engine) == []
    clock.advance(0.4)
    enqueue(engine, "c", delay_ms=60_000)
    assert [job.id for job in claim(engine)] == ["a"]


@pytest.mark.parametrize("skew_ms", [-30_000, 30_000])
def test_a_clock_that_is_wrong_takes_nothing_from_anybody(
    cluster: fdb_sim.Cluster, clock: ManualClock, skew_ms: int
) -> None:
    holder, other = engine_of(cluster, skew_ms=-skew_ms), engine_of(cluster, skew_ms=skew_ms)
    enqueue(holder, "a")
    (job,) = claim(holder, lease_ms=10_000)
    clock.advance(9)
    assert claim(other) == []
    assert holder.apply([ops.Extend(job.id, job.token, 10_000)]) == [ops.Ok()]
    clock.advance(9)
    assert claim(other) == []
    assert holder.apply([ops.Ack(job.id, job.token)]) == [ops.Ok()]


def test_a_lease_is_over_by_the_clock_where_versions_stand_still(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    engine = engine_of(cluster)
    now = clock.now_ms()
    for later_ms in (0, 40_000, NTP_GRACE_MS):
        over_at = engine._store.lease_is_over_at(
            now + later_ms, Lease(now, 90_000, 1_000), 1_000, 0
        )
        assert over_at == now + NTP_GRACE_MS + 1


# Turns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 8])
def test_turns_are_fair_on_average_by_weight(cluster: fdb_sim.Cluster, limit: int) -> None:
    engine = engine_of(cluster)
    engine.apply([ops.SetLimit("q", tenant="b", weight=3)])
    for tenant in "abc":
        enqueue(engine, *[f"{tenant}{n}" for n in range(200)], tenant=tenant)
    served = Counter(job.tenant for _ in range(200 // limit) for job in claim(engine, limit))
    assert 20 <= served["a"] <= 60
    assert 90 <= served["b"] <= 150
    assert 20 <= served["c"] <= 60


def test_nobody_is_left_out_among_a_thousand_tenants(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    for n in range(1000):
        enqueue(engine, str(n), tenant=f"t{n}")
    seen: set[str] = set()
    while jobs := claim(engine, 100):
        seen.update(job.id for job in jobs)
    assert len(seen) == 1000


# Limits of the store ----------------------------------------------------------------------------


def test_a_payload_may_be_larger_than_a_value(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    payload = msgspec.Raw(b'"' + b"x" * 1_000_000 + b'"')
    enqueue(engine, "a", payload=payload)
    (job,) = claim(engine)
    assert job.raw_payload == payload
    engine.apply([ops.Ack("a", job.token, payload)])
    found = engine.read(queries.GetJob("a"))
    assert isinstance(found, Job)
    assert found.raw_result == payload


def test_a_summary_of_a_large_payload_reads_its_first_and_last_part(
    cluster: fdb_sim.Cluster,
) -> None:
    db = fdb_sim.open(cluster)
    engine = FoundationDbEngine(fdb_sim, db, Settings(), db.clock)
    enqueue(engine, "a", payload=msgspec.Raw(b'"' + b"x" * 999_998 + b'"'))
    before = db.stats.bytes_read
    page = engine.read(queries.ListSummaries())
    assert isinstance(page, queries.Summaries)
    assert [(job.id, job.payload_bytes) for job in page.jobs] == [("a", 1_000_000)]
    assert db.stats.bytes_read - before < 2.5 * PART_BYTES


def test_a_batch_may_be_larger_than_a_transaction(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    payload = msgspec.Raw(b'"' + b"x" * 600_000 + b'"')
    batch = [ops.Enqueue((JobSpec(str(n), "q", payload),)) for n in range(30)]
    assert all(isinstance(one, ops.Enqueued) for one in engine.apply(batch))
    assert len(claim(engine, 3)) == 3


def test_one_call_that_is_larger_than_a_transaction_is_refused(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    payload = msgspec.Raw(b'"' + b"x" * 600_000 + b'"')
    specs = tuple(JobSpec(str(n), "q", payload) for n in range(30))
    small = ops.Enqueue((JobSpec("small", "q", NULL),))
    refused, done = engine.apply([ops.Enqueue(specs), small])
    assert isinstance(refused, InvalidInput)
    assert isinstance(done, ops.Enqueued)


# Once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_an_unknown_result_is_not_applied_twice(cluster: fdb_sim.Cluster, seed: int) -> None:
    engine = engine_of(
        cluster, seed=seed, unknown_applied=0.3, unknown_lost=0.2, timeout=0.2, late_s=1.0
    )
    ids = [str(n) for n in range(30)]
    for one in ids:
        enqueue(engine, one)  # a second time it would be a duplicate
    jobs = []
    while found := claim(engine, 3, lease_ms=600_000):
        jobs += found
    assert sorted(job.id for job in jobs) == sorted(ids)
    for job in jobs:
        assert engine.apply([ops.Ack(job.id, job.token)]) == [ops.Ok()]  # not LeaseLost
    assert isinstance(engine.apply([ops.Ack("0", 1)])[0], LeaseLost)


def test_a_commit_that_an_upgrade_of_the_cluster_left_unknown_is_not_applied_twice(
    cluster: fdb_sim.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(cluster)
    dice, fates = engine._store.db._client.dice, iter([Fate.UNKNOWN_APPLIED])
    monkeypatch.setattr(dice, "fate", lambda has_timeout: next(fates, Fate.NORMAL))
    monkeypatch.setattr(dice, "unknown", lambda: 1039)
    enqueue(engine, "a")  # a second time it would be a duplicate


@pytest.mark.parametrize("seed", range(10))
def test_who_is_told_that_nothing_was_changed_can_rely_on_it(
    cluster: fdb_sim.Cluster, clock: ManualClock, seed: int
) -> None:
    faulty = engine_of(cluster, seed=seed, unknown_applied=0.3, unknown_lost=0.3, timeout=0.3)
    faulty._transactor._patience_s = 0.0
    told: dict[int, ops.Answer | None] = {}
    for n in range(20):
        try:
            (told[n],) = faulty.apply([ops.Enqueue((JobSpec(str(n), "q", NULL),))])
        except Busy:
            told[n] = None
        except StoreError:
            pass  # it is not known
    clock.advance(10)  # what is under way arrives
    found = engine_of(cluster).read(queries.FindIds())
    assert isinstance(found, queries.Ids)
    for n, answer in told.items():
        assert (str(n) in found.ids) == isinstance(answer, ops.Enqueued)
    assert None in told.values()


def test_what_a_claim_in_a_once_is_answered_is_what_is_stored(cluster: fdb_sim.Cluster) -> None:
    engine, other = engine_of(cluster), engine_of(cluster)
    enqueue(engine, "a", "b")
    op = ops.Once("key", (ops.Claim(("q",), "w", 10_000, 1), ops.Claim(("q",), "w", 10_000, 1)))
    (first,), (second,) = engine.apply([op]), other.apply([op])
    assert first == second
    assert isinstance(first, ops.Answers)
    for answer in first.answers:
        assert isinstance(answer, ops.Leased)
        (job,) = answer.jobs
        assert other.apply([ops.Ack(job.id, job.token)]) == [ops.Ok()]
    found = engine.read(queries.ListJobs(queries.Filter(states=(State.DONE,))))
    assert isinstance(found, queries.Page)
    assert len(found.jobs) == 2


# Moving -----------------------------------------------------------------------------------------


def test_a_token_that_is_ahead_of_the_cluster_goes_on_from_there(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    enqueue(engine, "a")
    found = engine.read(queries.Export())
    assert isinstance(found, queries.Exported)
    (entry,) = found.entries
    engine.apply([ops.Delete(("a",))])
    ahead = msgspec.structs.replace(entry.job, token=10**15)
    engine.apply([ops.Import((msgspec.structs.replace(entry, job=ahead),))])
    tokens = [10**15]
    claim = ops.Claim(("q",), "w", 60_000)
    for op in (claim, ops.Once("k", (claim,))):
        (answer,) = engine.apply([op])
        (leased,) = answer.answers if isinstance(answer, ops.Answers) else (answer,)
        assert isinstance(leased, ops.Leased)
        (job,) = leased.jobs
        tokens.append(job.token)
        for stale in tokens[:-1]:
            assert isinstance(engine.apply([ops.Release("a", stale)])[0], LeaseLost)
        assert isinstance(engine.apply([ops.Release("a", job.token)])[0], ops.Moved)
    assert tokens == sorted(set(tokens))
