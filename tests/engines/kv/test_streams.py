"""Random operations have the same outcome on two implementations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.engines.kv import naive
from tests.engines.kv.conftest import Real
from tests.engines.kv.histories import Player, Ranks, Step
from tests.engines.kv.streams import Stream

_LINES = (Path(__file__).parent / "histories.jsonl").read_text().splitlines()
_SEEDS = 600
_PARTS = 10
_SEEDS_ON_A_CLUSTER = 200
_TRIES = 3  # a version may pass on a cluster between two steps, and more than one where it is busy


def _simulated() -> Player:
    return Player(fdb_sim, fdb_sim.open(clock=ManualClock()))


def _difference(steps: Iterator[Step], one: Player, other: Player) -> str | None:
    """The first step that two implementations answer differently."""
    ours, theirs = Ranks(), Ranks()
    for number, step in enumerate(steps):
        first, second = ours.of(one.play(step)), theirs.of(other.play(step))
        if first != second:
            return f"step {number}: {first} and {second}"
    return None


@pytest.mark.parametrize("part", range(_PARTS))
def test_the_simulation_answers_as_the_naive_model(part: int) -> None:
    for seed in range(part, _SEEDS, _PARTS):
        steps = Stream(seed).steps()
        difference = _difference(steps, _simulated(), Player(naive, naive.Database()))
        assert difference is None, f"seed {seed}"


def test_the_naive_model_answers_as_the_recorded_cluster_did() -> None:
    for line in _LINES:
        history = json.loads(line)
        player, ours, theirs = Player(naive, naive.Database()), Ranks(), Ranks()
        for step in history["steps"]:
            assert ours.of(player.play(step)) == theirs.of(step), f"history {history['seed']}"


def test_the_streams_meet_conflicts_unreadable_keys_and_versionstamps() -> None:
    answers: list[Step] = []
    for seed in range(60):
        player = _simulated()
        answers += [player.play(step) for step in Stream(seed).steps()]
    errors = [answer.get("error") for answer in answers]
    assert errors.count(1020) > 20
    assert errors.count(1036) > 20
    assert sum(bool(answer.get("versionstamp")) for answer in answers) > 60


def test_the_same_seed_makes_the_same_stream() -> None:
    assert list(Stream(5).steps()) == list(Stream(5).steps())
    assert list(Stream(5).steps()) != list(Stream(6).steps())


def test_the_simulation_answers_as_a_real_cluster(real: Real) -> None:
    fdb, db, prefix = real
    for seed in range(_SEEDS_ON_A_CLUSTER):
        for _ in range(_TRIES):
            db.clear_range_startswith(prefix)
            player = Player(fdb, db, prefix)
            difference = _difference(Stream(seed).steps(), _simulated(), player)
            if difference is None:
                break
        assert difference is None, f"seed {seed}"
