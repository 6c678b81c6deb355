"""Whatever happens to workers, every job ends once, and its work was done."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path


def test_workers_that_are_killed_stopped_and_put_to_sleep_lose_nothing() -> None:
    """The long form is a command: python -m tests.crash.worker_kill --seconds 300."""
    seed = random.SystemRandom().randrange(2**32)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.worker_kill", "--seconds", "5", "--seed", str(seed)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills" in done.stdout
