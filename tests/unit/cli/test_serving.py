"""The service and its tokens, from the command line."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.unit.cli.terminal import Terminal

PATIENCE = 30.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def answer(url: str) -> httpx.Response:
    """What it says, once it is up."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return httpx.get(url)
        except httpx.TransportError:
            assert time.monotonic() < deadline, "it never came up"
            time.sleep(0.05)


def test_a_service_is_served_until_it_is_told_to_stop(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    store = ["--url", f"sqlite:///{tmp_path}/jobs.db"]
    with subprocess.Popen(
        [sys.executable, "-m", "tenure", *store, "serve", "--port", str(port)],
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert answer(f"{url}/readyz").json() == {"status": "ok"}
            assert httpx.post(f"{url}/v1/jobs", json={"queue": "mail"}).status_code == 201
            assert "tenure_jobs_enqueued_total" in httpx.get(f"{url}/metrics").text
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)
    terminal = Terminal(tmp_path)
    with terminal.open() as queue:
        assert queue.stats("mail").ready == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com"])
def test_without_tokens_nobody_else_is_served(cli: Terminal, host: str) -> None:
    assert "no tokens are set" in cli.error("serve", "--host", host)


def test_a_token_is_made_listed_and_revoked(cli: Terminal, tmp_path: Path) -> None:
    file = ["--file", str(tmp_path / "tokens.json")]
    made = cli.json("token", "create", "web", "--scope", "read", "--tenant", "acme", *file)
    assert made["token"] not in (tmp_path / "tokens.json").read_text()
    assert (tmp_path / "tokens.json").stat().st_mode & 0o077 == 0
    (listed,) = cli.json("token", "list", *file)
    assert (listed["name"], listed["scopes"], listed["tenants"]) == ("web", ["read"], ["acme"])
    assert "already" in cli.error("token", "create", "web", "--scope", "read", *file)
    cli.text("token", "revoke", "web", *file)
    assert cli.json("token", "list", *file) == []
    assert "no token named 'web'" in cli.error("token", "revoke", "web", *file)
