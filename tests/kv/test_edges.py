"""The simulation has the limits and error codes of a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.engines import fdb_sim
from tenure.testing import ManualClock
from tests.kv.edges import QUESTIONS, Asker

_RECORDED = json.loads((Path(__file__).parent / "edges.json").read_text())


def test_every_recorded_edge_is_asked() -> None:
    assert set(QUESTIONS) == set(_RECORDED)


@pytest.mark.parametrize("name", _RECORDED)
def test_an_edge_is_answered_as_it_was(name: str) -> None:
    clock = ManualClock()
    asker = Asker(fdb_sim, fdb_sim.open(clock=clock), clock.advance)
    assert QUESTIONS[name](asker) == _RECORDED[name]
