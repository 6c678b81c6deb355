"""A cluster that cannot be reached is not waited for beyond the patience of a caller."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Busy, Settings, TenureError
from tenure.engines.foundationdb import binding
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.features.why.data import Explain
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.fdb_sim.directories import DirectoryLayer
from tests.support import fdb

PATIENCE = 1.0
SLACK = 10.0


class Recorded:
    """A database that remembers its transactions."""

    def __init__(self, db: fdb_sim.Database) -> None:
        self._db = db
        self.begun: list[Any] = []

    def create_transaction(self) -> Any:
        self.begun.append(self._db.create_transaction())
        return self.begun[-1]


def test_every_transaction_has_a_timeout() -> None:
    clock = ManualClock()
    db = Recorded(fdb_sim.open(clock=clock))
    engine = FoundationDbEngine(
        fdb_sim, db, Settings(), clock, hybrid=False, chance=random.Random(1), aside_from=1
    )
    jobs = tuple(JobSpec(str(n), "q", NULL, tenant=f"t{n}") for n in range(5))
    engine.apply([ops.SetLimit("q", tenant="*", concurrency=1), ops.Enqueue(jobs)])
    for _ in range(3):  # the last ones find tenants that have to be put aside
        engine.apply([ops.Claim(("q",), "w", 60_000, 3), ops.Maintain()])
    engine.read(queries.GetStats())
    assert all(tr._attempt.kept.timeout_ms for tr in db.begun)


def test_opening_gives_up_after_a_while() -> None:
    clock = ManualClock()
    db = fdb_sim.open(clock=clock, faults=fdb_sim.Faults(timeout=1.0))
    with pytest.raises(Busy, match="could not be reached"):
        FoundationDbEngine(fdb_sim, db, Settings(), clock)


def away_for(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, tries: int) -> list[float]:
    """So many times opening meets a timeout after 5 s; the times of all attempts."""
    attempts: list[float] = []
    create_or_open = DirectoryLayer.create_or_open

    def attempt(self: DirectoryLayer, *arguments: Any) -> Any:
        attempts.append(clock.monotonic())
        if len(attempts) > tries:
            return create_or_open(self, *arguments)
        clock.advance(5)
        raise fdb_sim.FDBError(1031)

    monkeypatch.setattr(DirectoryLayer, "create_or_open", attempt)
    return attempts


def test_opening_waits_for_a_cluster_as_long_as_its_caller_is_patient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    attempts = away_for(monkeypatch, clock, 2)
    settings = Settings(busy_timeout=11)
    FoundationDbEngine(fdb_sim, fdb_sim.open(clock=clock), settings, clock, hybrid=False)
    assert len(attempts) == 3


def test_opening_does_not_wait_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    clock.advance(1000)
    attempts = away_for(monkeypatch, clock, 1000)
    with pytest.raises(Busy, match="could not be reached within 10 s"):
        FoundationDbEngine(
            fdb_sim, fdb_sim.open(clock=clock), Settings(busy_timeout=10), clock, hybrid=False
        )
    assert len(attempts) == 2


LATE_S = 2.5  # the last transaction gets a second, and an idle store counts in seconds


def _calls(engine: FoundationDbEngine) -> dict[str, Callable[[], object]]:
    jobs = tuple(JobSpec(f"new-{n}", "q", NULL, tenant=f"t{n}") for n in range(3))
    claim = ops.Claim(("q", "r"), "w", 60_000, 3)
    return {
        "enqueue": lambda: engine.apply([ops.Enqueue(jobs)]),
        "claim": lambda: engine.apply([claim]),
        "keyed claim": lambda: engine.apply([ops.Once("key", (ops.Enqueue(jobs), claim))]),
        "batch": lambda: engine.apply([claim, ops.Enqueue(jobs), claim, ops.Reconcile("q")]),
        "maintain": lambda: engine.apply([ops.Maintain()]),
        "stats": lambda: engine.read(queries.GetStats()),
        "oldest": lambda: engine.read(queries.OldestReady(("q", "r"))),
        "explain": lambda: engine.read(Explain("old-0")),
    }


@pytest.mark.parametrize("name", sorted(_calls(None)))  # type: ignore[arg-type]
def test_a_call_ends_within_its_patience_wherever_the_cluster_stops_to_answer(name: str) -> None:
    """However many transactions it makes, and also if a commit was under way."""
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    settings = Settings(busy_timeout=10)
    for answered in range(200):
        engine = FoundationDbEngine(
            fdb_sim, fdb_sim.open(cluster), settings, clock, hybrid=False, aside_from=1,
            directory=(str(answered),),
        )  # fmt: skip
        jobs = tuple(JobSpec(f"old-{n}", "q", NULL, tenant=f"t{n}") for n in range(5))
        engine.apply([ops.SetLimit("q", tenant="*", concurrency=1), ops.Enqueue(jobs)])
        engine.apply([ops.Claim(("q",), "w", 1_000, 3)])
        clock.advance(2)
        began = clock.monotonic()
        cluster.answers_left = answered
        try:
            found = _calls(engine)[name]()
        except TenureError as error:
            found = [error]
        left, cluster.answers_left = cluster.answers_left, None
        assert clock.monotonic() - began <= settings.busy_timeout + LATE_S, (answered, found)
        if left:
            assert answered > 1
            return
    raise AssertionError("a call made two hundred requests")


def test_opening_ends_within_its_patience_wherever_the_cluster_stops_to_answer() -> None:
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    for answered in range(200):
        began = clock.monotonic()
        cluster.answers_left = answered
        with suppress(TenureError):
            settings = Settings(busy_timeout=10)
            FoundationDbEngine(
                fdb_sim, fdb_sim.open(cluster), settings, clock, directory=(str(answered),)
            )
        left, cluster.answers_left = cluster.answers_left, None
        assert clock.monotonic() - began <= 10 + LATE_S
        if left:
            return


def test_whether_a_store_exists_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    monkeypatch.setattr(binding, "load", lambda: fdb_sim)
    monkeypatch.setattr(binding, "open_database", lambda *_: fdb_sim.open(cluster))
    assert not FoundationDbEngine.exists("fdb:///", 10, clock)
    FoundationDbEngine(fdb_sim, fdb_sim.open(cluster), Settings(), clock)
    assert FoundationDbEngine.exists("fdb:///", 10, clock)
    cluster.answers_left = 0
    began = clock.monotonic()
    with pytest.raises(Busy, match="could not be reached within 10 s"):
        FoundationDbEngine.exists("fdb:///", 10, clock)
    assert clock.monotonic() - began <= 10 + LATE_S


@pytest.mark.skipif(not fdb.CLUSTER_FILE, reason="FDB_CLUSTER_FILE does not name a cluster")
def test_a_real_client_gives_up_too_when_there_is_no_cluster(tmp_path: Path) -> None:
    with socket.socket() as taken:  # where nobody answers
        taken.bind(("127.0.0.1", 0))
        (tmp_path / "fdb.cluster").write_text(f"no:one@127.0.0.1:{taken.getsockname()[1]}\n")
        url = f"fdb://{tmp_path}/fdb.cluster"
        began = time.monotonic()
        with pytest.raises(Busy, match="could not be reached"):
            tenure.connect(url, settings=Settings(url=url, busy_timeout=PATIENCE))
        assert time.monotonic() - began < PATIENCE + SLACK
