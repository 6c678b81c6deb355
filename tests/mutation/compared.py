"""Engines against the model, for mutations: a few histories by fixed seeds, which are not shrunk.

Pytest runs this only where it is named.
"""

from __future__ import annotations

import pytest

from tests.simulation.compare.rigs import RIGS
from tests.simulation.compare.run import Failed, run_seed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("engine", sorted(RIGS))
def test_an_engine_does_what_the_model_does(engine: str, seed: int) -> None:
    try:
        run_seed(engine, seed)
    except Failed as failed:
        pytest.fail(str(failed.difference))
