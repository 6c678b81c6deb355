"""Listening for what others commit takes a thread, for as long as anybody listens."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tenure.clock import SystemClock
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.wake import Wake
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tests import fdb_sim
from tests.crash.watched import PATIENCE, until


def engine_of(cluster: fdb_sim.Cluster) -> FoundationDbEngine:
    return FoundationDbEngine(fdb_sim, fdb_sim.open(cluster), Settings(), SystemClock())


def test_nothing_is_watched_once_nobody_listens_and_again_when_somebody_does() -> None:
    cluster = fdb_sim.Cluster(SystemClock())
    engine, other = engine_of(cluster), engine_of(cluster)
    stop = engine.listen(lambda: None)
    thread = engine._wake._thread
    assert thread is not None
    stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    heard = threading.Event()
    stop = engine.listen(heard.set)
    assert heard.wait(PATIENCE)  # the first look
    heard.clear()
    other.apply([ops.Enqueue((JobSpec("a", "q", NULL),))])
    assert heard.wait(PATIENCE)
    stop()
    until(lambda: engine._wake._thread is None)


def test_one_of_several_who_stops_listening_leaves_the_others_theirs() -> None:
    cluster = fdb_sim.Cluster(SystemClock())
    engine, other = engine_of(cluster), engine_of(cluster)
    left, heard = threading.Event(), threading.Event()
    stop_one, stop = engine.listen(left.set), engine.listen(heard.set)
    thread = engine._wake._thread
    assert left.wait(PATIENCE)
    stop_one()
    left.clear()
    heard.clear()
    other.apply([ops.Enqueue((JobSpec("a", "q", NULL),))])
    assert heard.wait(PATIENCE)
    assert not left.is_set()
    assert engine._wake._thread is thread
    stop()
    engine.close()


def test_a_commit_of_another_process_makes_a_listener_look_once_or_twice_and_not_over_and_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client calls back for the watches that were cancelled, too, when the next are set."""
    cluster = fdb_sim.Cluster(SystemClock())
    engine, other = engine_of(cluster), engine_of(cluster)
    looked = 0
    look = Wake._watch

    def watch(self: Wake, *arguments: Any) -> Any:
        nonlocal looked
        looked += 1
        return look(self, *arguments)

    monkeypatch.setattr(Wake, "_watch", watch)
    heard = threading.Event()
    stop = engine.listen(heard.set)
    assert heard.wait(PATIENCE)  # the first look
    for n in range(5):
        heard.clear()
        other.apply([ops.Enqueue((JobSpec(str(n), "q", NULL),))])
        assert heard.wait(PATIENCE)
        most = 1 + 2 * (n + 1)
        # A look that woke itself would cancel watches again, and the network would stay busy.
        until(lambda most=most: looked > most or not cluster.scene.network.busy)  # type: ignore[misc]
        assert looked <= most
    stop()
    engine.close()
