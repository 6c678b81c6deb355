"""Tenants are served by their weights. `python -m tests.simulation.shares` is the long form."""

from __future__ import annotations

import pytest

from tests.simulation.shares import CASES, Case, out_of_bounds, served


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_tenants_share_of_many_claims_is_within_its_bounds(case: Case) -> None:
    assert out_of_bounds(case, served(case, 600)) == []
