"""The rows of many jobs are read by one range read, if that is cheaper."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.calls import Call
from tenure.engines.foundationdb.claim import Claims
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.transact import begin
from tenure.engines.foundationdb.transaction import Transaction
from tenure.model import ops
from tenure.model.job import NULL, Job, JobSpec, State, new_ids
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim

LEASE_MS = 60_000
NOW = 1_700_000_000_000


class Rig:
    """An engine, and another on the same cluster."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = fdb_sim.Cluster(self.clock)
        self.db = fdb_sim.open(self.cluster)
        self.engine = self._engine(self.db)
        self.other = self._engine(fdb_sim.open(self.cluster))

    def _engine(self, db: fdb_sim.Database) -> FoundationDbEngine:
        return FoundationDbEngine(
            fdb_sim, db, Settings(), self.clock, hybrid=False, chance=random.Random(1)
        )

    def enqueue(self, ids: Sequence[str], queue: str = "q", size: int = 5) -> None:
        specs = [JobSpec(one, queue, _payload(one, size), made_up_id=True) for one in ids]
        self.engine.apply([ops.Enqueue(tuple(specs))])

    def claim(self, limit: int) -> list[Job]:
        (answer,) = self.engine.apply([ops.Claim(("q",), "w", LEASE_MS, limit)])
        assert isinstance(answer, ops.Leased)
        return answer.jobs

    def ack(self, jobs: Sequence[Job]) -> list[ops.Answer]:
        return self.engine.apply([ops.Ack(job.id, job.token) for job in jobs])

    def begin(self) -> Transaction:
        """Begin a transaction of an engine that does not remember what the first has claimed."""
        return Transaction(self.other._store, begin(self.db), self.clock.now_ms())

    @property
    def reads(self) -> int:
        return self.db.stats.point_reads + self.db.stats.range_reads


def _payload(job_id: str, size: int) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(job_id + "x" * size))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def _names(count: int) -> list[str]:
    return [f"job-{n:05}" for n in range(count)]


def _check(jobs: Sequence[Job], ids: Sequence[str], size: int = 5) -> None:
    assert [job.id for job in jobs] == list(ids)
    assert all(job.raw_payload == _payload(job.id, size) for job in jobs)


def test_adjacent_jobs_are_claimed_and_acknowledged_with_few_reads(rig: Rig) -> None:
    rig.enqueue(_names(100))
    before = rig.reads
    jobs = rig.claim(100)
    _check(jobs, _names(100))
    assert rig.reads - before <= 15
    before = rig.reads
    assert rig.ack(jobs) == [ops.Ok()] * 100
    assert rig.reads - before <= 6


def test_jobs_among_many_others_are_read_one_by_one_after_one_try(rig: Rig) -> None:
    every = _names(600)
    wanted = every[::30]
    rig.enqueue([one for one in every if one not in wanted], queue="others")
    rig.enqueue(wanted)
    rig.enqueue([f"{one}-2" for one in wanted])
    jobs = rig.claim(20)
    _check(jobs, wanted)
    before = rig.db.stats.keys_read
    _check(rig.claim(20), [f"{one}-2" for one in wanted])
    assert rig.db.stats.keys_read - before <= 110
    assert rig.ack(jobs) == [ops.Ok()] * 20


def test_a_range_that_is_cut_off_inside_a_job_loses_none_of_its_parts(rig: Rig) -> None:
    size = 300_000  # four keys each, and two for each job are read
    for one in _names(10):
        rig.enqueue([one], size=size)
    _check(rig.claim(10), _names(10), size)


def test_ids_with_zeros_are_told_apart(rig: Rig) -> None:
    ids = sorted(f"a{zeros}{n}" for zeros in ("\0", "\0\0", "") for n in range(4))
    rig.enqueue(ids)
    jobs = rig.claim(len(ids))
    _check(jobs, ids)
    assert rig.ack(jobs) == [ops.Ok()] * len(ids)


def test_a_job_that_does_not_exist_is_not_found_among_those_that_do(rig: Rig) -> None:
    rig.enqueue(_names(20))
    tx = rig.begin()
    tx.load([*_names(20), "job-00003a", "job", "z"])
    assert [held.id for held in tx.jobs([*_names(20), "job-00003a", "z"])] == _names(20)


@pytest.mark.parametrize("leased", [True, False])
def test_a_job_that_moves_after_it_was_read_makes_the_commit_conflict(
    rig: Rig, leased: bool
) -> None:
    rig.enqueue(_names(20))
    jobs = rig.claim(20) if leased else []
    tx = rig.begin()
    tx.load(_names(20))
    held = tx.job("job-00007")
    assert held is not None
    assert held.state is (State.LEASED if leased else State.PENDING)
    if leased:
        rig.other.apply([ops.Ack(jobs[7].id, jobs[7].token)])
    else:
        rig.other.apply([ops.Claim(("q",), "other", LEASE_MS, 20)])
    tx.set(tx.keys.pack(k.WAKE, 99))
    with pytest.raises(fdb_sim.FDBError, match="1020"):
        tx.tr.commit().wait()


