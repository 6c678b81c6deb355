"""Listening for what others commit takes a thread, for as long as anybody listens."""

from __future__ import annotations

import threading

from tenure.clock import SystemClock
from tenure.engines.foundationdb.engine import FoundationDbEngine
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
