"""No-op jobs, end to end, one worker process: Tenure, Procrastinate and PgQueuer on one server.

Each is a process of its own that enqueues some jobs and then drains them; only the draining counts.
They take turns on the same server, with fsync and synchronous_commit on. The rivals have a virtual
environment of their own, which the first run makes: Tenure does not depend on them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from rich.progress import track

from bench.report import Figure
from tests.support.postgres import Server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = ROOT / ".bench-rivals"
PACKAGES = (
    "procrastinate==3.10.0",
    "pgqueuer==1.6.0",
    "asyncpg==0.32.0",
    "psycopg[binary]",
    "uvloop",
)


def python_of_rivals() -> str:
    """The interpreter that has the rivals: that of TENURE_BENCH_RIVALS, or of an environment that
    is made here."""
    if given := os.environ.get("TENURE_BENCH_RIVALS"):
        return given
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "complete").exists():
        print(f"installing {', '.join(PACKAGES)} into {ENVIRONMENT}", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                "the rivals could not be installed; install them yourself "
                f"({' '.join(PACKAGES)}) and name the interpreter that has them in "
                f"TENURE_BENCH_RIVALS: {error}"
            ) from None
        (ENVIRONMENT / "complete").touch()
    return str(python)


def _drain(command: list[str], url: str, jobs: int) -> float:
    """Jobs a second."""
    done = subprocess.run(
        [*command, url, str(jobs)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return jobs / float(done.stdout)


def run(folder: Path, *, rounds: int = 5, jobs: int = 20_000) -> list[Figure]:
    """Procrastinate gets fewer jobs, so that each has about as long."""
    rivals = python_of_rivals()
    commands = {
        "Tenure": ([sys.executable, "-m", "bench.rivals.with_tenure"], jobs),
        "PgQueuer": ([rivals, str(HERE / "with_pgqueuer.py")], jobs // 4),
        "Procrastinate": ([rivals, str(HERE / "with_procrastinate.py")], jobs // 20),
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    server = Server(shared_buffers="128MB")
    try:
        for _ in track(range(rounds), "rivals, in turns"):
            for name, (command, n) in commands.items():
                rates[name].append(_drain(command, server.url, n))
    finally:
        server.stop()
    return [
        Figure(
            f"PostgreSQL: no-op jobs, one worker process, to {name}",
            rate=median(rates["Tenure"]),
            floor=median(rates[name]),
            ratios=[a / b for a, b in zip(rates["Tenure"], rates[name], strict=True)],
            at_least=promise,
        )
        for name, promise in (("Procrastinate", 10.0), ("PgQueuer", 1.8))
    ]
