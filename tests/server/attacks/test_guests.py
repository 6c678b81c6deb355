"""Clients without a token, which are let in from some networks if the operator says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import tenure
from tenure import InvalidInput, Queue
from tenure.server.auth import Tokens
from tenure.server.guests import Guests
from tenure.server.routes import make_app
from tenure.server.token_file import tokens_of
from tenure.testing import ManualClock
from tests.conformance.state import nothing_changes
from tests.server.conftest import token
from tests.server.process import ServiceProcess
from tests.unit.cli.terminal import Terminal

INSIDE = ["10.1.2.3", "::ffff:10.1.2.3", "fd00::7", "fd00::7%eth0"]
OUTSIDE = ["11.1.2.3", "::ffff:11.1.2.3", "fd01::7", "127.0.0.1", "::1", "nonsense", ""]
JOB = {"queue": "mail"}
Ask = Callable[..., int]


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        yield queue


@pytest.fixture
def ask(queue: Queue) -> Iterator[Ask]:
    """Sends a request from an address, and returns the status of the response."""
    known = Tokens(
        [token("secret")], guests=Guests(["produce", "work"], ["10.0.0.0/8", "fd00::/16"])
    )
    service = make_app(queue, tokens=known, allowed_hosts=["queue.internal"])

    async def send(method: str, path: str, address: str, json: object, **headers: str) -> int:
        transport = httpx.ASGITransport(service, client=(address, 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://queue.internal") as http:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await http.request(method, path, json=json, headers=sent)).status_code

    with asyncio.Runner() as runner:
        yield lambda method, path, address, json=None, **headers: runner.run(
            send(method, path, address, json, **headers)
        )
        service.close()


@pytest.mark.parametrize("address", INSIDE)
def test_a_client_of_the_network_needs_no_token(ask: Ask, address: str) -> None:
    assert ask("POST", "/v1/jobs", address, JOB) == 201
    assert ask("POST", "/v1/claim", address, {"queues": ["mail"]}) == 200


def test_the_janitor_of_a_dialect_needs_no_token_if_it_is_let_in(queue: Queue) -> None:
    janitor = Guests(["maintain"], ["10.0.0.0/8"])
    service = make_app(queue, tokens=Tokens([token("s")], guests=janitor), dialects=["firecrawl"])
    client = httpx.ASGITransport(service, client=("10.0.0.1", 5))
    calls = [
        *(f"/cleanup/{one}" for one in ("expired-jobs", "expired-active-jobs", "stale-counters")),
        "/cleanup/orphaned-claims",
        *(f"/reconcile/{one}/x" for one in ("team/queue", "team/active", "crawl/queue")),
    ]
    others = ["/v1/maintain", "/v1/queues/firecrawl/reconcile", "/v1/queues/firecrawl/pause"]

    async def main() -> None:
        async with httpx.AsyncClient(transport=client, base_url="http://tenure") as http:
            for path in calls:
                assert (await http.post(path)).status_code == 200, path
            for path in others:
                assert (await http.post(path)).status_code == 403, path
            assert (await http.get("/v1/jobs/a")).status_code == 403

    asyncio.run(main())
    service.close()


@pytest.mark.parametrize("address", OUTSIDE)
def test_a_client_of_another_network_needs_one(ask: Ask, queue: Queue, address: str) -> None:
    with nothing_changes(queue):
        assert ask("POST", "/v1/jobs", address, JOB) == 401
    assert ask("POST", "/v1/jobs", address, JOB, authorization="Bearer secret") == 201


def test_a_guest_has_the_scopes_that_were_named_and_no_others(ask: Ask, queue: Queue) -> None:
    queue.enqueue("mail", id="a")
    with nothing_changes(queue):
        assert ask("GET", "/v1/jobs/a", "10.0.0.1") == 403
        assert ask("DELETE", "/v1/jobs/a", "10.0.0.1") == 403
        assert ask("POST", "/v1/ops", "10.0.0.1", {"ops": [{"op": "Delete", "ids": ["a"]}]}) == 403
        assert ask("GET", "/metrics", "10.0.0.1") == 403


@pytest.mark.parametrize("given", ["Bearer wrong", "Bearer ", "", "Basic x", "Bearer (anonymous)"])
def test_a_wrong_token_is_refused_wherever_it_comes_from(
    ask: Ask, queue: Queue, given: str
) -> None:
    with nothing_changes(queue):
        assert ask("POST", "/v1/jobs", "10.0.0.1", JOB, authorization=given) == 401


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip"])
def test_what_a_proxy_passes_on_is_not_from_the_network_of_the_proxy(
    ask: Ask, queue: Queue, header: str
) -> None:
    with nothing_changes(queue):
        assert ask("POST", "/v1/jobs", "10.0.0.1", JOB, **{header: "8.8.8.8"}) == 401
        assert ask("POST", "/v1/jobs", "8.8.8.8", JOB, **{header: "10.0.0.1"}) == 401


def test_a_page_of_another_site_is_refused_in_the_network_too(ask: Ask, queue: Queue) -> None:
    """A browser in the network opens a page that sends requests, or that rebinds its name."""
    with nothing_changes(queue):
        assert ask("POST", "/v1/jobs", "10.0.0.1", JOB, origin="https://evil.example") == 403
        assert ask("POST", "/v1/jobs", "10.0.0.1", JOB, sec_fetch_site="cross-site") == 403
        assert ask("POST", "/v1/jobs", "10.0.0.1", JOB, content_type="text/plain") == 415
        assert ask("POST", "/v1/jobs", "10.0.0.1", JOB, host="evil.example") == 421


def test_a_guest_that_waits_is_not_sent_away(ask: Ask) -> None:
    known = Tokens([], required=True, guests=Guests(["work"], ["::1"]))
    assert known.guests is not None
    assert known.is_current(known.guests.token)
    assert not Tokens([], required=True).is_current(known.guests.token)


def test_guests_are_named_explicitly() -> None:
    for scopes, networks, about in (
        (["admin"], ["10.0.0.0/8"], "not one of produce, work, read"),
        (["all"], ["10.0.0.0/8"], "not one of"),
        ([], ["10.0.0.0/8"], "at least one"),
        (["work"], [], "--from-network"),
        (["work"], ["10.0.0.1/8"], "has host bits set"),
        (["work"], ["here"], "10.0.0.0/8"),
    ):
        with pytest.raises(InvalidInput, match=about):
            Guests(scopes, networks)


def test_guests_alone_do_not_make_everybody_admin() -> None:
    known = tokens_of(None, {}, Guests(["work"], ["10.0.0.0/8"]))
    assert known.required


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    serve = ("serve", "--host", "0.0.0.0", "--port", "0")
    assert "--from-network" in terminal.error(*serve, "--anonymous", "work")
    assert "--anonymous" in terminal.error(*serve, "--from-network", "10.0.0.0/8")
    named = ("--anonymous", "work", "--from-network", "10.0.0.0/8")
    assert "--allowed-hosts" in terminal.error(*serve, *named)


def test_the_log_says_loudly_who_is_let_in(tmp_path: Path) -> None:
    service = ServiceProcess(
        tmp_path, "--anonymous", "produce,work", "--from-network", "127.0.0.0/8",
        "--from-network", "::1", environment={"TENURE_TOKEN": "secret"},
    )  # fmt: skip
    try:
        url = service.start().url
        assert "WARNING" in service.log
        assert "without a token: produce, work from 127.0.0.0/8, ::1/128" in service.log
        assert httpx.post(f"{url}/v1/jobs", json=JOB).status_code == 201
        assert httpx.get(f"{url}/v1/queues").status_code == 403
        secret = {"authorization": "Bearer secret"}
        assert httpx.get(f"{url}/v1/queues", headers=secret).status_code == 200
    finally:
        service.kill()
