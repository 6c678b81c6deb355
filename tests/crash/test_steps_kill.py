"""Wherever a worker dies, a step has one result and every job ends."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("store", "kills"), [("sqlite", 26), ("postgresql", 8)])
def test_a_step_is_recorded_once_wherever_its_worker_is_killed_or_put_to_sleep(
    store: str, kills: int
) -> None:
    """For longer runs: python -m tests.crash.steps_kill --seconds 300 --store postgresql."""
    seed = random.SystemRandom().randrange(2**32)
    options = ["--seconds", "0", "--seed", str(seed), "--store", store]
    options += ["--boundaries", str(kills)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.steps_kill", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kills} killed at a boundary" in done.stdout
    assert "1 sleepers" in done.stdout
