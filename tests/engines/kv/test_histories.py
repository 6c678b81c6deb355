"""The simulation answers as a real cluster did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.engines.kv.histories import Player, Ranks, Step

_LINES = (Path(__file__).parent / "histories.jsonl").read_text().splitlines()
_PARTS = 15


def _differences(history: dict[str, object], steps: list[Step]) -> str | None:
    clock = ManualClock()
    player = Player(fdb_sim, fdb_sim.open(clock=clock))
    theirs, ours = Ranks(), Ranks()
    for number, step in enumerate(steps):
        clock.advance(0.003)
        recorded, answered = theirs.of(step), ours.of(player.play(step))
        if recorded != answered:
            return f"history {history['seed']}, step {number}: {recorded} is now {answered}"
    return None


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_recorded_history_is_answered_as_it_was(part: int) -> None:
    for line in _LINES[part::_PARTS]:
        history = json.loads(line)
        assert _differences(history, history["steps"]) is None


def test_the_recordings_are_all_there_and_hold_what_they_should() -> None:
    steps = [step for line in _LINES for step in json.loads(line)["steps"]]
    commits = [step for step in steps if step["op"] == "commit"]
    assert len(_LINES) == 1_499
    assert len(steps) == 45_234
    assert {step["error"] for step in steps if "error" in step} == {1020, 1036}
    assert sum("error" in commit for commit in commits) > 500
    assert len({step["op"] for step in steps}) == 16
