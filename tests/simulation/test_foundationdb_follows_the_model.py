"""Random operations on FoundationDB's simulation, and on a real cluster if there is one, and on the
reference model side by side. Whom a claim serves is the engine's choice; everything else must be
the same after every step."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from tenure.engines import Engine
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model.job import Lease
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.simulation.following import FollowingModel, given_out
from tests.simulation.test_same_as_the_model import SameAsTheModel
from tests.support import fdb
from tests.support.fdb_audit import wrong_keys


class FollowsTheModel(SameAsTheModel):
    """What the engine answers, the model allows."""

    faults = False

    def __init__(self) -> None:
        super().__init__()
        self.following = FollowingModel(self.clock, self.sweep)
        self.model = self.following

    def open(self, settings: Settings) -> Engine:
        self.cluster = fdb_sim.Cluster(ManualClock())
        db = fdb_sim.open(self.cluster, faults=fdb.faults(5) if self.faults else None)
        chance = random.Random(3)
        return FoundationDbEngine(
            fdb_sim,
            db,
            settings,
            self.clock,
            hybrid=False,
            chance=chance,
            aside_from=1,
            near_from=2,
        )

    def audit(self) -> list[str]:
        return wrong_keys(fdb_sim.open(self.cluster))

    def clean_up(self) -> None:
        pass

    def same(self, expected: Any, found: Any) -> None:
        assert found == expected  # the model uses the tokens of the engine

    def flush(self) -> None:
        batch, self.waiting = self.waiting, []
        if not batch:
            return
        answers = self.engine.apply(batch)
        for op, answer in zip(batch, answers, strict=True):
            assert answer == self.following.follow(op, answer, self.engine)
            self.leases += [Lease(*one) for jobs in given_out(answer) for one in jobs]


class FollowsWithSmallSweeps(FollowsTheModel):
    """The same where a claim looks after few due jobs, so that it meets some unswept."""

    sweep = 1
    batches = False


class FollowsWithFaults(FollowsTheModel):
    """The same where much goes wrong."""

    faults = True


class FollowsOnACluster(FollowsTheModel):
    """The same on a real cluster, in a directory for each run."""

    def open(self, settings: Settings) -> Engine:
        self.place = Path("/follows", uuid.uuid4().hex)
        return fdb.open_real(self.place, settings, self.clock)

    def audit(self) -> list[str]:
        return fdb.audit_cluster(self.place)


class FollowsOnAClusterWithSmallSweeps(FollowsOnACluster):
    sweep = 1
    batches = False


_SETTINGS = settings(
    max_examples=100 if fdb.EVERYTHING else 5,
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
if fdb.CLUSTER_FILE:
    TestFollowsOnACluster = FollowsOnACluster.TestCase
    TestFollowsOnACluster.settings = _SETTINGS
    TestFollowsOnAClusterWithSmallSweeps = FollowsOnAClusterWithSmallSweeps.TestCase
    TestFollowsOnAClusterWithSmallSweeps.settings = _SETTINGS