@pytest.mark.parametrize("made_up", [True, False])
def test_other_jobs_that_move_make_no_commit_conflict(rig: Rig, made_up: bool) -> None:
    names = new_ids(NOW, 20) if made_up else _names(20)
    rig.enqueue(names)
    jobs = rig.claim(20)
    tx = rig.begin()
    tx.load(names[::2])
    assert len(tx.jobs(names[::2])) == 10
    assert tx.child_ids(names[::2]) == []
    rig.other.apply([ops.Ack(job.id, job.token) for job in jobs[1::2]])
    tx.set(tx.keys.pack(k.WAKE, 99))
    tx.tr.commit().wait()


# Conflict ranges --------------------------------------------------------------------------------


def _ranges(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The beginnings of the read conflict ranges that are added from now on."""
    found: list[bytes] = []
    add = fdb_sim.Transaction.add_read_conflict_range

    def note(tr: fdb_sim.Transaction, begin: bytes, end: bytes) -> None:
        found.append(begin)
        add(tr, begin, end)

    monkeypatch.setattr(fdb_sim.Transaction, "add_read_conflict_range", note)
    return found


@pytest.mark.parametrize(("made_up", "most"), [(True, 4), (False, 42)])
def test_jobs_that_were_made_up_together_share_conflict_ranges(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, made_up: bool, most: int
) -> None:
    names = [*new_ids(NOW, 10), *new_ids(NOW + 15, 10)] if made_up else _names(20)
    rig.enqueue(names)
    ranges = _ranges(monkeypatch)
    jobs = rig.claim(20)
    assert len(ranges) <= most
    ranges.clear()
    rig.ack(jobs)
    assert len(ranges) <= most


@pytest.mark.parametrize("n", [0, 7, 19])
@pytest.mark.parametrize("what", ["job", "child"])
def test_each_job_that_shares_a_conflict_range_is_in_it(rig: Rig, n: int, what: str) -> None:
    names = new_ids(NOW, 20)
    rig.enqueue(names)
    jobs = rig.claim(20)
    tx = rig.begin()
    tx.load(names)
    assert len(tx.jobs(names)) == 20
    assert tx.child_ids(names) == []
    if what == "job":
        rig.other.apply([ops.Ack(jobs[n].id, jobs[n].token)])
    else:
        rig.other.apply([ops.Enqueue((JobSpec("child", "q", NULL, after=(names[n],)),))])
    tx.set(tx.keys.pack(k.WAKE, 99))
    with pytest.raises(fdb_sim.FDBError, match="1020"):
        tx.tr.commit().wait()


@pytest.mark.parametrize("n", [0, 7, 19])
def test_a_claim_of_jobs_that_share_a_conflict_range_does_not_get_one_that_moves(
    rig: Rig, n: int
) -> None:
    names = new_ids(NOW, 20)
    rig.enqueue(names)
    tx = rig.begin()
    plan = Claims(rig.engine._transactor)._plan(
        tx, 20, calls=[Call(ops.Claim(("q",), "w", LEASE_MS, 20))], look={}
    )
    assert [len(jobs) for _, jobs, _ in plan.dealt] == [20]
    rig.other.apply([ops.Cancel((names[n],))])
    with pytest.raises(fdb_sim.FDBError, match="1020"):
        tx.tr.commit().wait()


def test_jobs_of_other_times_or_names_share_no_conflict_range(rig: Rig) -> None:
    """A job that is added between them must not conflict, since that may happen any time."""
    names = ["a-long-name-of-its-own-" + name for name in _names(10)]
    names += [one for n in range(10) for one in new_ids(NOW + 16 * n, 1)]
    rig.enqueue(names)
    rig.claim(20)
    tx = rig.begin()
    tx.load(names)
    assert len(tx.jobs(names)) == 20
    for name in names:
        rig.other.apply([ops.Enqueue((JobSpec(name + "x", "q", NULL),))])
    tx.set(tx.keys.pack(k.WAKE, 99))
    tx.tr.commit().wait()


def test_a_job_that_is_missing_conflicts_when_it_is_added(rig: Rig) -> None:
    names = new_ids(NOW, 20)
    rig.enqueue(names[:-1])
    tx = rig.begin()
    tx.load(names)
    assert len(tx.jobs(names)) == 19
    rig.other.apply([ops.Enqueue((JobSpec(names[-1], "q", NULL),))])
    tx.set(tx.keys.pack(k.WAKE, 99))
    with pytest.raises(fdb_sim.FDBError, match="1020"):
        tx.tr.commit().wait()


def test_a_child_that_comes_after_the_look_makes_the_end_of_its_parent_conflict(rig: Rig) -> None:
    rig.enqueue(_names(20))
    rig.claim(20)
    tx = rig.begin()
    tx.ask_children(_names(20))
    assert tx.child_ids(["job-00007"]) == []
    child = JobSpec("child", "q", _payload("child", 1), after=("job-00007",))
    rig.other.apply([ops.Enqueue((child,))])
    tx.set(tx.keys.pack(k.WAKE, 99))
    with pytest.raises(fdb_sim.FDBError):
        tx.tr.commit().wait()


def test_children_are_found_among_those_of_many_parents(rig: Rig) -> None:
    rig.enqueue(_names(20))
    jobs = rig.claim(20)
    for parent in ("job-00003", "job-00011"):
        child = JobSpec(f"of-{parent}", "q", _payload("", 1), after=(parent,))
        rig.engine.apply([ops.Enqueue((child,))])
    assert rig.claim(5) == []
    rig.ack(jobs)
    assert sorted(job.id for job in rig.claim(5)) == ["of-job-00003", "of-job-00011"]
