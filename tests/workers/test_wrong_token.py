"""Workers that a service does not let work, and workers whose service is away."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import Tenure, Worker
from tenure.server.token_file import create_token, revoke_token
from tests.server.process import ServiceProcess
from tests.support.sizes import let
from tests.workers.conftest import PATIENCE
from tests.workers.life import ROOT, until

PROGRAM = """
import tenure

app = tenure.Tenure()


@app.task(queue="mail")
def send() -> None:
    print("sent")
"""


class Guarded:
    """A service with tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = folder / "tokens.json"
        self.secrets = {
            "work": create_token(self.tokens, "work", ["work", "produce", "read"]),
            "read": create_token(self.tokens, "read", ["read"]),
            "other": create_token(self.tokens, "other", ["work"], ["parcels"]),
        }
        (folder / "tasks.py").write_text(PROGRAM)
        self.process = ServiceProcess(folder, "--tokens", str(self.tokens)).start()

    def worker(self, *options: str, token: str | None) -> subprocess.CompletedProcess[str]:
        """A worker process, until it ends by itself."""
        ours = {name: value for name, value in os.environ.items() if "TENURE_" not in name}
        given = {} if token is None else {"TENURE_TOKEN": self.secrets.get(token, token)}
        command = ["--url", self.process.url, "worker", "tasks:app", *options]
        return subprocess.run(
            [sys.executable, "-m", "tenure", *command],
            cwd=self.folder,
            env=ours | {"PYTHONPATH": str(ROOT / "src")} | given,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.process.kill()


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (None, "a token is needed"),
        ("tnr_wrong", "this token is not known"),
        ("read", "needs the scope 'work'"),
        ("other", "this token is not for the queue 'mail'"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--burst",)], ids=["on", "burst"])
def test_a_worker_that_is_not_let_in_ends_with_one_line(
    service: Guarded, token: str | None, says: str, options: tuple[str, ...]
) -> None:
    ended = service.worker(*options, "--log-level", "warning", token=token)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1, ended.stderr
    line = ended.stderr
    assert line.startswith("error: ")
    assert says in line
    assert "TENURE_TOKEN" in line


def test_several_processes_that_are_not_let_in_are_not_started_again(service: Guarded) -> None:
    ended = service.worker("--processes", "2", "--log-level", "warning", token="tnr_wrong")
    assert ended.returncode == 1
    assert "a new one is started" not in ended.stderr
    assert ended.stderr.count("this token is not known") == 2


def test_a_burst_with_a_good_token_ends_with_0(service: Guarded) -> None:
    assert service.worker("--burst", token="work").returncode == 0


def revoked_while_it_works(service: Guarded, again: bool) -> tuple[Worker, list[str]]:
    """A worker whose token is revoked, and perhaps is known again later."""
    name = f"revoked-{again}"
    secret = create_token(service.tokens, name, ["work", "produce", "read"])
    settings = tenure.Settings(url=service.process.url, token=secret)
    before = service.tokens.read_bytes()
    done: list[str] = []
    with Tenure(settings=settings) as app:

        @app.task(queue=name)
        async def note(what: str) -> None:
            done.append(what)

        async def main() -> Worker:
            worker = app.worker(schedule=False, poll_interval=0.05)
            await worker.start()
            await note.aenqueue("first")
            await asyncio.to_thread(until, lambda: bool(done))
            await asyncio.to_thread(revoke_token, service.tokens, name)
            await asyncio.to_thread(until, lambda: worker.admission.is_refused)
            if again:
                service.tokens.write_bytes(before)
                await asyncio.to_thread(until, lambda: not worker.admission.is_refused)
                await note.aenqueue("second")
                await asyncio.to_thread(until, lambda: len(done) == 2)
                await worker.stop()
            else:
                await asyncio.wait_for(worker.wait(), PATIENCE)
            return worker

        return asyncio.run(main()), done


def test_a_token_that_is_known_again_lets_its_worker_go_on(service: Guarded) -> None:
    _, done = revoked_while_it_works(service, again=True)
    assert done == ["first", "second"]


def test_a_worker_whose_token_stays_revoked_ends(
    service: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_to_be_let_in=0.5)
    with pytest.raises(tenure.Unauthorized, match="this token is not known"):
        revoked_while_it_works(service, again=False)


# A service that is away -----------------------------------------------------------------------


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_worker_waits_for_a_service_that_is_away_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = unused_port()
    settings = tenure.Settings(url=f"http://127.0.0.1:{port}", busy_timeout=0.1)
    process = ServiceProcess(tmp_path, "--port", str(port))
    ended: list[int] = []
    with Tenure(settings=settings) as app:

        @app.cron("0 3 * * *", queue="mail")
        async def nightly() -> None: ...

        async def main() -> None:
            worker = app.worker(burst=True)
            await worker.run()
            ended.append(worker.handled)

        thread = threading.Thread(target=asyncio.run, args=(main(),))
        with caplog.at_level(logging.INFO):
            thread.start()
            until(lambda: "cannot be reached" in caplog.text)
            time.sleep(1)  # several attempts of everything that the worker does
            warned = [one for one in caplog.records if one.levelno >= logging.WARNING]
            assert len(warned) == 1, [one.getMessage() for one in warned]
            try:
                process.start()
                thread.join(PATIENCE)
            finally:
                process.kill()
    assert ended == [0]
