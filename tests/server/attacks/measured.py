"""What an honest client sees while another one attacks, and the memory that the service takes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tenure.server.token_file import create_token
from tests.server.connection import Connection
from tests.server.process import ServiceProcess
from tests.workers.life import ROOT

MOST_RATIO = 3.0  # of the honest client's latency with and without the attack
MOST_MEMORY = 512  # MB


class Seen(NamedTuple):
    """The outcome of an attack. Times are medians of the honest client's requests, in ms."""

    name: str
    store: str
    before: float
    during: float
    slowest: float
    memory: int  # MB, at its peak

    @property
    def ratio(self) -> float:
        return self.during / self.before

    @property
    def is_good(self) -> bool:
        return self.ratio <= MOST_RATIO and self.memory <= MOST_MEMORY


class Attacked:
    """A service in a process of its own, with a token for the honest client and one for the
    other."""

    def __init__(self, folder: Path, store: str = "") -> None:
        tokens = folder / "tokens.json"
        self.honest = create_token(tokens, "honest", ["admin"])
        self.greedy = create_token(tokens, "greedy", ["admin"])
        options = ("--tokens", str(tokens), "--redact", "password")
        self.service = ServiceProcess(folder, *options, store=store)

    @contextmanager
    def served(self) -> Iterator[Attacked]:
        self.service.start()
        try:
            yield self
        finally:
            self.service.kill()

    def suffer(self, name: str, *, seconds: float, scale: float) -> Seen:
        """Measure the honest client without and with an attack."""
        port, token = str(self.service.port), self.greedy
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.server.attacks.programs", name, port, token, str(scale)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert program.stdout is not None
            assert program.stdin is not None
            assert program.stdout.readline() == b"prepared\n"
            before = asyncio.run(self._work(seconds / 2))
            self._forget_peak()
            program.stdin.write(b"go\n")
            program.stdin.flush()
            assert program.stdout.readline() == b"attacking\n"
            during = asyncio.run(self._work(seconds))
            assert program.poll() is None, "the attack ended"
            memory = self._peak()
        finally:
            program.kill()
            program.wait()
            for pipe in (program.stdin, program.stdout):
                assert pipe is not None
                pipe.close()
        assert not self.service.ended(), self.service.log
        before += asyncio.run(self._work(seconds / 2))  # what else the machine does may change
        store = self.service.store.partition(":")[0]
        return Seen(name, store, _median(before), _median(during), max(during), memory)

    async def _work(self, seconds: float) -> list[float]:
        """Enqueue, claim, look at and finish jobs. Returns the times of all requests, in ms."""
        times: list[float] = []

        async def ask(method: str, path: str, body: object = None) -> object:
            began = time.perf_counter()
            answer = await connection.ask(method, path, body)
            times.append((time.perf_counter() - began) * 1000)
            assert answer.status < 300, answer
            return answer.json

        async with await Connection.open(self.service.port, token=self.honest) as connection:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await ask("POST", "/v1/jobs", {"queue": "honest", "payload": {"n": 1}})
                claimed: dict[str, list[dict[str, object]]]
                claimed = await ask("POST", "/v1/claim", {"queues": ["honest"]})  # type: ignore[assignment]
                (job,) = claimed["jobs"]
                await ask("GET", f"/v1/jobs/{job['id']}")
                lease = {"id": job["id"], "token": job["token"], "keep": False}
                await ask("POST", "/v1/ack", {"jobs": [lease]})
                await ask("GET", "/readyz")
        return times

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self.service.process.pid}")

    def _forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def _peak(self) -> int:
        text = (self._proc / "status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) // 1024


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]
