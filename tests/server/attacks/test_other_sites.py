"""Requests that a web page of somebody else makes a browser send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

import tenure
from tenure import Queue
from tenure.server.auth import LOOPBACK
from tenure.server.mounting import mounted
from tenure.server.routes import DIALECTS, make_app
from tenure.testing import ManualClock
from tests.conformance.state import nothing_changes
from tests.server.conftest import Client, Serve

JOB = b'{"queue": "mail"}'
WRITES = [
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/kept/cancel"),
    ("DELETE", "/v1/jobs/kept"),
    ("POST", "/queue/push"),
    ("POST", "/v1/nothing"),
]


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        queue.enqueue("mail", id="kept")
        yield queue


@pytest.fixture
def client(queue: Queue) -> Iterator[Client]:
    service = make_app(queue, dialects=DIALECTS, allowed_hosts=LOOPBACK)
    with asyncio.Runner() as runner:
        yield Client(service, runner)
        service.close()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:3100", "127.0.0.1.evil.example", ""]
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/healthz", "/nothing", "/sample/teams"])
def test_a_name_that_leads_here_by_dns_rebinding_is_refused(
    client: Client, host: str, path: str
) -> None:
    asked = client.ask("GET", path, headers={"host": host})
    assert asked.status == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:3100", "127.0.0.1:9", "[::1]:3100", "[::1]"]
)
def test_this_machine_is_known_by_its_names(client: Client, host: str) -> None:
    assert client.ask("GET", "/healthz", headers={"host": host}).status == 200


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "http://localhost:3100"},
    ],
)
def test_a_page_of_another_site_changes_nothing(
    client: Client, queue: Queue, method: str, path: str, headers: dict[str, str]
) -> None:
    headers = {"host": "localhost:3100", **headers}
    with nothing_changes(queue):
        asked = client.ask(method, path, content=JOB, headers=headers)
    assert asked.status == 403
    assert "another site" in asked.content.decode() or "a page of" in asked.content.decode()


def test_a_page_of_the_service_itself_may_write(client: Client) -> None:
    headers = {
        "host": "localhost:3100",
        "origin": "http://localhost:3100",
        "sec-fetch-site": "same-origin",
    }
    assert client.ask("POST", "/v1/jobs", content=JOB, headers=headers).status == 201


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_what_a_form_can_send_is_not_read(client: Client, queue: Queue, kind: str) -> None:
    headers = {"host": "localhost", "content-type": kind}
    with nothing_changes(queue):
        asked = client.ask("POST", "/v1/jobs", content=JOB, headers=headers)
    assert asked.status == 415
    assert asked.json["code"] == "unsupported_media_type"


def test_every_answer_says_that_its_type_is_not_to_be_guessed(client: Client) -> None:
    for path in ("/healthz", "/docs", "/nothing", "/v1/jobs"):
        asked = client.ask("GET", path, headers={"host": "localhost"})
        assert asked.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "via", "x-forwarded-host"])
def test_without_tokens_a_forwarded_request_is_not_served(serve: Serve, name: str) -> None:
    """The address of its sender is not known: it may come from anywhere."""
    client = serve()
    asked = client.ask("GET", "/v1/queues", headers={name: "10.0.0.1"})
    assert asked.status == 401
    assert "tenure token create" in asked.json["detail"]
    assert client.ask("GET", "/v1/queues").status == 200
    assert client.ask("GET", "/healthz", headers={name: "10.0.0.1"}).status == 200


def test_a_mounted_service_that_is_open_serves_no_forwarded_request(queue: Queue) -> None:
    app = mounted(queue, open_on_loopback=True)

    async def ask(**headers: str) -> int:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get("/v1/queues", headers=headers)).status_code

    async def main() -> None:
        assert await ask() == 200
        assert await ask(via="1.1 proxy") == 401

    asyncio.run(main())
    app.service().close()
