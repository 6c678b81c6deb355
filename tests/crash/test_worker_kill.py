"""Whatever happens to workers, every job ends once, and its work was done."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.stores import STORES


@pytest.mark.parametrize("store", sorted(STORES))
def test_workers_that_are_killed_stopped_and_put_to_sleep_lose_nothing(store: str) -> None:
    """For longer runs: python -m tests.crash.worker_kill --seconds 300 --store http. Stores that
    can be killed are killed, too."""
    seed = random.SystemRandom().randrange(2**32)
    options = ["--seconds", "5", "--seed", str(seed), "--store", store]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.worker_kill", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills" in done.stdout


def test_services_and_workers_outlive_a_postgresql_server_that_is_killed_under_load() -> None:
    """For longer runs: python -m tests.crash.outage --seconds 300."""
    seed = random.SystemRandom().randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.outage", "--seconds", "6", "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 servers killed" in done.stdout
