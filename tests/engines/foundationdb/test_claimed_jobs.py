"""A process remembers the jobs that it has claimed, and acts on them only if they are unchanged."""

from __future__ import annotations

import random

import pytest

from tenure.engines.foundationdb.claimed_jobs import ClaimedJobs, Mine, runs_of
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.record import Record, new_record
from tenure.engines.foundationdb.transact import begin
from tenure.engines.foundationdb.transaction import Transaction
from tenure.errors import JobNotFound, LeaseLost
from tenure.model import ops
from tenure.model.job import NULL, Job, JobSpec, State, new_ids
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb_audit import wrong_keys
from tests.support.sizes import let

NOW = 1_700_000_000_000
LEASE_MS = 60_000
OK = ops.Ok()


class Rig:
    """Two engines on one cluster; the second remembers nothing of what the first has claimed."""

    def __init__(self, **faults: float) -> None:
        self.clock = ManualClock()
        cluster = fdb_sim.Cluster(self.clock)
        self.db = fdb_sim.open(cluster, faults=fdb_sim.Faults(seed=1, **faults))
        self.engine = self._engine(self.db)
        self.other = self._engine(fdb_sim.open(cluster))

    def _engine(self, db: fdb_sim.Database) -> FoundationDbEngine:
        chance = random.Random(1)
        return FoundationDbEngine(fdb_sim, db, Settings(), self.clock, hybrid=False, chance=chance)

    def enqueue(self, *ids: str) -> None:
        specs = tuple(JobSpec(one, "q", NULL, tenant="t", expires_in_ms=10**9) for one in ids)
        assert isinstance(self.other.apply([ops.Enqueue(specs)])[0], ops.Enqueued)

    def claim(self, limit: int = 100, *, other: bool = False) -> list[Job]:
        engine = self.other if other else self.engine
        (answer,) = engine.apply([ops.Claim(("q",), "w", LEASE_MS, limit)])
        assert isinstance(answer, ops.Leased)
        return answer.jobs

    def ack(self, *jobs: Job) -> list[str]:
        return list(map(repr, self.engine.apply([ops.Ack(job.id, job.token) for job in jobs])))

    def remembers(self, *ids: str) -> set[str]:
        return set(self.engine._store.claimed.find(ids))

    def begin(self, engine: FoundationDbEngine) -> Transaction:
        return Transaction(engine._store, begin(self.db), self.clock.now_ms())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_job_is_remembered_as_it_is_stored(rig: Rig) -> None:
    ids = new_ids(NOW, 10)
    rig.enqueue(*ids)
    jobs = rig.claim()
    rig.engine.apply([ops.Fail(jobs[0].id, jobs[0].token, "boom", retry_in_ms=0)])
    rig.claim()
    assert rig.remembers(*ids) == set(ids)
    records: list[list[Record]] = []
    for engine in (rig.engine, rig.other):
        held = rig.begin(engine).jobs(ids)
        assert all(one.claimed for one in held)
        records.append([one.record for one in held])
    assert records[0] == records[1]
    assert [one.message for one in rig.begin(rig.engine).jobs(ids)[0].errors] == ["boom"]


def test_an_ack_does_not_read_the_records_and_forgets_them(rig: Rig) -> None:
    ids = [f"job-{n:02}" for n in range(20)]
    rig.enqueue(*ids)
    jobs = rig.claim()
    before = rig.db.stats.keys_read
    assert rig.ack(*jobs) == [repr(OK)] * 20
    assert rig.db.stats.keys_read - before <= 22
    assert rig.remembers(*ids) == set()
    assert wrong_keys(rig.db) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda job: ops.Extend(job.id, job.token, LEASE_MS * 2),
        lambda job: ops.Progress(job.id, job.token, 50, "half"),
    ],
)
@pytest.mark.parametrize("by_other", [True, False])
def test_a_job_that_has_changed_is_read(rig: Rig, change: object, by_other: bool) -> None:
    rig.enqueue("a", "b")
    a, b = rig.claim()
    assert callable(change)
    engine = rig.other if by_other else rig.engine
    assert engine.apply([change(a)]) == [OK]
    assert rig.remembers("a") == ({"a"} if by_other else set())
    held = rig.begin(rig.engine).jobs(["a", "b"])
    assert [one.record for one in held] == [
        one.record for one in rig.begin(rig.other).jobs(["a", "b"])
    ]
    assert rig.ack(a, b) == [repr(OK)] * 2
    assert wrong_keys(rig.db) == []


