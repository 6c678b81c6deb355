"""Requests that wait: what ends them, and what becomes of those whose clients leave."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import Queue
from tests.server.conftest import Client, Serve
from tests.server.connection import Connection
from tests.server.process import ServiceProcess
from tests.support.sizes import let


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/claim", {"queues": ["mail"], "wait": 60}),
        ("GET", "/v1/jobs/a/wait?timeout=60", None),
        ("GET", "/v1/changes?wait=60&since={version}", None),
    ],
)
def test_those_who_wait_are_woken_when_the_service_closes(
    serve: Serve,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: object,
) -> None:
    """Not only when they next look by themselves."""
    let(monkeypatch, seconds_between_looks_for_jobs=3600.0)
    queue.enqueue("other", id="a", delay=7200)
    client = serve()
    service = client.service

    async def act() -> None:
        late = False
        while not late:  # changes may be told of for nothing
            where = path.format(version=service.news.version)
            asked = asyncio.create_task(client._ask(method, where, body, None, {}))
            late = bool((await asyncio.wait([asked], timeout=0.05))[1])
        service.finish()
        async with asyncio.timeout(30):
            answer = await asked
        assert answer.status == 200
        assert answer.headers["connection"] == "close"

    client._runner.run(act())


def test_who_comes_while_the_service_closes_does_not_wait(client: Client) -> None:
    client.ask("GET", "/healthz")
    client.service.finish()
    asked = client.ask("POST", "/v1/claim", {"queues": ["mail"], "wait": 60})
    assert asked.json == {"jobs": []}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path)
    yield process.start()
    process.kill()


def test_nothing_is_claimed_for_a_client_that_went_away(service: ServiceProcess) -> None:
    """It would be kept from the others until the lease has run out."""

    async def act() -> None:
        claim = {"queues": ["mail"], "wait": 30, "lease": 3600}
        async with await Connection.open(service.port) as other:
            for _ in range(5):
                async with await Connection.open(service.port) as gone:
                    gone.send("POST", "/v1/claim", claim)
                    assert (await other.ask("GET", "/readyz")).status == 200
            for _ in range(3):  # they came later than the news that the others are gone
                assert (await other.ask("GET", "/readyz")).status == 200
            assert (await other.ask("POST", "/v1/jobs", {"queue": "mail"})).status == 201
            async with asyncio.timeout(20):
                answer = await other.ask("POST", "/v1/claim", claim)
        (job,) = answer.json["jobs"]
        assert job["attempts"] == 1

    asyncio.run(act())
