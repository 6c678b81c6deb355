"""The service and its tokens, from the command line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tenure.cli.serve import named_cluster
from tenure.server.sockets import listeners
from tenure.settings import without_secrets
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
        assert process.wait(PATIENCE) == 0
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


def test_the_command_says_what_is_wrong_with_the_files(cli: Terminal, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    text = cli.error("serve", "--port", "0", "--certfile", str(tmp_path / "bad.pem"))
    assert "not a certificate and its key" in text


def test_a_port_that_is_taken_is_said_before_anything_starts(cli: Terminal) -> None:
    (taken,) = listeners("127.0.0.1", 0)
    with taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in cli.error("serve", "--port", port)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("postgresql://ann:se:cret@db/jobs?schema=a", "postgresql://ann@db/jobs?schema=a"),
        ("postgresql://ann@db:5432/jobs", "postgresql://ann@db:5432/jobs"),
        ("http://127.0.0.1:3100", "http://127.0.0.1:3100"),
    ],
)
def test_the_log_does_not_have_the_password_of_the_store(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, None),
        ({"FDB_CLUSTER_FILE": ""}, None),
        ({"FDB_CLUSTER_FILE": "/etc/a b/fdb.cluster"}, "fdb:///etc/a%20b/fdb.cluster"),
        (
            {"FDB_CLUSTER_FILE": "fdb.cluster"},
            f"fdb://{quote(str(Path('fdb.cluster').absolute()))}",
        ),
        ({"FDB_CLUSTER_FILE": "/fdb.cluster", "TENURE_URL": "memory://"}, None),
    ],
)
def test_the_variable_of_foundationdb_names_the_store_if_ours_does_not(
    environ: dict[str, str], url: str | None
) -> None:
    assert named_cluster(environ) == url


def test_the_demonstration_is_worked_and_says_where_to_look(tmp_path: Path) -> None:
    """What `make run` starts."""
    command = [sys.executable, "-m", "tenure", "serve", "--demo", "--port", "0"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"serving sqlite:///tenure\.db on (http://\S+)", line):
                    break
            assert found is not None
            url = found[1]
            said = process.stderr.readline() + process.stderr.readline()
            assert f"{url}/docs" in said
            assert f"tenure --url {url} stats" in said
            assert "<title>" in answer(f"{url}/docs").text
            deadline = time.monotonic() + PATIENCE
            while answer(f"{url}/v1/queues/mail").json()["done"] < 4:
                assert time.monotonic() < deadline, "nothing was worked"
                time.sleep(0.1)
        finally:
            process.send_signal(signal.SIGTERM)
            rest = process.stderr.read()
        assert " is done after " not in rest, "the address scrolls off the screen"
        assert process.wait(PATIENCE) == 0


def test_the_demonstration_has_tasks_of_its_own(cli: Terminal) -> None:
    said = cli.error("serve", "--demo", "--workers-in-process", "tenure.demo_app:app")
    assert "cannot be combined with --workers-in-process" in said
