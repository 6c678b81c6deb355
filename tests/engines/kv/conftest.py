"""A simulated cluster with a clock that is moved by hand, and a real one if there is one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tenure.engines.foundationdb import binding
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb import CLUSTER_FILE


class Real(NamedTuple):
    """A real cluster: the binding, a database, and a prefix that is ours."""

    fdb: Any
    db: Any
    prefix: bytes


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> fdb_sim.Cluster:
    return fdb_sim.Cluster(clock)


@pytest.fixture
def db(cluster: fdb_sim.Cluster) -> fdb_sim.Database:
    return fdb_sim.open(cluster)


@pytest.fixture
def real() -> Iterator[Real]:
    """What we leave there is removed."""
    if not CLUSTER_FILE:
        pytest.skip("FDB_CLUSTER_FILE does not name a cluster")
    fdb = binding.load()
    db = binding.open_database(fdb, CLUSTER_FILE)
    prefix = b"tenure-tests/" + uuid.uuid4().hex.encode() + b"/"
    yield Real(fdb, db, prefix)
    db.clear_range_startswith(prefix)
