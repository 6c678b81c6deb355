"""Whatever is killed, what a service has confirmed holds, and nothing is done twice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path


def test_a_service_that_is_killed_under_load_loses_nothing() -> None:
    """For longer runs: python -m tests.crash.service_kill --seconds 60."""
    seed = random.SystemRandom().randrange(2**32)
    options = ["--seconds", "7", "--kills", "2", "--connections", "100", "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.service_kill", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills" in done.stdout
