"""Random operations on FoundationDB's simulation and on the reference model side by side. Whom a
claim serves is the engine's choice; everything else must be the same after every step."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tenure import ops
from tenure.engines import fdb_sim
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.job import Lease, State
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb
from tests.fdb_audit import wrong_keys
from tests.simulation.following import FollowingModel
from tests.simulation.test_same_as_the_model import SameAsTheModel, groups, queues, tenants


class FollowsTheModel(SameAsTheModel):
    """What the engine answers, the model allows."""

    faults = False

    def __init__(self) -> None:
        super().__init__()
        self.engine.close()
        self.cluster = fdb_sim.Cluster(ManualClock())
        db = fdb_sim.open(self.cluster, faults=fdb.faults(5) if self.faults else None)
        limits = Settings(sweep=self.sweep)
        chance = random.Random(3)
        self.store: Any = FoundationDbEngine(
            fdb_sim, db, limits, self.clock, hybrid=False, chance=chance
        )
        self.engine = self.store
        self.following = FollowingModel(self.clock, self.sweep)
        self.model = self.following
        self.keys = count()

    def teardown(self) -> None:
        self.flush()
        assert wrong_keys(fdb_sim.open(self.cluster)) == []
        self.folder.cleanup()

    def flush(self) -> None:
        batch, self.waiting = self.waiting, []
        if not batch:
            return
        answers = self.store.apply(batch)
        dead = set(self.store.read(ops.FindIds(ops.Filter(states=(State.DEAD,)))).ids)
        for op, answer in zip(batch, answers, strict=True):
            assert answer == self.following.follow(op, answer, dead)
            if isinstance(answer, ops.Leased):
                self.leases += [Lease(job.id, job.token) for job in answer.jobs]

    @rule(
        queue=st.one_of(st.none(), queues),
        states=st.lists(st.sampled_from(list(State)), max_size=2, unique=True).map(tuple),
        tenant=st.one_of(st.none(), tenants),
        group=st.one_of(st.none(), groups),
        limit=st.integers(1, 3),
    )
    def list_pages(
        self,
        queue: str | None,
        states: tuple[State, ...],
        tenant: str | None,
        group: str | None,
        limit: int,
    ) -> None:
        """The cursors are the engine's own."""
        self.flush()
        where = ops.Filter(queue, states, tenant, group)
        for kind in (ops.FindIds, ops.ListJobs):
            ours: str | None = None
            theirs: str | None = None
            while True:
                found = self.store.read(kind(where, limit, ours))
                expected = self.following.read(kind(where, limit, theirs))
                if not isinstance(found, ops.Page | ops.Ids):
                    assert found == expected
                    break
                assert isinstance(expected, ops.Page | ops.Ids)
                what = "jobs" if kind is ops.ListJobs else "ids"
                assert getattr(found, what) == getattr(expected, what)
                ours, theirs = found.cursor, expected.cursor
                assert (ours is None) == (theirs is None)
                if ours is None:
                    break


class FollowsWithSmallSweeps(FollowsTheModel):
    """The same where a claim looks after few due jobs, so that it meets some unswept."""

    sweep = 1
    batches = False


class FollowsWithFaults(FollowsTheModel):
    """The same where much goes wrong."""

    faults = True


_SETTINGS = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestFollowsTheModel = FollowsTheModel.TestCase
TestFollowsTheModel.settings = _SETTINGS
TestFollowsWithSmallSweeps = FollowsWithSmallSweeps.TestCase
TestFollowsWithSmallSweeps.settings = _SETTINGS
TestFollowsWithFaults = FollowsWithFaults.TestCase
TestFollowsWithFaults.settings = _SETTINGS
