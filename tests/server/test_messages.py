"""What people read when a service refuses something: it says what to change."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import tenure
from tenure import Forbidden, Settings, WaitTimeout
from tenure.model import ops, queries
from tenure.queue import Calls
from tenure.server.asked_for import asked_for
from tenure.server.auth import Scope, Token
from tenure.server.checks import NEEDS
from tenure.server.docs_page import docs_page
from tenure.server.guests import Guests
from tenure.server.hosting import _known_as
from tenure.testing import ManualClock
from tests.server.process import ServiceProcess
from tests.support.tokens import store_for
from tests.unit.cli.terminal import Terminal
from tests.workers.life import ROOT


def guarded(token: Token) -> Calls:
    queue = tenure.connect("memory://", settings=Settings(), clock=ManualClock())
    return Calls(store_for(queue, token))


def test_an_operation_is_described_in_words() -> None:
    for kind in NEEDS:
        name = kind.__name__
        described = asked_for(kind)
        assert described == described.lower(), name
        assert name not in described
    assert asked_for(queries.GetStats) == "read the counts of queues"
    assert asked_for(queries.ListJobs) == "list jobs"
    assert asked_for(ops.SetLimit) == "set limit"


def test_a_client_without_a_token_is_not_told_about_its_token() -> None:
    queue = guarded(Guests(["produce"], ["10.0.0.0/8"]).token)
    with pytest.raises(Forbidden) as caught:
        asyncio.run(queue.astats())
    assert caught.value.message == (
        "without a token, you may not read the counts of queues: that needs the scope 'read'"
    )


@pytest.mark.parametrize("tenants", [("acme",), ("acme", "beta")])
def test_a_token_that_is_bound_to_tenants_says_what_to_add(tenants: tuple[str, ...]) -> None:
    queue = guarded(Token("web", "hash", (Scope.PRODUCE,), None, tenants))
    with pytest.raises(Forbidden, match=r"with tenant= or --tenant: this token is for 'acme'"):
        asyncio.run(queue.aenqueue("mail"))
    with pytest.raises(Forbidden, match=r"not for the tenant 'gamma'"):
        asyncio.run(queue.aenqueue("mail", tenant="gamma"))


def test_creating_a_token_says_how_to_serve_with_it(fresh: Terminal) -> None:
    file = fresh.folder / "my tokens.json"
    result = fresh.run("token", "create", "web", "--scope", "read", "--file", str(file))
    assert f"tenure serve --tokens '{file}'\n" in result.stderr
    assert result.stdout.startswith("tnr_")


def test_the_address_that_a_service_logs_is_one_that_it_accepts() -> None:
    assert _known_as("0.0.0.0", None) == "0.0.0.0"
    assert _known_as("127.0.0.1", ["localhost", "127.0.0.1"]) == "127.0.0.1"
    assert _known_as("0.0.0.0", ["queue.local", "10.0.0.7"]) == "queue.local"


def test_waiting_for_a_job_that_nobody_takes_asks_for_a_worker() -> None:
    assert "is a worker running for its queue?" in str(WaitTimeout("a", "pending", 5))
    assert "worker" not in str(WaitTimeout("a", "leased", 5))


def test_a_prefix_that_is_too_short_says_so(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1", "--id", "abcdef")
    cli.text("enqueue", "mail", "1", "--id", "z")
    assert "at least 4 characters" in cli.error("show", "abc")
    assert "there is no job 'x'" in cli.error("show", "x")
    assert "mail" in cli.text("show", "abcd")
    assert "mail" in cli.text("show", "z")


@pytest.mark.parametrize("command", ["show", "cancel", "replay", "run-now", "delete", "ack"])
def test_the_help_says_that_an_id_can_be_shortened(fresh: Terminal, command: str) -> None:
    assert "or its first characters" in " ".join(fresh.run(command, "--help").stdout.split())


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("TENURE_TOKENS", raising=False)
    return Terminal(tmp_path)


@pytest.fixture
def cli(fresh: Terminal) -> Terminal:
    fresh.open().close()
    return fresh


def test_the_curl_example_of_the_docs_page_works(tmp_path: Path) -> None:
    process = ServiceProcess(tmp_path).start()
    try:
        page = html.unescape(httpx.get(f"{process.url}/docs").text)
        (example,) = re.findall(r"<pre>(curl .*?)</pre>", page, re.DOTALL)
        (documented, *_) = re.findall(
            r"```sh\n(curl .*?)\ncurl ", (ROOT / "docs/service.md").read_text(), re.DOTALL
        )
        for command in (example, documented):
            here = command.replace("http://localhost:3100", process.url)
            ended = subprocess.run(["bash", "-c", here], capture_output=True, text=True)
            assert json.loads(ended.stdout)["queue"] == "mail", ended
    finally:
        process.kill()


def test_the_page_of_a_dialect_has_no_example_of_the_native_api() -> None:
    document = {"paths": {}, "components": {"schemas": {}}, "info": {"version": "1"}}
    assert b"curl" not in docs_page(document, "d1", ["d1"]).body
    assert b"curl" in docs_page(document, None, ["d1"]).body


def test_the_list_of_commands_is_not_cut_off(fresh: Terminal) -> None:
    assert (
        "..." not in fresh.run("--help", url=None).stdout.split("Commands")[0].partition("Run:")[2]
    )


def test_stats_names_the_store(cli: Terminal) -> None:
    cli.text("enqueue", "mail", "1")
    assert cli.text("stats").splitlines()[-1] == f"in {cli.url}"


def test_a_job_that_was_left_for_others_has_no_failed_attempt(cli: Terminal) -> None:
    app = tenure.Tenure(cli.url, clock=cli.clock)
    app.task(queue="mail", name="known")(lambda: None)
    with app:
        app.queue.enqueue("mail", id="other", kind="unknown")
        app.queue.enqueue("mail", id="without")
        asyncio.run(app.worker(burst=True, schedule=False).run())
    shown = cli.text("show", "other")
    assert "left for other workers" in shown
    assert "attempt 1 failed" not in shown
    assert "no worker has a task for jobs without a kind yet" in cli.text("show", "without")


@pytest.mark.parametrize("level", ["info", "warning"])
def test_the_end_of_a_worker_is_told_once(fresh: Terminal, level: str) -> None:
    (fresh.folder / "told_once.py").write_text(
        "import tenure\napp = tenure.Tenure()\n@app.task\ndef one() -> None: ...\n"
        "if __name__ == '__main__':\n    one.enqueue()\n"
    )
    env = {**os.environ, "TENURE_URL": fresh.url, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "told_once.py"], cwd=fresh.folder, env=env, check=True)
    command = [*["-m", "tenure", "worker", "told_once:app", "--burst", "--log-level"], level]
    ended = subprocess.run(
        [sys.executable, *command], cwd=fresh.folder, env=env, capture_output=True, text=True
    )
    told = (ended.stdout + ended.stderr).lower()
    assert told.count("handled") == 1
    assert ("it handled 1 job\n" in told) == (level == "info")
