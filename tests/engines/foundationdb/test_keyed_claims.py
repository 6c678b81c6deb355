"""Claims under a key, as they come through the service: applied once, whatever stops them on the
way, and in nobody's way."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tenure.engines.foundationdb import claim as claims
from tenure.engines.foundationdb import keyed_calls
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.errors import Busy, StoreError
from tenure.model import ops
from tenure.model.job import NULL, Job, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.simulation.contention import measure_service
from tests.simulation.servers.stepping import Actor, Crashed, Driver, SteppedDatabase
from tests.support.fdb_audit import Rows, wrong_keys

LEASE_MS = 600_000


@pytest.fixture
def cluster() -> fdb_sim.Cluster:
    return fdb_sim.Cluster(ManualClock())


def engine_of(cluster: fdb_sim.Cluster, db: Any = None) -> FoundationDbEngine:
    db = db or fdb_sim.open(cluster)
    return FoundationDbEngine(fdb_sim, db, Settings(), ManualClock(), hybrid=False)


def enqueue(*ids: str, payload: msgspec.Raw = NULL) -> ops.Enqueue:
    return ops.Enqueue(tuple(JobSpec(one, "q", payload) for one in ids))


def claim(limit: int = 1) -> ops.Claim:
    return ops.Claim(("q",), "w", LEASE_MS, limit)


def jobs_of(answer: ops.Answer) -> list[Job]:
    assert isinstance(answer, ops.Answers), answer
    return [job for one in answer.answers if isinstance(one, ops.Leased) for job in one.jobs]


class Crash(BaseException):
    """The process is gone."""


def crash(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    def gone(*_: object, **__: object) -> None:
        raise Crash

    monkeypatch.setattr(where, name, gone)


MIXED = ops.Once("key", (enqueue("a", "b", "c"), claim(1), claim(1)))


@pytest.mark.parametrize(
    ("where", "name"),
    [(claims.Claims, "_round"), (claims.Claims, "_settle")],
    ids=["before its claims", "before its answers are stored"],
)
def test_who_crashes_on_the_way_is_followed_by_one_who_goes_on(
    cluster: fdb_sim.Cluster, where: Any, name: str
) -> None:
    first, second = engine_of(cluster), engine_of(cluster)
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, where, name)
        with pytest.raises(Crash):
            first.apply([MIXED])
    (answer,) = second.apply([MIXED])
    assert isinstance(answer, ops.Answers)
    assert isinstance(answer.answers[0], ops.Enqueued)  # not that they are there already
    jobs = jobs_of(answer)
    assert sorted(job.id for job in jobs) == ["a", "b"]
    assert first.apply([MIXED]) == [answer]
    assert second.apply([ops.Ack(job.id, job.token) for job in jobs]) == [ops.Ok(), ops.Ok()]
    assert jobs_of(second.apply([ops.Once("another", (claim(9),))])[0])[0].id == "c"
    assert wrong_keys(fdb_sim.open(cluster)) == []


def test_a_lease_that_ended_before_its_claim_was_answered_is_not_answered(
    cluster: fdb_sim.Cluster,
) -> None:
    first, second = engine_of(cluster), engine_of(cluster)
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, claims.Claims, "_settle")
        with pytest.raises(Crash):
            first.apply([MIXED])
    second.apply([ops.Cancel(("a",))])
    assert [job.id for job in jobs_of(second.apply([MIXED])[0])] == ["b"]


def test_answers_take_the_place_of_all_notes(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    vain = ops.Claim(("none",), "w", LEASE_MS)
    engine.apply([MIXED, ops.Once("empty", (vain,)), ops.Once("vain", (enqueue("d"), vain))])
    found = Rows(fdb_sim.open(cluster), ("tenure",))
    assert sorted(found.of(k.ONCE)) == [("empty", 0), ("key", 0), ("vain", 0)]
    assert sorted(key for _, key in found.of(k.ONCE_AT)) == ["empty", "key", "vain"]


def test_a_claim_that_found_nothing_finds_nothing_the_second_time(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    op = ops.Once("key", (claim(),))
    assert jobs_of(engine.apply([op])[0]) == []
    engine.apply([enqueue("a")])
    assert jobs_of(engine.apply([op])[0]) == []


def test_one_key_twice_in_a_batch_is_one_call(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    engine.apply([enqueue("a", "b", "c")])
    op = ops.Once("key", (claim(),))
    first, plain, second = engine.apply([op, claim(), op])
    assert first == second
    assert isinstance(plain, ops.Leased)
    assert {job.id for job in [*jobs_of(first), *plain.jobs]} == {"a", "b"}


def test_an_answer_that_would_be_too_large_has_fewer_jobs(cluster: fdb_sim.Cluster) -> None:
    engine = engine_of(cluster)
    engine.apply([ops.SetLimit("q", concurrency=20)])
    large = msgspec.Raw(b'"' + b"x" * 900_000 + b'"')
    for n in range(15):
        engine.apply([enqueue(str(n), payload=large)])
    given: list[Job] = []
    for n in range(5):
        jobs = jobs_of(engine.apply([ops.Once(str(n), (claim(9),))])[0])
        assert jobs or len(given) == 15
        given += jobs
    assert len(given) == len({job.id for job in given}) == 15
    assert wrong_keys(fdb_sim.open(cluster)) == []


def test_a_store_that_fails_after_the_claims_does_not_say_that_nothing_was_changed(
    cluster: fdb_sim.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(cluster)
    engine.apply([enqueue("a")])
    op = ops.Once("key", (claim(),))

    def away(*_: object) -> None:
        raise Busy("nothing was changed")

    with monkeypatch.context() as patch:
        patch.setattr(keyed_calls, "won_by", away)
        (answer,) = engine.apply([op])
    assert isinstance(answer, StoreError)
    assert "same key" in str(answer)
    assert [job.id for job in jobs_of(engine.apply([op])[0])] == ["a"]


@pytest.mark.parametrize("seed", range(6))
def test_each_of_many_who_ask_under_the_same_keys_at_once_gets_the_same(
    cluster: fdb_sim.Cluster, seed: int
) -> None:
    """Step by step side by side, with crashes: every key has one answer, every job one holder."""
    engine_of(cluster).apply([enqueue(*(str(n) for n in range(40)))])
    driver = Driver(random.Random(seed), crashes=0.02)
    answers: dict[str, list[ops.Answer]] = {}

    def work(actor: Actor) -> None:
        for key in ("k1", "k2", "k3", "k4"):
            for _ in range(3):
                try:
                    engine = engine_of(cluster, SteppedDatabase(fdb_sim.open(cluster), actor))
                    op = ops.Once(key, (enqueue(f"{key}-new"), claim(2), claim(1)))
                    answers.setdefault(key, []).extend(engine.apply([op]))
                    break
                except Crashed:
                    continue

    for n in range(4):
        driver.add(f"w{n}", work)
    driver.run(lambda step: None)
    held: list[str] = []
    for key, found in answers.items():
        assert all(one == found[0] for one in found), key
        assert len(jobs_of(found[0])) == 3
        held += [job.id for job in jobs_of(found[0])]
    assert len(answers) == 4
    assert len(held) == len(set(held))
    assert wrong_keys(fdb_sim.open(cluster)) == []


def test_claims_through_the_service_are_in_nobodys_way() -> None:
    """Eight services, each with claims, enqueues and acknowledgements of several callers."""
    found = measure_service(jobs=300)
    assert (found.given, found.twice) == (300, 0)
    assert found.calls["Enqueue"] > 50
    assert found.calls["Ack"] == 300
    assert found.again("Enqueue") == found.again("Ack") == 0
    assert found.conflicted <= 0.05 * found.attempted
