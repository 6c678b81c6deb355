"""The attacks in their short form; `make attack` runs the long one, and prints figures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.server.attacks.measured import MOST_MEMORY, Attacked
from tests.server.attacks.programs import PROGRAMS
from tests.support import postgres

# Other tests run at the same time, so only what is out of all proportion fails here.
MOST_RATIO = 30.0
SLOWEST_MS = 10_000


# What these do is tested by itself, with fewer connections.
LONG = ("unread docs", "idle connections")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in LONG])
def test_an_honest_client_is_served_while_another_attacks(tmp_path: Path, name: str) -> None:
    suffer(Attacked(tmp_path), name)


@pytest.mark.parametrize("name", ["scans", "large pages", "large claims"])
def test_the_same_on_postgresql(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(postgres.give_back, tmp_path))
    suffer(Attacked(tmp_path, postgres.url_of(tmp_path)), name)


def suffer(attacked: Attacked, name: str) -> None:
    with attacked.served():
        seen = attacked.suffer(name, seconds=1, scale=0.1)
    assert seen.memory <= MOST_MEMORY
    assert seen.slowest <= SLOWEST_MS
    assert seen.ratio <= MOST_RATIO
