"""The simulation has the limits and error codes of a real cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.engines.kv.conftest import Real
from tests.engines.kv.edges import QUESTIONS, Asker, P

_RECORDED = json.loads((Path(__file__).parent / "edges.json").read_text())


def test_every_recorded_edge_is_asked() -> None:
    assert set(QUESTIONS) == set(_RECORDED)


@pytest.mark.parametrize("name", _RECORDED)
def test_an_edge_is_answered_as_it_was(name: str) -> None:
    clock = ManualClock()
    asker = Asker(fdb_sim, fdb_sim.open(clock=clock), clock.advance)
    assert QUESTIONS[name](asker) == _RECORDED[name]


def test_a_real_cluster_answers_the_edges_as_it_did(real: Real) -> None:
    asker = Asker(real.fdb, real.db, time.sleep)
    try:
        assert {name: ask(asker) for name, ask in QUESTIONS.items()} == _RECORDED
    finally:
        real.db.clear_range_startswith(P)
