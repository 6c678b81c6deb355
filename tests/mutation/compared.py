"""Compares engines with the model for mutations: the same histories as in CI, without shrinking.

Pytest runs this only if it is named on the command line.
"""

from __future__ import annotations

import pytest

from tests.simulation.compare.paths import CI
from tests.simulation.compare.run import Failed, run_seed

HISTORIES = [(engine, seed) for engine in sorted(CI) for seed in CI[engine].seeds]


@pytest.mark.parametrize(("engine", "seed"), HISTORIES)
def test_an_engine_does_what_the_model_does(engine: str, seed: int) -> None:
    try:
        run_seed(engine, seed, CI[engine].steps)
    except Failed as failed:
        pytest.fail(str(failed.difference))
