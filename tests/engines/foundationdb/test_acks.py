"""Acks that only finish their job have a path of their own. They do what the core's acks do."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.record import (
    PART_BYTES,
    ClaimNote,
    Held,
    Record,
    acked,
    changed,
    claimed,
    new_record,
)
from tenure.engines.memory import MemoryEngine
from tenure.errors import JobNotFound, LeaseLost
from tenure.model import ops, queries, states
from tenure.model.job import NULL, Failure, Job, JobSpec, State, new_ids
from tenure.model.ops import Grant
from tenure.model.queries import Page
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb_audit import wrong_keys

NOW = 1_700_000_000_000
LEASE_MS = 60_000
OK = ops.Ok()


class Rig:
    """An engine, and the reference model at the same time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.db = fdb_sim.open(fdb_sim.Cluster(self.clock))
        self.engine = FoundationDbEngine(
            fdb_sim, self.db, Settings(), self.clock, hybrid=False, chance=random.Random(1)
        )
        self.model = MemoryEngine(self.clock)

    def apply(self, *batch: ops.Op) -> list[ops.Answer]:
        """Apply operations without tokens to both."""
        self.model.apply(batch)
        return self.engine.apply(batch)

    def enqueue(self, *specs: JobSpec) -> None:
        assert isinstance(self.apply(ops.Enqueue(specs))[0], ops.Enqueued)

    def claim(self, limit: int) -> list[tuple[Job, Job]]:
        """Claimed jobs, of the engine and the model."""
        op = ops.Claim(("q",), "w", LEASE_MS, limit)
        (ours,), (theirs,) = self.engine.apply([op]), self.model.apply([op])
        assert isinstance(ours, ops.Leased)
        assert isinstance(theirs, ops.Leased)
        assert [job.id for job in ours.jobs] == [job.id for job in theirs.jobs]
        return list(zip(ours.jobs, theirs.jobs, strict=True))

    def ack(self, jobs: Sequence[tuple[Job, Job]], result: msgspec.Raw = NULL) -> list[str]:
        """What both say, as text."""
        ours = self.engine.apply([ops.Ack(job.id, job.token, result) for job, _ in jobs])
        theirs = self.model.apply([ops.Ack(job.id, job.token, result) for _, job in jobs])
        assert list(map(repr, ours)) == list(map(repr, theirs))
        return list(map(repr, ours))

    def check(self) -> None:
        """Compare all jobs and counts."""
        found = [self._found(engine) for engine in (self.engine, self.model)]
        assert found[0] == found[1]
        assert wrong_keys(self.db) == []

    def _found(self, engine: FoundationDbEngine | MemoryEngine) -> tuple[object, ...]:
        page = engine.read(queries.ListJobs(limit=1000))
        assert isinstance(page, Page)
        jobs = [replace(job, token=0) for job in page.jobs]
        return jobs, engine.read(queries.GetStats())

    def get(self, job_id: str) -> Job:
        found = self.engine.read(queries.GetJob(job_id))
        assert isinstance(found, Job)
        return found


def spec(job_id: str, **fields: object) -> JobSpec:
    return replace(JobSpec(job_id, "q", NULL, tenant="t", group="g"), **fields)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def leased_record(**fields: object) -> Record:
    record = new_record(spec("a"), (1, 2, 3), NOW, waits=False)
    return replace(claimed(record, ClaimNote("w", NOW, LEASE_MS), 9), **fields)


@pytest.mark.parametrize(
    ("record", "errors"),
    [
        (leased_record(), ()),
        (leased_record(failures=1, error="g"), (Failure(1, 1, "boom", group="g"),)),
        (leased_record(progress=50, note="half", unique_key="k", expires_at=NOW + 9), ()),
    ],
    ids=["plain", "failed before", "with options"],
)
def test_an_ack_makes_the_change_of_the_table(record: Record, errors: tuple[Failure, ...]) -> None:
    change = states.decide(Held("a", record, lambda _: errors), states.Acked(), NOW + 5)
    assert change is not None
    assert acked(record, NOW + 5, has_result=False) == changed(record, change, NOW + 5)


def test_a_claim_makes_the_change_of_the_table() -> None:
    record = new_record(spec("a", expires_in_ms=9), (1, 2, 3), NOW, waits=False)
    held = Held("a", record, lambda _: ())
    change = states.decide(held, states.Claimed(), NOW)
    assert change is not None
    assert states.is_plain(held, states.Claimed(), NOW)
    leased = claimed(record, ClaimNote("w", NOW, LEASE_MS), 9)
    assert (leased.state, leased.attempts) == (change.state, change.attempts)
    assert (leased.run_at, leased.expires_at) == (change.run_at, change.expires_at)


