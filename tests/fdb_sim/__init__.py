"""FoundationDB's key-value API without a cluster, for tests.

`fdb_sim.open()` gives a database where `fdb.open()` would, and this package has the names of the
official binding that an engine needs, nothing more. It answers as a real cluster of release 7.3 did
when it was asked (tests/kv holds it to the recordings), and more strictly where a cluster leaves
things to chance: an answer that nobody waited for is lost with its transaction.

    cluster = fdb_sim.Cluster(clock)
    db = fdb_sim.open(cluster, faults=fdb_sim.Faults(seed=7, conflict=0.1), skew_ms=30_000)

Versions pass with the clock of the cluster, a million in a second, and a recovery moves them ahead.
Nothing goes wrong unless asked for.
"""

from __future__ import annotations

from tenure.engines.foundationdb.tuple_layer import Subspace, strinc
from tests.fdb_sim.client import SkewedClock
from tests.fdb_sim.cluster import Cluster
from tests.fdb_sim.database import Database, open, transactional
from tests.fdb_sim.directories import DirectoryLayer
from tests.fdb_sim.errors import FDBError, predicates
from tests.fdb_sim.faults import Faults
from tests.fdb_sim.futures import Future, Key, Value
from tests.fdb_sim.selectors import KeySelector, KeyValue, StreamingMode
from tests.fdb_sim.stats import Stats
from tests.fdb_sim.transaction import FDBRange, Transaction, TransactionRead

directory = DirectoryLayer()

__all__ = [
    "Cluster",
    "Database",
    "DirectoryLayer",
    "FDBError",
    "FDBRange",
    "Faults",
    "Future",
    "Key",
    "KeySelector",
    "KeyValue",
    "SkewedClock",
    "Stats",
    "StreamingMode",
    "Subspace",
    "Transaction",
    "TransactionRead",
    "Value",
    "directory",
    "open",
    "predicates",
    "strinc",
    "transactional",
]
