"""Like kill.py, on a PostgreSQL server that is also killed and restarted under load.

python -m tests.crash.kill_postgres --seconds 300 --seed 7
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tenure.engines.postgres.engine  # noqa: F401 (before the forks, which live but shortly)
from tests.crash.journal import read
from tests.crash.kill import ROUND_SECONDS, Arena, say, told
from tests.crash.watched import until
from tests.support import audit_postgres
from tests.support.postgres import Server

STRIKES = 3  # against the server, in each round
WORK = 5  # jobs that are finished before each
PATIENCE = 90.0  # seconds for that


class Schema:
    """A store on a server of its own."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        self.url = f"{server.url}&schema={name}"

    def audit(self) -> list[str]:
        """The first check, when no process is left. The server may still be busy for those that
        were killed, and hold locks: a claim would skip their jobs."""
        others = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> "
        until(lambda: not self._server.execute(f"{others} pg_backend_pid()"))
        return audit_postgres.audit(self._server.url, self._name)


class ServerArena(Arena):
    """Three times the server is killed, each time under load: when jobs have been finished since
    the last time. A round goes on until then, as a busy machine takes longer."""

    between_seconds = 0.25  # new processes take a moment to warm up

    def __init__(self, folder: Path, seed: int, server: Server) -> None:
        super().__init__(folder, seed, Schema(server, f"round_{seed}"))
        self._server = server
        self._finished = 0  # when the server was last started
        self._strike_at = time.monotonic() + 1.5
        self._patience = time.monotonic() + PATIENCE

    def _goes_on(self, end: float) -> bool:
        if self.counted["servers killed"] == STRIKES:
            return super()._goes_on(end)
        assert time.monotonic() < self._patience, "no job is finished, so no server was killed"
        return True

    def _blow(self) -> list[str]:
        if self.counted["servers killed"] == STRIKES or time.monotonic() < self._strike_at:
            return super()._blow()
        finished = sum(event.kind == "acked" for event in read(self.folder))
        if finished < self._finished + WORK:
            return super()._blow()
        self._server.kill()
        time.sleep(self._random.random() * 0.3)
        self._server.start()
        self.counted["servers killed"] += 1
        self._finished = finished
        self._strike_at = time.monotonic() + 2.5
        self._patience = time.monotonic() + PATIENCE
        return []


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kill_postgres")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    server = Server()
    end = time.monotonic() + options.seconds
    try:
        while (left := end - time.monotonic()) > 0.5 or not total:
            folder = Path(tempfile.mkdtemp(prefix="tenure-kill-"))
            arena = ServerArena(folder, options.seed + total["rounds"], server)
            failures = arena.round(min(left, ROUND_SECONDS))
            total += arena.counted
            total["rounds"] += 1
            say(f"{max(0, end - time.monotonic()):.0f} s left: {told(total)}")
            if failures:
                for text in failures[:20]:
                    say(text)
                say(f"{len(failures)} failures with --seed {arena.seed}; see {folder}")
                return 1
            shutil.rmtree(folder)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
