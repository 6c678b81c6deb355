"""A service whose PostgreSQL goes away says so in time, and goes on when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import tenure
from tenure.server.routes import make_app
from tests.server.conftest import Client
from tests.support.postgres import Server

CALLS = [
    ("POST", "/v1/jobs", {"queue": "q"}),
    ("POST", "/v1/claim", {"queues": ["q"]}),
    ("GET", "/v1/jobs", None),
    ("GET", "/v1/queues", None),
    ("POST", "/queue/push", {"teamId": "t", "job": {"id": "a", "data": 1, "priority": 0,
                                                    "listenable": False}}),
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    settings = tenure.Settings(url=server.url, busy_timeout=0.3)
    with tenure.connect(settings=settings) as queue, asyncio.Runner() as runner:
        service = make_app(queue, dialects=["firecrawl"])
        yield Client(service, runner)
        service.news.close()


def test_every_call_is_answered_while_the_server_is_away_and_works_when_it_is_back(
    client: Client, server: Server
) -> None:
    assert client.ask("POST", "/v1/jobs", {"queue": "q", "id": "first"}).status == 201
    server.kill()
    for method, path, body in CALLS:
        asked = client.ask(method, path, body)
        assert (asked.status, asked.headers["retry-after"]) == (503, "2"), asked
        if path.startswith("/v1"):
            assert asked.kind == "application/problem+json"
            # The first is sent over a connection that is dead, so its outcome is not known.
            assert asked.json["code"] in ("store_error", "outcome_unknown")
            assert str(server.folder) in asked.json["detail"]  # says which server
    assert client.ask("GET", "/readyz").status == 503
    assert client.ask("GET", "/healthz").status == 200
    server.start()
    for method, path, body in CALLS:
        assert client.ask(method, path, body).status in (200, 201)
    assert client.ask("GET", "/readyz").status == 200
    assert len(client.get("/v1/jobs")["jobs"]) == 3  # those that were refused were not enqueued
