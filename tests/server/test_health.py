"""How the service is: for those who keep it running, and for those who ask too much of it."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import Queue, __version__
from tenure.errors import Busy, Closed, StoreError, TenureError
from tenure.queue import store_of
from tenure.server.routes import DIALECTS
from tests.server.conftest import Client, Serve, token


def fails(queue: Queue, monkeypatch: pytest.MonkeyPatch, error: TenureError) -> None:
    """Let every operation and query fail."""

    def fail(*args: Any) -> None:
        raise error

    async def afail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(store_of(queue), "do", fail)
    monkeypatch.setattr(store_of(queue), "ado", afail)


def test_the_process_lives_whatever_the_store_does(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/healthz") == {"status": "ok"}
    fails(queue, monkeypatch, StoreError("the disk is gone"))
    assert client.get("/healthz") == {"status": "ok"}


def test_it_is_ready_if_the_store_answers(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.get("/readyz") == {"status": "ok"}
    fails(queue, monkeypatch, StoreError("the disk is gone"))
    asked = client.ask("GET", "/readyz")
    assert (asked.status, asked.kind) == (503, "application/json")
    assert asked.json == {"status": "the store is away: the disk is gone"}
    assert asked.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [(Busy("too much"), 429, "1"), (StoreError("gone"), 503, "2"), (Closed("closed"), 503, "2")],
)
def test_who_asks_when_it_cannot_be_done_is_told_when_to_ask_again(
    client: Client,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    error: TenureError,
    status: int,
    retry_after: str,
) -> None:
    fails(queue, monkeypatch, error)
    native = client.ask("POST", "/v1/jobs", {"queue": "q"})
    assert (native.status, native.headers["retry-after"]) == (status, retry_after)
    assert (native.json["code"], native.json["detail"]) == (error.code, error.message)
    for method, path, body in (
        ("GET", "/queue/count/team/t", None),
        ("POST", "/jobs/pull", {}),
        ("POST", "/jobs/create", {"binary_addr": "b"}),
        ("GET", "/api/queue/stats", None),
    ):
        asked = client.ask(method, path, body)
        assert (asked.status, asked.headers["retry-after"]) == (status, retry_after)
        assert asked.json == {"error": error.message}


def test_changes_are_waited_for(client: Client) -> None:
    first = client.get("/v1/changes")
    assert list(first) == ["version"]
    while (later := client.get(f"/v1/changes?since={first['version']}&wait=0.01")) != first:
        first = later  # it may be told of for nothing
    client.post("/v1/jobs", {"queue": "q"})
    second = client.get(f"/v1/changes?since={first['version']}&wait=30")
    assert second != first
    for bad in ("wait=61", "wait=-1", "wait=x", "since=a&since=b", "until=1"):
        assert client.ask("GET", f"/v1/changes?{bad}").status == 400


def test_the_description_is_served(client: Client) -> None:
    document = client.get("/openapi.json")
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == __version__


def test_the_page_loads_nothing_from_elsewhere(client: Client) -> None:
    asked = client.ask("GET", "/docs")
    assert (asked.status, asked.kind) == (200, "text/html; charset=utf-8")
    policy = asked.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    text = asked.content.decode()
    for word in ("src=", 'href="http', 'href="//', "<script", "<link", "@import", "url("):
        assert word not in text
    for route in filter(lambda one: one.described, client.service.table.routes):
        assert (f">{route.path}<" in text) == (route.tag not in DIALECTS)


def test_a_newcomer_is_shown_the_native_api_alone(client: Client) -> None:
    paths = client.get("/openapi.json")["paths"]
    assert "/v1/jobs" in paths
    assert "/queue/push" not in paths
    text = client.ask("GET", "/docs").content.decode()
    for name in DIALECTS:
        assert f'href="docs/{name}"' in text


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_has_a_page_and_a_document_of_its_own(client: Client, name: str) -> None:
    asked = client.ask("GET", f"/docs/{name}")
    assert (asked.status, asked.kind) == (200, "text/html; charset=utf-8")
    text = asked.content.decode()
    assert f'href="{name}/openapi.json"' in text
    paths = client.get(f"/docs/{name}/openapi.json")["paths"]
    for route in client.service.table.routes:
        assert (route.path in paths) == (route.tag == name)
        assert (f">{route.path}<" in text) == (route.tag == name)


def test_a_dialect_that_is_off_has_no_page(serve: Serve) -> None:
    client = serve(["evekill"])
    assert client.ask("GET", "/docs/evekill").status == 200
    for path in ("/docs/firecrawl", "/docs/firecrawl/openapi.json", "/docs/health", "/docs/x"):
        assert client.ask("GET", path).status == 404
    assert "/docs/firecrawl" not in client.ask("GET", "/docs").content.decode()


def test_the_root_says_what_this_is(serve: Serve) -> None:
    for client in (serve(), serve([], [token("secret")])):
        asked = client.ask("GET", "/")
        assert (asked.status, asked.kind) == (200, "text/html; charset=utf-8")
        assert b'href="docs"' in asked.content