@pytest.mark.parametrize("made_up", [True, False])
def test_of_a_batch_those_that_hold_their_lease_are_done(rig: Rig, made_up: bool) -> None:
    ids = new_ids(NOW, 20) if made_up else [f"job-{n:02}" for n in range(20)]
    rig.enqueue(*(spec(one, unique_key=one) for one in ids))
    jobs = rig.claim(20)
    rig.apply(ops.Cancel((ids[3],)), ops.Delete((ids[5],)))
    old = [replace(job, token=job.token - 1) for job in jobs[7]]
    said = rig.ack([*jobs[:7], (old[0], old[1]), *jobs[8:], jobs[0]], msgspec.Raw(b'{"n":1}'))
    wrong = {n: text for n, text in enumerate(said) if text != repr(OK)}
    assert list(wrong) == [3, 5, 7, 20]
    rig.check()
    assert rig.get(ids[0]).result == {"n": 1}
    rig.enqueue(spec("next", unique_key=ids[0]))
    rig.check()


def test_the_error_for_a_child_names_its_state_after_its_parent_is_done(rig: Rig) -> None:
    rig.enqueue(spec("a"), spec("b"), spec("child", after=("a",)), spec("other", after=("b",)))
    (a, b) = rig.claim(2)
    child = tuple(replace(job, id="child", token=1) for job in a)
    other = tuple(replace(job, id="other", token=1) for job in a)
    said = rig.ack([a, (child[0], child[1]), (other[0], other[1]), b])
    assert said[1] == repr(LeaseLost("child", "pending"))
    assert said[2] == repr(LeaseLost("other", "waiting"))
    rig.check()


def test_children_of_a_batch_are_notified(rig: Rig) -> None:
    ids = new_ids(NOW, 20)
    rig.enqueue(*map(spec, ids))
    rig.enqueue(spec("of-all", after=tuple(ids)), spec("of-one", after=(ids[4],)))
    jobs = rig.claim(20)
    rig.ack(jobs[:10])
    rig.check()
    assert [ours.id for ours, _ in rig.claim(5)] == ["of-one"]
    rig.ack(jobs[10:])
    rig.check()
    assert [ours.id for ours, _ in rig.claim(5)] == ["of-all"]


def test_a_large_result_is_stored_in_parts(rig: Rig) -> None:
    rig.enqueue(spec("a"))
    result = b'"' + b"x" * 2 * PART_BYTES + b'"'
    assert rig.ack(rig.claim(1), msgspec.Raw(result)) == [repr(OK)]
    assert rig.get("a").raw_result == msgspec.Raw(result)
    rig.check()


def test_failures_are_kept_and_not_read(rig: Rig) -> None:
    rig.enqueue(*(spec(f"job-{n:02}") for n in range(10)))
    for ours, theirs in rig.claim(10):
        rig.engine.apply([ops.Fail(ours.id, ours.token, "boom", retry_in_ms=0)])
        rig.model.apply([ops.Fail(theirs.id, theirs.token, "boom", retry_in_ms=0)])
    jobs = rig.claim(10)
    before = rig.db.stats.range_reads + rig.db.stats.point_reads
    rig.ack(jobs)
    assert rig.db.stats.range_reads + rig.db.stats.point_reads - before <= 5
    assert [one.message for one in rig.get("job-03").errors] == ["boom"]
    rig.check()


@pytest.mark.parametrize(
    ("grant", "seen"),
    [
        (Grant(tenants=("t",)), True),
        (Grant(queues=("q",), tenants=("t",)), True),
        (Grant(tenants=("u",)), False),
        (Grant(queues=("r",)), False),
    ],
)
def test_a_grant_hides_jobs_from_acks(rig: Rig, grant: Grant, seen: bool) -> None:
    rig.enqueue(spec("a"))
    ((job, _),) = rig.claim(1)
    (answer,) = rig.engine.apply([ops.Ack(job.id, job.token, grant=grant)])
    assert repr(answer) == repr(OK if seen else JobNotFound("a"))
    assert rig.get("a").state is (State.DONE if seen else State.LEASED)


def test_acks_that_do_more_keep_their_place_in_a_batch(rig: Rig) -> None:
    rig.enqueue(spec("a", unique_key="k"), spec("b"), spec("c"), spec("d"))
    a, b, c, d = (ours for ours, _ in rig.claim(4))
    follow_up = spec("e", unique_key="k", after=("a", "c"))
    answers = rig.engine.apply(
        [
            ops.Ack(a.id, a.token),
            ops.Ack(b.id, b.token, NULL, (follow_up,)),
            ops.Ack(c.id, c.token, keep=False),
            ops.Ack(c.id, c.token),
            ops.Ack(d.id, d.token),
        ]
    )
    assert list(map(repr, answers)) == [*map(repr, (OK, OK, OK, JobNotFound("c"), OK))]
    assert rig.get("e").state is State.PENDING
    assert wrong_keys(rig.db) == []
