"""Hostile input: a 4xx, and nothing is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tenure import Queue
from tenure.server.route import Route
from tests.server.conftest import Client, all_jobs

BODIES: dict[str, Any] = {
    "/queue/push": {
        "teamId": "t",
        "job": {"id": "j", "data": "HERE", "priority": 0, "listenable": False},
        "timeout": 1,
    },
    "/queue/pop/{team_id}": {"workerId": "w", "blockedCrawlIds": ["HERE"]},
    "/queue/complete": {"queueKey": "HERE"},
    "/queue/release": {"jobId": "HERE"},
    "/active/push": {"teamId": "t", "jobId": "HERE", "timeout": 1},
    "/active/remove": {"teamId": "t", "jobId": "HERE"},
    "/active/crawl/push": {"crawlId": "HERE", "jobId": "j", "timeout": 1},
    "/active/crawl/remove": {"crawlId": "HERE", "jobId": "j"},
    "/jobs/enqueue": {"runId": "HERE", "tenantId": "t", "r2Key": "k"},
    "/runs/{run_id}/enqueue": {"tenantId": "t", "r2Key": "HERE"},
    "/jobs/pull": {"max": "HERE"},
    "/jobs/ack": {"ids": ["HERE"], "status": "done"},
    "/jobs/create": {"binary_addr": "HERE"},
    "/jobs/claim": {"runner_id": "HERE"},
    "/jobs/{id}/complete": {"status": "completed", "output_addr": "HERE"},
    "/api/queue/retry": {"jobId": "HERE"},
}
# What stands for HERE; each is bad JSON, or a bad value wherever a text or a number is wanted.
EVIL = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "lone surrogate": b'"\\ud800"',
    "half a pair": b'"\\udc00x"',
    "not UTF-8": b'"\xff\xfe"',
    "overlong": b'"\xc0\x80"',
    "a number that is too large": b"1e999",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "control character": b'"\x01"',
    "unfinished": b'"abc',
    "a comment": b"/* */ 1",
    "single quotes": b"'a'",
    "two values": b"1 2",
    "a leading zero": b"01",
}


def dialect_routes(client: Client) -> list[Route]:
    return [route for route in client.service.table.routes if route.tag in TAGS]


TAGS = ("firecrawl", "d1", "queuey", "evekill")


def test_every_route_with_a_body_is_tried(client: Client) -> None:
    with_body = {route.path for route in dialect_routes(client) if route.body is not None}
    assert with_body == set(BODIES)


@pytest.mark.parametrize("evil", EVIL)
def test_a_body_that_is_not_json_is_refused(client: Client, queue: Queue, evil: str) -> None:
    for route in dialect_routes(client):
        if route.body is None:
            continue
        text = msgspec.json.encode(BODIES[route.path]).replace(b'"HERE"', EVIL[evil])
        path = route.path.replace("{", "").replace("}", "")
        for body in (text, EVIL[evil]):
            asked = client.ask(route.method, path, content=body)
            assert asked.status == 400, (route, asked)
            assert list(asked.json) == ["error"], (route, asked)
    assert stored(queue) == NOTHING


@pytest.mark.parametrize("name", ["a\0b", "", "x" * 513, 7, None, [], {}, True])
def test_a_name_that_cannot_be_is_refused(client: Client, queue: Queue, name: Any) -> None:
    for path in ("/queue/release", "/active/push", "/active/crawl/push", "/jobs/ack"):
        asked = client.ask("POST", path, placed(BODIES[path], name))
        assert asked.status == 400, (path, asked)
    assert stored(queue) == NOTHING


def placed(body: Any, value: Any) -> Any:
    """The body with a value in the place of HERE."""
    if isinstance(body, dict):
        return {key: placed(one, value) for key, one in body.items()}
    if isinstance(body, list):
        return [placed(one, value) for one in body]
    return value if body == "HERE" else body


@pytest.mark.parametrize(
    "path",
    [
        b"/queue/count/team/\xff",
        b"/queue/count/team/%ff",
        b"/queue/count/team/%00",
        b"/queue/count/team/a/b",
        b"/queue/count/team/../../v1/jobs",
        b"/queue//count/team/a",
        b"//queue/count/team/%ED%A0%80",
        b"/queue/count/team/",
        b"/queue/count/team",
        b"/QUEUE/count/team/a",
        b"/queue/count/team%2Fa",
        b"/%71ueue/count/team/a",
        b"/jobs/stats/",
        b"/jobs/%00",
        b"",
        b"*",
        b"/" + b"a/" * 10_000,
    ],
)
def test_path_tricks_find_nothing(client: Client, queue: Queue, path: bytes) -> None:
    status, body = raw_get(client, path)
    assert status in (400, 404), (status, body)
    assert b"error" in body or b"urn:tenure:no_such_route" in body
    assert stored(queue) == NOTHING


def raw_get(client: Client, path: bytes) -> tuple[int, bytes]:
    """Ask with a path that no client library would send."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": path,
        "path": path.decode("latin-1"),
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(client.service(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "DELETE", "TRACE"])
def test_a_method_that_a_path_has_not_is_refused(client: Client, method: str) -> None:
    asked = client.ask(method, "/queue/push", {})
    assert (asked.status, asked.headers["allow"]) == (405, "POST")
    assert asked.json == {"error": f"there is no {method} here, only POST"}


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", ""])
def test_a_body_must_be_said_to_be_json(client: Client, kind: str) -> None:
    """A form of any web page can send the others without asking first."""
    headers = {"content-type": kind}
    asked = client.ask("POST", "/jobs/create", content=b'{"binary_addr":"b"}', headers=headers)
    assert asked.status == 415
    assert "must be application/json" in asked.json["error"]
    headers = {"content-type": "application/json; charset=utf-8"}
    asked = client.ask("POST", "/jobs/create", content=b'{"binary_addr":"b"}', headers=headers)
    assert asked.status == 200


@pytest.mark.parametrize(
    "query", ["limit=%ff", "limit=%00", "after=%00", "limit=1;2", "limit=٣", "after=%ed%a0%80"]
)
def test_a_query_that_cannot_be_is_refused(client: Client, query: str) -> None:
    for path in ("/sample/teams", "/sample/crawls"):
        assert client.ask("GET", f"{path}?{query}").status == 400


def test_text_that_is_strange_but_can_be_is_kept(client: Client, queue: Queue) -> None:
    data = {"\0": "\0\x01\u2028\U0010ffff", "big": 10**30, "small": 1e-300, "__proto__": []}
    job = {"id": "j", "data": data, "priority": 0, "listenable": False}
    assert client.post("/queue/push", {"teamId": "t", "job": job}) == {"success": True}
    popped = client.post("/queue/pop/t", {"workerId": "w"})
    assert popped["job"]["data"] == data


NOTHING: list[Any] = [[], [], []]


def stored(queue: Queue) -> list[Any]:
    """Whatever a request could have left."""
    return [
        all_jobs(queue),
        queue.slots.list("firecrawl/team", "t"),
        queue.slots.list("firecrawl/crawl", "j"),
    ]
