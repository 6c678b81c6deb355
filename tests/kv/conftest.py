"""A simulated cluster with a clock that is moved by hand."""

from __future__ import annotations

import pytest

from tenure.engines import fdb_sim
from tenure.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> fdb_sim.Cluster:
    return fdb_sim.Cluster(clock)


@pytest.fixture
def db(cluster: fdb_sim.Cluster) -> fdb_sim.Database:
    return fdb_sim.open(cluster)
