"""Whatever is killed, nothing that was acknowledged is lost, and nothing is done twice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path


def test_processes_that_are_killed_again_and_again_lose_nothing() -> None:
    """For longer runs: python -m tests.crash.kill --seconds 300."""
    seed = random.SystemRandom().randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.kill", "--seconds", "4", "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills" in done.stdout


def test_processes_that_are_killed_on_two_shards_lose_nothing() -> None:
    """For longer runs: python -m tests.crash.kill --shards --seconds 300."""
    seed = random.SystemRandom().randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.kill", "--shards", "--seconds", "4", f"--seed={seed}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills" in done.stdout


def test_a_postgresql_server_that_is_killed_under_load_loses_nothing() -> None:
    """For longer runs: python -m tests.crash.kill_postgres --seconds 300."""
    seed = random.SystemRandom().randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.kill_postgres", "--seconds", "10", "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 servers killed" in done.stdout