def test_a_lease_that_was_lost_is_not_acknowledged_from_memory(rig: Rig) -> None:
    ids = ["cancelled", "deleted", "expired", "fine", "made-again"]
    rig.enqueue(*ids)
    jobs = rig.claim()
    rig.other.apply([ops.Extend(jobs[3].id, jobs[3].token, LEASE_MS * 9)])
    rig.other.apply([ops.Cancel(("cancelled",)), ops.Delete(("deleted", "made-again"))])
    rig.enqueue("made-again")
    rig.clock.advance(LEASE_MS / 1000 + 1)
    assert {job.id for job in rig.claim(other=True)} == {"expired", "made-again"}
    assert rig.ack(*jobs) == [
        repr(LeaseLost("cancelled", "cancelled")),
        repr(JobNotFound("deleted")),
        repr(LeaseLost("expired", "leased")),
        repr(OK),
        repr(LeaseLost("made-again", "leased")),
    ]
    assert wrong_keys(rig.db) == []


@pytest.mark.parametrize("made_up", [True, False])
@pytest.mark.parametrize("n", [0, 7, 19])
def test_a_job_that_moves_after_its_claim_was_read_makes_the_commit_conflict(
    rig: Rig, made_up: bool, n: int
) -> None:
    ids = new_ids(NOW, 20) if made_up else [f"job-{n:02}" for n in range(20)]
    rig.enqueue(*ids)
    jobs = rig.claim()
    tx = rig.begin(rig.engine)
    tx.load(ids)
    for held in tx.jobs(ids):
        tx.end(held, NULL)
    rig.other.apply([ops.Fail(jobs[n].id, jobs[n].token, "boom")])
    with pytest.raises(fdb_sim.FDBError, match="1020"):
        tx.tr.commit().wait()


def test_conflicts_and_unknown_results_change_nothing() -> None:
    rig = Rig(conflict=0.2, unknown_applied=0.1, unknown_lost=0.1)
    ids = new_ids(NOW, 60)
    rig.enqueue(*ids)
    done = 0
    while done < len(ids):
        jobs = rig.claim(7)
        assert rig.ack(*jobs) == [repr(OK)] * len(jobs)
        done += len(jobs)
    assert rig.remembers(*ids) == set()
    assert {one.state for one in rig.begin(rig.other).jobs(ids)} == {State.DONE}
    assert wrong_keys(rig.db) == []


def _mine(place: int) -> Mine:
    spec = JobSpec("a", "q", NULL)
    return Mine(b"stamp", new_record(spec, (1, 2, 3), NOW, waits=False), place)


def test_neighbours_are_those_of_one_run_of_one_claim() -> None:
    known = ClaimedJobs()
    first = known.places([["a", "b"], ["c"], ["d", "e", "f"]])
    second = known.places([["g", "h"]])
    jobs = {one: _mine(place) for one, place in (first | second).items() if one != "e"}
    assert runs_of(jobs) == [["a", "b"], ["c"], ["d"], ["f"], ["g", "h"]]


def test_when_too_many_are_remembered_all_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, claimed_jobs_remembered=3)
    known = ClaimedJobs()
    known.note((one, _mine(0)) for one in "ab")
    known.note([("c", _mine(0))])
    assert set(known.find("abcd")) == set("abc")
    known.note([("d", _mine(0))])
    assert set(known.find("abcd")) == {"d"}
