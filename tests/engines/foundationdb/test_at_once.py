"""One engine, used by several threads at once; and not by a process that forked."""

from __future__ import annotations

import os
import random
import threading
import types
from collections import Counter
from typing import Any

import pytest

from tenure.engines.foundationdb import binding
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.errors import StoreError
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support import fdb
from tests.support.fdb_audit import Rows, wrong_keys

THREADS = 6
JOBS = 40  # of each thread


def engine_on(cluster: fdb_sim.Cluster, faults: fdb_sim.Faults | None) -> FoundationDbEngine:
    db = fdb_sim.open(cluster, faults=faults)
    chance = random.Random(1)
    return FoundationDbEngine(
        fdb_sim, db, Settings(), ManualClock(), hybrid=False, chance=chance, aside_from=1
    )


@pytest.mark.parametrize("limited", [False, True])
def test_batches_of_several_threads_are_applied_side_by_side(limited: bool) -> None:
    cluster = fdb_sim.Cluster(ManualClock())
    engine = engine_on(cluster, fdb.faults(11))
    if limited:
        engine.apply([ops.SetLimit("q", tenant="*", concurrency=2)])
    claimed: Counter[str] = Counter()
    wrong: list[Any] = []

    def work(n: int) -> None:
        try:
            specs = [JobSpec(f"{n}-{i}", "q", NULL, tenant=f"t{i % 3}") for i in range(JOBS)]
            engine.apply([ops.Enqueue((spec,)) for spec in specs])
            while sum(claimed.values()) < THREADS * JOBS:
                (answer,) = engine.apply([ops.Claim(("q",), f"w{n}", 60_000, 5)])
                assert isinstance(answer, ops.Leased)
                claimed.update(job.id for job in answer.jobs)
                acks = [ops.Ack(job.id, job.token) for job in answer.jobs]
                assert engine.apply(acks) == [ops.Ok()] * len(acks)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert claimed == Counter(f"{n}-{i}" for n in range(THREADS) for i in range(JOBS))
    assert wrong_keys(fdb_sim.open(cluster)) == []
    engine.apply([ops.Pause("q", "t0")])
    assert len(Rows(fdb_sim.open(cluster), ("tenure",)).of(k.DID)) <= 2  # what nobody asks for goes


def test_an_engine_is_refused_to_a_fork_of_its_process() -> None:
    engine = engine_on(fdb_sim.Cluster(ManualClock()), None)
    child = os.fork()
    if child == 0:
        try:
            engine.apply([ops.Maintain()])
        except StoreError as error:
            engine.close()
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_opening_a_cluster_after_a_fork_is_refused() -> None:
    """The binding believes that its thread, which is not in the fork, runs there."""
    module: Any = types.ModuleType("fdb")
    module.impl = types.SimpleNamespace(_network_thread=threading.Thread())
    with pytest.raises(StoreError, match="does not survive a fork"):
        binding.open_database(module, None)


@pytest.mark.parametrize("network", [None, types.SimpleNamespace(is_alive=lambda: True)])
def test_a_cluster_is_opened_unless_the_thread_of_the_binding_is_gone(network: Any) -> None:
    module: Any = types.ModuleType("fdb")
    module.impl = types.SimpleNamespace(_network_thread=network)
    module.open = lambda cluster_file: f"opened {cluster_file}"
    assert binding.open_database(module, "fdb.cluster") == "opened fdb.cluster"
