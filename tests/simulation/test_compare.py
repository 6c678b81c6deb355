"""The comparison with the model in the length that CI has time for: fixed seeds, every answer, the
whole state, and the floor under each production path."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import get_args

import pytest

from tenure.model import ops, queries
from tests.simulation.compare.counting import counting
from tests.simulation.compare.paths import CI, short, table
from tests.simulation.compare.run import Failed, report, run_seed
from tests.simulation.compare.steps import AnyOp, AnyQuery
from tests.support.kinds import kinds_of


@pytest.mark.parametrize("engine", sorted(CI))
def test_an_engine_does_as_the_model_does_on_every_path(engine: str) -> None:
    run = CI[engine]
    with counting(engine) as counts:
        for seed in run.seeds:
            try:
                run_seed(engine, seed, run.steps)
            except Failed as failed:
                path = report(failed, Path(tempfile.gettempdir()))
                pytest.fail(f"{failed}\nthe history: {path}")
    print(table(engine, counts, run.total))  # noqa: T201
    missed = short(engine, counts, run.total)
    assert missed == [], table(engine, counts, run.total, everything=False)


def test_a_history_can_hold_every_operation_and_every_query() -> None:
    assert set(get_args(AnyOp)) == set(kinds_of(ops.Op))
    # Others are asked together only by a service.
    assert set(get_args(AnyQuery)) == set(kinds_of(queries.Query)) - {queries.Together}
