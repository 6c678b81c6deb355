"""Engines on the simulation of FoundationDB, for suites that open engines by URL; and on the real
cluster that FDB_CLUSTER_FILE names, in a directory of their own.

fdb-sim:///some/folder             a cluster of its own for each folder
fdb-sim:///some/folder?faults=7    the same where much goes wrong, by this seed

What holds where much goes wrong holds where nothing does, so that the suites run with faults only,
and few rounds of what is random. TENURE_SIMULATE=all has them run without faults, too, and more.
"""

from __future__ import annotations

import atexit
import os
import random
import uuid
import zlib
from collections import Counter
from functools import cache
from pathlib import Path, PurePath
from urllib.parse import parse_qs, urlsplit

from tenure.clock import Clock, SystemClock
from tenure.engines import ENGINES
from tenure.engines.foundationdb import binding
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.fdb_audit import wrong_keys

EVERYTHING = os.environ.get("TENURE_SIMULATE") == "all"
CLUSTER_FILE = os.environ.get("FDB_CLUSTER_FILE")

_clusters: dict[str, fdb_sim.Cluster] = {}
_opened: Counter[str] = Counter()  # engines, by the folder


def faults(seed: int) -> fdb_sim.Faults:
    """Of everything that can go wrong, a good deal."""
    return fdb_sim.Faults(
        seed=seed, conflict=0.1, unknown_applied=0.07, unknown_lost=0.07, too_old=0.00005
    )


def cluster_of(url: str, clock: Clock) -> fdb_sim.Cluster:
    """The cluster that a URL names. Where a test moves the clock by hand, it has one of its own,
    which only its waits move: the time of the test stands still while an engine tries again."""
    path = urlsplit(url).path
    if path not in _clusters:
        _clusters[path] = fdb_sim.Cluster(None if _is_real(clock) else ManualClock())
    return _clusters[path]


def _is_real(clock: Clock) -> bool:
    return isinstance(clock, SystemClock)


def simulated_url(folder: Path) -> str:
    """A cluster for each folder."""
    return f"fdb-sim://{folder}"


def faulty_url(folder: Path) -> str:
    """The same where much goes wrong."""
    return f"fdb-sim://{folder}?faults=7"


def open_simulated(url: str, settings: Settings, clock: Clock) -> FoundationDbEngine:
    parts = urlsplit(url)
    options = parse_qs(parts.query)
    # Of the test's own name: it meets the same faults however it is run.
    n = zlib.crc32(PurePath(parts.path).name.encode()) + _opened[parts.path]
    _opened[parts.path] += 1
    wrong = faults(int(options["faults"][0]) + n) if "faults" in options else None
    db = fdb_sim.open(cluster_of(url, clock), faults=wrong)
    return FoundationDbEngine(
        fdb_sim,
        db,
        settings,
        clock,
        hybrid=_is_real(clock),
        chance=random.Random(n),
        aside_from=1,
        near_from=1,
    )


def audit(folder: Path) -> list[str]:
    """What is wrong with the keys of a simulated cluster that a test is done with."""
    cluster = _clusters.pop(str(folder), None)
    _opened.pop(str(folder), None)
    return [] if cluster is None else wrong_keys(fdb_sim.open(cluster))


@cache
def _own_directory() -> tuple[str, ...]:
    """Of this run alone, on a cluster that others may use; it goes with the process."""
    own = ("tenure-tests", uuid.uuid4().hex)
    binding.load()  # before the exit is seen to: the binding ends its network at the exit, too
    atexit.register(_remove, own)
    return own


def _directory(folder: Path) -> tuple[str, ...]:
    return (*_own_directory(), *folder.parts[1:])


def url_of(folder: Path) -> str:
    """A store for each folder on the cluster that the environment names."""
    return f"fdb://{CLUSTER_FILE}?directory={'/'.join(_directory(folder))}"


def open_real(folder: Path, settings: Settings, clock: Clock) -> FoundationDbEngine:
    """An engine on such a store that puts aside what it can, as those on the simulation do."""
    module = binding.load()
    return FoundationDbEngine(
        module,
        binding.open_database(module, CLUSTER_FILE),
        settings,
        clock,
        directory=_directory(folder),
        hybrid=_is_real(clock),
        aside_from=1,
        near_from=1,
    )


def audit_cluster(folder: Path) -> list[str]:
    """What is wrong with the keys of a test; they are removed."""
    fdb = binding.load()
    db = binding.open_database(fdb, CLUSTER_FILE)
    wrong = wrong_keys(db, _directory(folder), fdb)
    _remove(_directory(folder))
    return wrong


def _remove(directory: tuple[str, ...]) -> None:
    fdb = binding.load()
    fdb.directory.remove_if_exists(binding.open_database(fdb, CLUSTER_FILE), directory)


ENGINES.setdefault("fdb-sim", open_simulated)
