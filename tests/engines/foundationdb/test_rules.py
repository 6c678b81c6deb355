"""Which of a queue's limits applies to a tenant."""

from __future__ import annotations

import pytest

from tenure.engines.foundationdb.lease_limits import Rules
from tenure.model.ops import Limit


@pytest.mark.parametrize(
    ("weights", "expected"),
    [({}, 1), ({"*": 5}, 5), ({"a": 3}, 3), ({"a": 3, "*": 5}, 3), ({"b": 3}, 1)],
)
def test_a_tenant_has_its_own_weight_or_that_of_all_or_one(
    weights: dict[str, int], expected: int
) -> None:
    rules = Rules("q", {(one, None): Limit("q", one, weight=n) for one, n in weights.items()})
    assert rules.weight("a") == expected
