"""Clients without a token that send without end, hold connections, or do not read."""

from __future__ import annotations

import contextlib
import socket
import time
import tracemalloc
from collections.abc import Iterator

import pytest

import tenure
from tenure import Queue
from tenure.server.auth import Tokens
from tenure.server.connection import Connection
from tenure.server.connections import Connections
from tenure.server.route import Reply
from tenure.server.routes import make_app
from tenure.testing import ManualClock
from tests.conformance.state import nothing_changes
from tests.server.conftest import token
from tests.server.wire import PATIENCE, Dial, Watched, hosted, request

MB = 1_048_576
KNOWN = "Authorization: Bearer secret"


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        queue.enqueue("q", {"text": "x" * 900_000}, id="large")
        yield queue


@pytest.fixture
def dial(queue: Queue) -> Iterator[Dial]:
    service = make_app(queue, tokens=Tokens([token("secret")]))
    with hosted(Watched(service)) as dial:
        yield dial
    service.close()


def test_trailers_without_end_are_refused_and_not_kept(dial: Dial, queue: Queue) -> None:
    line = dial()
    head = request("POST", "/v1/jobs", headers=["Transfer-Encoding: chunked", KNOWN])
    dial().say(request("GET", "/healthz")).hear()  # what is made once is made
    tracemalloc.start()
    try:
        with nothing_changes(queue):
            line.say(head, b'12\r\n{"queue": "trail"}\r\n0\r\n')
            with contextlib.suppress(OSError):  # hung up on before all of it was sent
                for _ in range(100):
                    line.say(b"x-trailer: " + b"y" * 100_000 + b"\r\n")
            with contextlib.suppress(OSError):
                assert line.hear().status == 431
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MB


def test_a_trailer_is_not_read_as_a_header(dial: Dial, queue: Queue) -> None:
    head = request("POST", "/v1/jobs", headers=["Transfer-Encoding: chunked"])
    body = b'0e\r\n{"queue": "q"}\r\n0\r\n'
    with nothing_changes(queue):
        line = dial().say(head, body, KNOWN.encode() + b"\r\n\r\n")
        assert line.hear().status == 401


@pytest.mark.parametrize("path", ["/v1/jobs", "/nothing", "/healthz"])
def test_little_is_read_before_a_token_is_known(dial: Dial, path: str) -> None:
    line = dial().say(request("POST", path, length=10**9))
    sent = 0
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began < PATIENCE:
            line.say(b"x" * MB)
            sent += 1
    assert sent < 32, "it read on"


def test_line_breaks_do_not_keep_a_connection(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.3)
    line = dial().say(b"\r\n")
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began < PATIENCE:
            line.say(b"\r\n")
            time.sleep(0.02)
    assert time.monotonic() - began < PATIENCE / 2


def test_line_breaks_between_requests_do_not_keep_a_connection(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = dial()
    assert line.say(request("GET", "/healthz")).hear().status == 200
    line.say(b"\r\n" * 40_000)
    assert line.hear().status == 431


def test_a_client_that_does_not_read_is_dropped(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "stall_seconds", 0.3)
    line = dial()
    line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = request("GET", "/v1/jobs/large", headers=[KNOWN])
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began < PATIENCE:
            line.say(asked)
    assert time.monotonic() - began < PATIENCE, "it was not dropped"


def test_strangers_make_room_for_others_and_never_take_the_reserve(queue: Queue) -> None:
    service = make_app(queue, tokens=Tokens([token("secret")]))
    with hosted(Watched(service), Connections(8)) as dial:
        _crowd(dial)
    service.close()


def _crowd(dial: Dial) -> None:
    known = dial()
    assert known.say(request("GET", "/v1/queues/q", headers=[KNOWN])).hear().status == 200
    idle = [dial() for _ in range(30)]
    assert dial().say(request("GET", "/healthz")).hear().status == 200
    assert known.say(request("GET", "/v1/queues/q", headers=[KNOWN])).hear().status == 200
    assert all(one.is_closed() for one in idle[:20])


def test_what_is_described_is_made_once(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Reply] = []

    def page(*args: object) -> Reply:
        made.append(Reply(b"page", media_type="text/html"))
        return made[-1]

    monkeypatch.setattr("tenure.server.service.docs_page", page)
    for _ in range(3):
        assert dial().say(request("GET", "/docs")).hear().status == 200
        assert dial().say(request("GET", "/openapi.json")).hear().status == 200
    assert len(made) == 1
