"""Clients without a token that send without end, hold connections, or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
import tracemalloc
from collections.abc import Iterator

import pytest

import tenure
from tenure import Busy, Queue
from tenure.server.auth import Tokens
from tenure.server.connection import Connection
from tenure.server.connections import Connections
from tenure.server.handshake import Handshake
from tenure.server.listener import AT_ONCE, Listener
from tenure.server.route import Reply
from tenure.server.routes import make_app
from tenure.server.sockets import tls_context
from tenure.testing import ManualClock
from tests.conformance.state import nothing_changes
from tests.server.certificates import Certificate
from tests.server.conftest import token
from tests.server.wire import PATIENCE, Dial, Line, Tls, Watched, hosted, request

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


def test_requests_that_wait_behind_another_are_not_all_kept_as_objects(
    dial: Dial, queue: Queue
) -> None:
    """One read can bring more than 10,000 of them, and an object takes 20 times what was sent."""
    count = 12_000
    first, other = dial(), dial()
    dial().say(request("GET", "/healthz")).hear()  # what is made once is made
    claim = request("POST", "/v1/claim", b'{"queues":["later"],"wait":60}', headers=[KNOWN])
    tracemalloc.start()
    try:
        first.say(claim + b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * count)
        for _ in range(20):  # it is served meanwhile
            assert other.say(request("GET", "/healthz")).hear().status == 200
            time.sleep(0.01)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.5 * MB  # what was sent is in it once, as this test has it
    queue.enqueue("later")
    assert [first.hear().status for _ in range(count + 1)] == [200] * (count + 1)


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


# One token that wants all connections -------------------------------------------------------------


@pytest.fixture
def crowded(queue: Queue) -> Iterator[Dial]:
    """A service that has few connections for many."""
    tokens = Tokens([token("greedy"), token("other"), token("secret")])
    service = make_app(queue, tokens=tokens)
    with hosted(Watched(service), Connections(20)) as dial:
        yield dial
        service.finish()
    service.close()


def ask(line: Line, who: str, path: str = "/v1/queues/q") -> int:
    return line.say(request("GET", path, headers=[f"Authorization: Bearer {who}"])).hear().status


def opened(dial: Dial, who: str) -> Line:
    line = dial()
    assert ask(line, who) == 200
    return line


def be_served(dial: Dial, count: int) -> None:
    """Open so many connections beside those of others, and keep them."""
    for line in [opened(dial, "secret") for _ in range(count)]:
        assert ask(line, "secret") == 200
        assert ask(dial(), "", "/healthz") == 200


def test_a_token_with_many_idle_connections_locks_nobody_out(crowded: Dial) -> None:
    idle = [opened(crowded, "greedy") for _ in range(40)]
    be_served(crowded, 9)
    assert all(one.is_closed() for one in idle[:20])
    assert ask(idle[-1], "greedy") == 200, "the last of them are kept"


@pytest.mark.parametrize("path", ["/v1/jobs/large/wait?timeout=60", "/v1/events"])
def test_a_token_whose_connections_all_wait_locks_nobody_out(crowded: Dial, path: str) -> None:
    for who in ("greedy", "other"):
        for _ in range(10):
            crowded().say(request("GET", path, headers=[f"Authorization: Bearer {who}"]))
    be_served(crowded, 5)


def test_a_connection_counts_for_the_token_that_it_showed_last() -> None:
    """A proxy may send the requests of many clients over one connection."""
    connections = Connections(4)
    lines = [Placed() for _ in range(3)]
    for line, who in zip(lines, ("a", "a", "b"), strict=True):
        connections.add(line)
        connections.trust(line, who)
    connections.trust(lines[0], "b")
    for _ in range(2):
        late = Placed()
        connections.add(late)
        with pytest.raises(Busy):
            connections.trust(late, "b")
        assert len(connections) <= 4
    lines[2].is_idle = True
    connections.trust(late, "a")
    assert [line.stopped for line in lines] == [False, False, True]
    assert len(connections) == 4
    connections.add(Placed())
    assert lines[2].dropped, "it was told to close before, and has not done so"


class Placed:
    """A connection that does what it is told."""

    def __init__(self) -> None:
        self.is_idle = False
        self.stopped = self.dropped = False

    def stop(self) -> None:
        self.stopped = True

    def drop(self) -> None:
        self.dropped = True


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    made = Certificate(tmp_path_factory.mktemp("tls"))
    server = tls_context(str(made.cert), str(made.key))
    assert server is not None
    return Tls(server, ssl.create_default_context(cafile=made.cert))


def test_handshakes_that_are_not_finished_count_as_connections(queue: Queue, tls: Tls) -> None:
    service, connections = make_app(queue), Connections(8)
    with hosted(Watched(service), connections, tls) as dial:
        served = dial()
        assert served.say(request("GET", "/healthz")).hear().status == 200
        silent = [Line(served.port) for _ in range(30)]
        for n, one in enumerate(silent):
            if n % 2:
                one.say(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a handshake
        assert dial().say(request("GET", "/healthz")).hear().status == 200
        assert len(connections) <= 8
        assert all(one.is_closed() for one in silent[:20])
        for one in silent:
            one.hang_up()
    service.close()


def test_connections_are_accepted_many_at_once_but_not_all() -> None:
    """If few are accepted while the event loop is busy, health checks wait behind those that
    connect again and again. If all are, nobody else is served meanwhile."""
    count = 3 * AT_ONCE

    async def main() -> int:
        accepted: list[socket.socket] = []
        turns = 0
        with socket.socket() as one, contextlib.ExitStack() as clients:
            one.bind(("127.0.0.1", 0))
            one.listen(count)
            for _ in range(count):
                clients.enter_context(socket.create_connection(one.getsockname()))
            listener = Listener(one, lambda one: accepted.append(clients.enter_context(one)))
            async with asyncio.timeout(PATIENCE):
                while len(accepted) < count:
                    turns += 1
                    await asyncio.sleep(0)
            listener.close()
        return turns

    assert 3 <= asyncio.run(main()) <= 10


def test_a_handshake_has_a_deadline(
    queue: Queue, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handshake, "seconds", 2.0)
    service, connections = make_app(queue), Connections(8)
    with hosted(Watched(service), connections, tls) as dial:
        silent, broken = (Line(dial().port) for _ in range(2))
        broken.say(b"GET / HTTP/1.1\r\n\r\n")
        assert broken.is_closed()
        assert silent.is_closed()
        while len(connections) > 2:  # the two that were dialled; it is told after the client
            time.sleep(0.01)
        silent.hang_up()
        broken.hang_up()
    service.close()


def test_a_service_stops_although_a_handshake_is_not_finished(queue: Queue, tls: Tls) -> None:
    service = make_app(queue)
    with hosted(Watched(service), None, tls) as dial:
        silent = Line(dial().port)
        began = time.monotonic()
    assert time.monotonic() - began < PATIENCE / 2
    assert silent.is_closed()
    silent.hang_up()
    service.close()


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
