"""Running the examples as a user does: as programs, in a folder of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 60.0  # seconds that a program gets


def run(*arguments: str | Path, folder: Path, log: bool = False) -> str:
    """What a program prints; it must end well, and without warnings. log: also what it logs."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + (done.stderr if log else "")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


class Program:
    """One that runs until it is told to stop."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.said += line
                self._more.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Until it has said something; answers with the first group of the pattern."""
        with self._more:
            self._more.wait_for(lambda: re.search(pattern, self.said), LONGEST)
        found = re.search(pattern, self.said)
        assert found is not None, self.said
        return found[1] if found.groups() else found[0]

    def stop(self) -> int:
        """Ask it to end, as a supervisor does; answers with its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(LONGEST)
        self._reader.join(LONGEST)
        return code


@contextmanager
def started(*arguments: str | Path, folder: Path) -> Iterator[Program]:
    """A program while it runs."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            if process.poll() is None:
                process.kill()
