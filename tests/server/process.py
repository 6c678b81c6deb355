"""A service that is a process of its own, as a test starts, signals, kills and restarts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.crash.watched import PATIENCE
from tests.workers.life import ROOT, until

_SERVES = re.compile(r" serving \S+ on (https?)://(\S+):(\d+)$", re.MULTILINE)


class ServiceProcess:
    """A `tenure serve`, seen from outside. What is started again listens where it did before."""

    def __init__(
        self, folder: Path, *options: str, store: str = "", environment: Mapping[str, str] = {}
    ) -> None:
        self.folder = folder
        self.store = store or f"sqlite:///{folder}/jobs.db"
        self.url = ""
        self._port = "0"
        self._options = options
        self._environment = environment
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ServiceProcess:
        """Start it, and wait until it serves."""
        self.launch()
        until(lambda: bool(_SERVES.search(self.log)) or self.ended())
        found = _SERVES.search(self.log)
        assert found is not None, self.log
        scheme, host, self._port = found.groups()
        self.url = f"{scheme}://{host}:{self._port}"
        return self

    def launch(self) -> ServiceProcess:
        """Start it."""
        self._starts += 1
        ours = {name: value for name, value in os.environ.items() if "TENURE_" not in name}
        command = ["--url", self.store, "serve", "--port", self._port, *self._options]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tenure", *command],
                cwd=ROOT,
                env=ours | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def log_file(self) -> Path:
        return self.folder / f"service-{self._starts}.log"

    @property
    def log(self) -> str:
        """What it has said since it was last started."""
        return self.log_file.read_text()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def port(self) -> int:
        return int(self._port)

    def ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the service does not end:\n{self.log}") from None

    def stop(self) -> int:
        """Have it end gracefully; answers with its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
