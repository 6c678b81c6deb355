"""Several servers on one cluster, with wrong clocks, crashes and faults: nothing is lost, nobody
has what another holds, and no limit is passed. `make simulate SEEDS=1000` runs more."""

from __future__ import annotations

import pytest

from tests.simulation.servers.run import simulate


@pytest.mark.parametrize("seed", range(6))
def test_servers_keep_every_promise(seed: int) -> None:
    assert simulate(seed) == [], f"seed {seed}"
