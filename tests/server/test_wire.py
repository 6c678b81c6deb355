"""Hostile clients on a real socket: they get a clear answer or are hung up on, leave nothing in the
store, and do not keep others from being served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

import tenure
from tenure import Job, Queue
from tenure.server.auth import EVERYTHING
from tenure.server.connection import Connection
from tenure.server.exchange import Headers
from tenure.server.http_server import HttpServer
from tenure.server.route import Call
from tenure.server.routes import DIALECTS, make_app
from tenure.server.service import Service
from tenure.server.waiting import claim_or_wait
from tenure.testing import ManualClock
from tests.conformance.state import nothing_changes
from tests.server.wire import PATIENCE, Dial, Line, Watched, hosted, request

JOB = b'{"queue":"q"}'
MB = 1_048_576


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        queue.enqueue("q", id="ready")
        queue.enqueue("d1", id="file")
        yield queue


@pytest.fixture
def service(queue: Queue) -> Iterator[Service]:
    service = make_app(queue, dialects=DIALECTS)
    yield service
    service.close()


@pytest.fixture
def watched(service: Service) -> Watched:
    return Watched(service)


@pytest.fixture
def dial(watched: Watched) -> Iterator[Dial]:
    with hosted(watched) as dial:
        yield dial


@pytest.fixture
def impatient(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may take long may not."""
    service.body_seconds = 0.2
    monkeypatch.setattr(Connection, "head_seconds", 0.2)


# Connections --------------------------------------------------------------------------------------


def test_requests_leave_no_garbage_for_the_collector(dial: Dial) -> None:
    """To collect it would keep everybody waiting for milliseconds."""
    line = dial()
    assert line.say(request("POST", "/v1/jobs", JOB)).hear().status == 201
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            assert line.say(request("POST", "/v1/jobs", JOB)).hear().status == 201
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_a_connection_that_is_not_used_is_closed_after_its_time(
    dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "idle_seconds", 1.0)
    line = dial()
    for _ in range(3):
        time.sleep(0.35)  # less than that, and more in all
        assert line.say(request("GET", "/healthz")).hear().status == 200
    assert line.is_closed()


# Bodies -------------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_413(dial: Dial, queue: Queue) -> None:
    body = b'{"queue":"q","payload":"' + b"x" * 40 * MB + b'"}'
    line = dial()
    with nothing_changes(queue):
        heard = line.say(request("POST", "/v1/jobs", body)).hear()
        assert (heard.status, heard.closed) == (413, False)
        assert heard.detail == f"the body is {len(body):,} bytes; at most {32 * MB:,}"
        chunk = b"%x\r\n%s\r\n" % (MB, b"x" * MB)
        head = request("POST", "/v1/jobs", headers=["Transfer-Encoding: chunked"])
        heard = line.say(head, *[chunk] * 33, b"0\r\n\r\n").hear()
        assert heard.status == 413
        assert heard.detail == f"the body is {33 * MB:,} bytes; at most {32 * MB:,}"


def test_who_asks_before_sending_too_much_is_refused_at_once(dial: Dial) -> None:
    head = request("POST", "/v1/jobs", headers=["Expect: 100-continue"], length=10**12)
    heard = dial().say(head).hear()
    assert (heard.status, heard.closed) == (413, True)


def test_who_asks_before_sending_is_told_to_go_on(dial: Dial, queue: Queue) -> None:
    line = dial()
    line.say(request("POST", "/v1/jobs", headers=["Expect: 100-continue"], length=len(JOB)))
    assert line.hear().status == 100
    assert line.say(JOB).hear().status == 201


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("path", "start"),
    [
        ("/v1/jobs", JOB),
        ("/v1/jobs", b""),
        ("/jobs/pull", b""),
        ("/jobs/pull", b"{"),
        ("/v1/jobs/ready/cancel", b""),
        ("/v1/nothing", b"{"),
    ],
)
def test_a_body_that_does_not_come_is_not_waited_for(
    dial: Dial, queue: Queue, path: str, start: bytes
) -> None:
    with nothing_changes(queue):
        heard = dial().say(request("POST", path, start, length=100)).hear()
    assert heard.status == (404 if path == "/v1/nothing" else 408)
    assert heard.closed


@pytest.mark.usefixtures("impatient")
def test_a_body_that_comes_byte_by_byte_holds_nobody_up(dial: Dial, queue: Queue) -> None:
    slow = dial()

    def drip() -> None:
        slow.say(request("POST", "/v1/jobs", length=100_000))
        # Whoever writes to a connection that is closed may lose the response that came before.
        while not select.select([slow._socket], [], [], 0.01)[0]:
            slow.say(b" ")

    thread = threading.Thread(target=drip)
    with nothing_changes(queue):
        thread.start()
        assert dial().say(request("GET", "/v1/queues/q")).hear().status == 200
        heard = slow.hear()
        assert heard.status == 408
        assert "did not arrive within 0.2 s" in heard.detail
        thread.join(PATIENCE)


@pytest.mark.parametrize("path", ["/v1/jobs", "/jobs/pull", "/v1/queues/q/pause", "/v1/claim"])
@pytest.mark.parametrize("start", [b"", b"{"])
def test_who_leaves_in_the_middle_of_a_body_has_asked_for_nothing(
    dial: Dial, watched: Watched, queue: Queue, path: str, start: bytes
) -> None:
    with nothing_changes(queue):
        dial().say(request("POST", path, start, length=50)).hang_up()
        assert watched.ended.acquire(timeout=PATIENCE)


def test_a_body_in_an_encoding_is_refused_by_name(dial: Dial, queue: Queue) -> None:
    line = dial()
    with nothing_changes(queue):
        for name in ("gzip", "br", "deflate, gzip"):
            headers = [f"Content-Encoding: {name}"]
            heard = line.say(request("POST", "/v1/jobs", gzip.compress(JOB), headers)).hear()
            assert heard.status == 400
            assert f"content-encoding: '{name}'" in heard.detail
    plain = ["Content-Encoding: identity"]
    assert line.say(request("POST", "/v1/jobs", JOB, plain)).hear().status == 201


@pytest.mark.parametrize(
    "body",
    [
        JOB.decode().encode("utf-16"),
        JOB.decode().encode("utf-32"),
        b"\xef\xbb\xbf" + JOB,
        b'{"queue":"\xff"}',
        b'{"queue":"\\ud800"}',
        b'{"queue":"q","priority":1e400}',
        b'{"queue":"q","priority":1208925819614629174706176}',
        b'{"queue":"q","delay":1e400}',
        b'{"queue":"q","delay":-1e-9}',
        b'{"queue":"q","payload":1e400}',
        b'{"queue":"q","payload":NaN}',
        b'{"queue":"q","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"queue":"q"} {"queue":"q"}',
        b"queue=q",
    ],
)
def test_a_body_that_is_not_what_it_should_be_is_400(dial: Dial, queue: Queue, body: bytes) -> None:
    with nothing_changes(queue):
        heard = dial().say(request("POST", "/v1/jobs", body)).hear()
        assert heard.status == 400
        assert heard.detail


def test_of_a_field_that_is_given_twice_the_last_counts(dial: Dial, queue: Queue) -> None:
    heard = dial().say(request("POST", "/v1/jobs", b'{"queue":"a","queue":"b"}')).hear()
    assert heard.status == 201
    assert list(queue.stats().queues) == ["b", "d1", "q"]


def test_minus_zero_is_zero(dial: Dial) -> None:
    body = b'{"queue":"q","id":"z","priority":-0,"delay":-0.0,"payload":-0}'
    assert dial().say(request("POST", "/v1/jobs", body)).hear().status == 201


# Long requests ------------------------------------------------------------------------------------


@pytest.fixture
def waits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody begins to wait for a change."""
    event, listen = threading.Event(), queue.changes.listen

    def noted(wake: Any) -> Callable[[], None]:
        event.set()
        return listen(wake)

    monkeypatch.setattr(queue.changes, "listen", noted)
    return event


@pytest.mark.parametrize(
    "asked",
    [
        request("POST", "/v1/claim", b'{"queues":["later"],"wait":60,"lease":3600}'),
        request("GET", "/v1/jobs/ready/wait?timeout=60"),
    ],
)
def test_who_leaves_while_waiting_is_not_waited_with(
    dial: Dial, watched: Watched, queue: Queue, waits: threading.Event, asked: bytes
) -> None:
    line = dial()
    waits.clear()
    line.say(asked)
    assert waits.wait(PATIENCE)
    line.hang_up()
    assert watched.ended.acquire(timeout=PATIENCE)
    queue.enqueue("later", id="kept")
    assert queue.get("kept").state == "pending"


@pytest.mark.parametrize(
    "more",
    [
        request("GET", "/healthz"),
        request("GET", "/healthz") + request("POST", "/v1/jobs", length=100),
        request("POST", "/v1/jobs", b"{" + b" " * 70_000, length=100_000),
    ],
    ids=["one", "two", "a large body"],
)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
def test_who_leaves_is_noticed_although_another_request_waits(
    dial: Dial, watched: Watched, queue: Queue, waits: threading.Event, more: bytes, at_once: bool
) -> None:
    line = dial()
    waits.clear()
    asked = request("POST", "/v1/claim", b'{"queues":["later"],"wait":60,"lease":3600}')
    line.say(asked + more) if at_once else line.say(asked)
    assert waits.wait(PATIENCE)
    if not at_once:
        line.say(more)
    line.hang_up()
    assert watched.ended.acquire(timeout=5)
    queue.enqueue("later", id="kept")
    assert queue.get("kept").state == "pending"


def test_who_leaves_is_noticed_although_they_asked_for_another_protocol(
    dial: Dial, watched: Watched, waits: threading.Event
) -> None:
    line = dial()
    waits.clear()
    headers = ["Connection: Upgrade", "Upgrade: h2c"]
    line.say(request("GET", "/v1/jobs/ready/wait?timeout=60", headers=headers))
    assert waits.wait(PATIENCE)
    line.say(b"PRI * HTTP/2.0")
    line.hang_up()
    assert watched.ended.acquire(timeout=5)


def test_a_request_that_waited_is_served_with_all_that_came_meanwhile(
    dial: Dial, queue: Queue, waits: threading.Event
) -> None:
    """More than is kept for it, in pieces, with another request behind it."""
    line = dial()
    waits.clear()
    line.say(request("POST", "/v1/claim", b'{"queues":["later"],"wait":60}'))
    assert waits.wait(PATIENCE)
    body = b'{"queue":"large","id":"large","payload":"' + b"x" * 300_000 + b'"}'
    sent = request("POST", "/v1/jobs", body) + request("GET", "/v1/jobs/large")

    def send() -> None:
        for start in range(0, len(sent), 50_000):
            line.say(sent[start : start + 50_000])

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(0.05)  # while the first request still waits
    queue.enqueue("later", id="job")
    assert [line.hear().status for _ in range(3)] == [200, 201, 200]
    sender.join(PATIENCE)


@pytest.mark.usefixtures("impatient")
def test_a_head_that_waits_behind_other_requests_is_not_late(
    dial: Dial, queue: Queue, waits: threading.Event
) -> None:
    line = dial()
    waits.clear()
    third = request("GET", "/v1/jobs/ready")
    claim = request("POST", "/v1/claim", b'{"queues":["later"],"wait":60}')
    line.say(claim + request("GET", "/healthz") + third[:20])
    assert waits.wait(PATIENCE)
    line.say(third[20:])
    time.sleep(0.5)  # longer than a head may take
    queue.enqueue("later", id="job")
    assert [line.hear().status for _ in range(3)] == [200, 200, 200]


def test_a_job_that_was_claimed_for_one_who_left_is_given_back(
    service: Service, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        left, claims = asyncio.Event(), iter([False, True])

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def claim_while_leaving(*args: Any, **options: Any) -> list[Job]:
            if not next(claims):
                return []
            jobs = await aclaim(*args, **options)
            assert [job.id for job in jobs] == ["ready"]
            left.set()
            await asyncio.sleep(0)  # the client is seen leaving
            await asyncio.sleep(0)
            return jobs

        aclaim = queue.aclaim
        monkeypatch.setattr(queue, "aclaim", claim_while_leaving)
        call = Call(service, EVERYTHING, queue, {}, {}, Headers([]), receive)
        assert await claim_or_wait(call, ["q"], 60, worker="w") == []

    asyncio.run(main())
    job = queue.get("ready")
    assert (job.state, job.attempts) == ("pending", 0)


@pytest.mark.parametrize("more", [b"{}\r\n\r\n", b"GET /" + b"a" * 100_000, b"GET /"])
@pytest.mark.usefixtures("impatient")
def test_a_request_that_is_served_is_answered_whatever_follows(
    dial: Dial, queue: Queue, waits: threading.Event, more: bytes
) -> None:
    """It may have changed something: the client must not be told that it was refused."""
    line = dial()
    waits.clear()
    line.say(request("POST", "/v1/claim", b'{"queues":["later"],"wait":60}'))
    assert waits.wait(PATIENCE)
    line.say(more, more)
    time.sleep(0.4)  # longer than a head may take
    queue.enqueue("later", id="job")
    heard = line.hear()
    assert (heard.status, heard.closed) == (200, True)
    assert b'"job"' in heard.body


@pytest.mark.parametrize("more", [b"{}\r\n\r\n", b"GET /healthz HTTP/3.0\r\n\r\n"])
def test_a_request_that_is_refused_for_what_follows_changes_nothing(
    dial: Dial, watched: Watched, queue: Queue, more: bytes
) -> None:
    with nothing_changes(queue):
        heard = dial().say(request("POST", "/v1/jobs/ready/cancel") + more).hear()
        assert (heard.status, heard.closed) == (400, True)
        assert watched.ended.acquire(timeout=PATIENCE)


def test_who_leaves_before_a_stream_begins_is_no_failure(
    dial: Dial, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    assert dial().say(request("GET", "/v1/events") + b"?\r\n\r\n").hear().status == 400
    assert watched.ended.acquire(timeout=PATIENCE)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_a_stream_that_fails_is_cut_and_not_answered_twice(
    dial: Dial, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.feed, "after", lambda place: 1 / 0)
    line = dial().say(request("GET", "/v1/events"))
    assert line.hear().headers["transfer-encoding"] == "chunked"
    assert line.is_closed()


# What is not HTTP, or too much of it --------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: x\n\n",
        b"GET /healthz HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nA: b\0c\r\n\r\n",
        b"GET /v1/jobs/a b HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs/\xff HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        request("POST", "/v1/jobs", JOB, ["Content-Length: 5"]),
        request("POST", "/v1/jobs", JOB, length=-5),
        request("POST", "/v1/jobs", JOB, length=10**30),
        request("POST", "/v1/jobs", JOB, ["Transfer-Encoding: chunked"]),
        request("POST", "/v1/jobs", headers=["Transfer-Encoding: chunked"]) + b"ZZ\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/0.9\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET /healthz#a HTTP/1.1\r\n\r\n",
        b"GET ftp://tenure/healthz HTTP/1.1\r\nHost: tenure\r\n\r\n",
        b"GET tenure:80 HTTP/1.1\r\nHost: tenure\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_hung_up_on(dial: Dial, queue: Queue, text: bytes) -> None:
    with nothing_changes(queue):
        heard = dial().say(text).hear()
        assert (heard.status, heard.closed) == (400, True)
        assert heard.detail == "request: is not a valid HTTP/1 request"


def test_a_body_that_is_longer_than_it_said_is_not_taken_at_all(
    dial: Dial, watched: Watched, queue: Queue
) -> None:
    with nothing_changes(queue):
        for length in (len(JOB), 5):
            text = request("POST", "/v1/jobs", JOB + b"{}", length=length)
            assert dial().say(text).hear().status == 400
            assert watched.ended.acquire(timeout=PATIENCE)


CHUNKED = b"d\r\n" + JOB + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("host", request("POST", "/v1/jobs", JOB, ["Host: other"])),
        ("host", request("POST", "http://other/v1/jobs", JOB)),
        ("host", request("POST", "http://other@tenure/v1/jobs", JOB)),
        ("authorization", request("POST", "/v1/jobs", JOB, ["Authorization: Bearer a"] * 2)),
        ("content-type", request("POST", "/v1/jobs", JOB, ["Content-Type: text/plain"] * 2)),
        (
            "transfer-encoding",
            request("POST", "/v1/jobs", headers=["Transfer-Encoding: xchunked"]) + JOB,
        ),
        (
            "transfer-encoding",
            request("POST", "/v1/jobs", headers=["Transfer-Encoding: gzip, chunked"]) + CHUNKED,
        ),
        (
            "transfer-encoding",
            request(
                "POST",
                "/v1/jobs",
                headers=["Transfer-Encoding: identity", "Transfer-Encoding: chunked"],
            )
            + CHUNKED,
        ),
        (
            "transfer-encoding",
            request("POST", "/v1/jobs", headers=["Transfer-Encoding: chunked"]).replace(
                b"HTTP/1.1", b"HTTP/1.0"
            )
            + CHUNKED,
        ),
    ],
)
def test_what_a_proxy_may_read_differently_is_refused_and_hung_up_on(
    dial: Dial, queue: Queue, field: str, text: bytes
) -> None:
    with nothing_changes(queue):
        heard = dial().say(text + request("GET", "/healthz")).hear()
    assert (heard.status, heard.closed) == (400, True)
    assert heard.detail.startswith(f"{field}: must ")


def test_a_request_may_name_its_host_twice_alike(dial: Dial) -> None:
    assert dial().say(request("GET", "http://Tenure/healthz?")).hear().status == 200
    assert dial().say(request("OPTIONS", "*")).hear().status == 404


@pytest.mark.usefixtures("impatient")
def test_a_client_of_an_older_version_is_not_told_to_go_on(dial: Dial) -> None:
    head = request("POST", "/v1/jobs", headers=["Expect: 100-continue"], length=len(JOB))
    assert dial().say(head.replace(b"HTTP/1.1", b"HTTP/1.0")).hear().status == 408


@pytest.mark.parametrize(
    "head",
    [
        b"a: b\r\n" * 100_000,
        b"a: " + b"b" * 20 * MB,
        b"c" * 20 * MB,
    ],
)
def test_headers_without_end_are_431(dial: Dial, head: bytes) -> None:
    line = dial()
    with contextlib.suppress(OSError):  # hung up on before all of it was sent
        line.say(b"GET /healthz HTTP/1.1\r\n" + head)
    try:
        heard = line.hear()
    except ConnectionResetError:
        return
    assert (heard.status, heard.closed) == (431, True)
    assert heard.detail == "the headers are over 65,536 bytes"


class Pipe(asyncio.Transport):
    """The end of a connection that the service writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = pause_reading = resume_reading = close


async def status_of(service: Service, sent: bytes, piece: int) -> int:
    """What a request is answered with if it is read in pieces of this size."""
    server, pipe = HttpServer(service), Pipe()
    await server.start([])
    connection = Connection(server, asyncio.get_running_loop())
    connection.connection_made(pipe)
    for start in range(0, len(sent), piece):
        if not pipe.closing:
            connection.data_received(sent[start : start + piece])
    async with asyncio.timeout(PATIENCE):
        while not pipe.written:
            await asyncio.sleep(0)
    connection.connection_lost(None)
    return int(pipe.written.split()[1])


@pytest.mark.parametrize("piece", [1_000_000, 65_537, 65_536, 40_000, 999])
@pytest.mark.parametrize("where", ["url", "one header", "many headers", "one header often"])
def test_the_limit_of_headers_does_not_depend_on_how_they_arrive(
    service: Service, where: str, piece: int
) -> None:
    def head(size: int) -> bytes:
        empty = {
            "url": b"GET /healthz?x=%s HTTP/1.1\r\nHost: tenure\r\n\r\n",
            "one header": b"GET /healthz HTTP/1.1\r\nHost: tenure\r\nx: %s\r\n\r\n",
            "many headers": b"GET /healthz HTTP/1.1\r\nHost: tenure\r\n%sx: %%s\r\n\r\n"
            % b"".join(b"x-%d: %s\r\n" % (n, b"y" * 100) for n in range(500)),
            "one header often": b"GET /healthz HTTP/1.1\r\nHost: tenure\r\n%sx: %%s\r\n\r\n"
            % b"".join(b"X: %s\r\n" % (b"y" * n) for n in range(300)),
        }[where]
        return empty % (b"z" * (size - len(empty) + 2))

    most = Connection.max_head
    assert len(head(most)) == most
    assert asyncio.run(status_of(service, head(most), piece)) == 200
    assert asyncio.run(status_of(service, head(most + 1), piece)) == 431


def test_large_headers_that_are_not_too_large_are_read(dial: Dial) -> None:
    headers = [f"X-{n}: {'y' * 1000}" for n in range(50)]
    assert dial().say(request("GET", "/healthz", headers=headers)).hear().status == 200


@pytest.mark.usefixtures("impatient")
def test_headers_that_do_not_come_are_not_waited_for(dial: Dial) -> None:
    heard = dial().say(b"GET /healthz HTTP/1.1\r\nHost").hear()
    assert (heard.status, heard.closed) == (408, True)
    assert heard.detail == "the headers did not arrive within 0.2 s"
    assert dial().is_closed()


@pytest.mark.usefixtures("impatient")
def test_a_connection_that_asks_now_and_then_is_kept(dial: Dial) -> None:
    line = dial()
    for _ in range(3):
        assert line.say(request("GET", "/healthz")).hear().status == 200
        time.sleep(0.15)  # for longer than a head may take, in all


def test_requests_that_come_at_once_are_answered_in_order(dial: Dial, queue: Queue) -> None:
    line = dial()
    line.say(
        request("GET", "/healthz")
        + request("POST", "/v1/jobs", b"{")
        + request("POST", "/v1/jobs", b'{"queue":"q","id":"second"}')
        + request("GET", "/v1/jobs/second")
    )
    assert [line.hear().status for _ in range(4)] == [200, 400, 201, 200]


def test_a_websocket_is_refused(dial: Dial) -> None:
    headers = ["Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    headers.append("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    heard = dial().say(request("GET", "/v1/events", headers=headers)).hear()
    assert (heard.status, heard.closed) == (400, True)
    assert "upgrade: is not supported" in heard.detail


OFFERS = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"]


@pytest.mark.parametrize("piece", [1_000, 150, 7])
def test_an_offer_of_another_version_is_ignored(dial: Dial, queue: Queue, piece: int) -> None:
    """Java's HttpClient offers h2c with its first request, whether that has a body or not, and
    `curl --http2` does so as well. The connection goes on as it is."""
    chunked = ["Transfer-Encoding: chunked", *OFFERS]
    sent = (
        request("GET", "/healthz", headers=OFFERS)
        + request("GET", "/healthz", headers=OFFERS, length=0)
        + request("POST", "/v1/jobs", b'{"queue":"java","id":"a"}', OFFERS)
        + request("POST", "/v1/jobs", headers=chunked)
        + b'19\r\n{"queue":"java","id":"b"}\r\n0\r\n\r\n'
        + request("POST", "/v1/jobs", b'{"queue":"java","id":"c"}')
        + request("GET", "/v1/jobs/b", headers=OFFERS)
    )
    line = dial()
    for start in range(0, len(sent), piece):
        line.say(sent[start : start + piece])
    heard = [line.hear() for _ in range(6)]
    assert [one.status for one in heard] == [200, 200, 201, 201, 201, 200]
    assert not any(one.closed for one in heard)
    assert {job.id for job in queue.jobs(queue="java").jobs} == {"a", "b", "c"}


def test_many_offers_at_once_are_ignored(dial: Dial) -> None:
    line = dial()
    line.say(request("GET", "/healthz", headers=OFFERS) * 200)
    assert [line.hear().status for _ in range(200)] == [200] * 200


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("body", [b'{"tenant"', b""])
def test_a_body_behind_an_offer_is_waited_for(dial: Dial, queue: Queue, body: bytes) -> None:
    asked = request("POST", "/v1/queues/q/pause", body, OFFERS, length=15)
    with nothing_changes(queue):
        assert dial().say(asked).hear().status == 408


def test_a_body_behind_an_offer_has_its_limits(dial: Dial, queue: Queue) -> None:
    line = dial()
    body = b'{"queue":"q","payload":"' + b"x" * 33 * MB + b'"}'
    with nothing_changes(queue):
        assert line.say(request("POST", "/v1/jobs", body, OFFERS)).hear().status == 413
        trailers = b"0\r\n" + b"x-trailer: %s\r\n" % (b"y" * 100_000)
        line.say(request("POST", "/v1/jobs", headers=["Transfer-Encoding: chunked", *OFFERS]))
        with contextlib.suppress(OSError):
            assert line.say(trailers).hear().status == 431


# What clients rely on -----------------------------------------------------------------------------


def test_a_request_without_a_host_is_400_except_in_an_older_version(dial: Dial) -> None:
    heard = dial().say(b"GET /healthz HTTP/1.1\r\n\r\n").hear()
    assert (heard.status, heard.closed) == (400, True)
    assert heard.detail == "host: is missing"
    assert dial().say(b"GET /healthz HTTP/1.0\r\n\r\n").hear().status == 200


def test_a_client_of_an_older_version_may_keep_its_connection(dial: Dial) -> None:
    line = dial()
    for _ in range(3):
        asked = b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        heard = line.say(asked).hear()
        assert (heard.status, heard.headers["connection"]) == (200, "keep-alive")
    asked = b"GET /v1/events HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    head = b"".join(iter(line.say(asked)._file.readline, b"\r\n"))
    assert b"transfer-encoding" not in head  # only the end of the connection ends a stream
    assert b"connection: close" in head
    line = dial()
    heard = line.say(b"GET /healthz HTTP/1.0\r\n\r\n").hear()
    assert (heard.status, heard.closed) == (200, True)


def finished(line: Line) -> Line:
    """A connection whose client sends no more, and still reads."""
    line._socket.shutdown(socket.SHUT_WR)
    return line


def test_who_sends_no_more_still_gets_the_responses(dial: Dial, queue: Queue) -> None:
    asked = request("POST", "/v1/jobs", b'{"queue":"q","id":"last"}')
    line = finished(dial().say(asked))
    assert line.hear().status == 201
    assert line.is_closed()
    asked = request("POST", "/v1/jobs", b'{"queue":"q","id":"one"}') + request(
        "GET", "/v1/jobs/one"
    )
    line = finished(dial().say(asked * 1, request("GET", "/healthz") * 1_000, asked[:20]))
    assert [line.hear().status for _ in range(1_002)] == [201, 200] + [200] * 1_000
    assert line.is_closed(), "what is not complete has no response"


def test_who_sends_no_more_is_told_the_end_of_a_wait_at_once(
    dial: Dial, queue: Queue, waits: threading.Event
) -> None:
    """Somebody who has left looks the same, so nothing is claimed for it later."""
    for path, body in (
        ("/v1/claim", b'{"queues":["later"],"wait":60}'),
        ("/v1/jobs/ready/wait?timeout=60", b""),
    ):
        line = finished(dial().say(request("POST" if body else "GET", path, body)))
        assert line.hear().status == 200
        assert line.is_closed()
    queue.enqueue("later", id="kept")
    assert queue.get("kept").state == "pending"


@pytest.mark.parametrize(
    "asked",
    [
        b"hello\r\n\r\n",
        request("POST", "/v1/jobs", JOB, ["Host: other"]),
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 20_000,
    ],
)
def test_an_error_of_the_connection_has_the_headers_of_all_responses(
    dial: Dial, asked: bytes
) -> None:
    usual = dial().say(request("GET", "/v1/jobs/none")).hear().headers
    line = dial()
    with contextlib.suppress(OSError):
        line.say(asked)
    headers = line.hear().headers
    assert headers.keys() == usual.keys() | {"connection"}
    assert headers["x-request-id"].rpartition("-")[0] == usual["x-request-id"].rpartition("-")[0]
    own = request("POST", "/v1/jobs", JOB, ["X-Request-Id: mine", "Upgrade: a", "Host: b"])
    assert dial().say(own).hear().headers["x-request-id"] == "mine"


def test_what_the_api_responds_is_not_stored_by_caches(dial: Dial) -> None:
    for path in ("/v1/jobs/ready", "/v1/jobs/none", "/v1/nothing", "/healthz", "/metrics"):
        heard = dial().say(request("GET", path)).hear()
        assert heard.headers["cache-control"] == "no-store", path
    page = dial().say(request("GET", "/")).hear()
    assert page.headers["cache-control"] == "no-cache"


def test_a_method_that_nobody_knows_is_501(dial: Dial) -> None:
    for method in ("FETCH", "get", "X-1"):
        heard = dial().say(request(method, "/v1/jobs")).hear()
        assert (heard.status, "unknown_method" in heard.body.decode()) == (501, True), method
    assert dial().say(request("CONNECT", "/v1/jobs")).hear().status == 501
    assert dial().say(request("PROPFIND", "/v1/jobs")).hear().status == 405


# Paths and queries --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/jobs/%2F", 404),
        ("/v1/jobs/%00", 400),
        ("/v1/jobs/%ff", 400),
        ("/v1/jobs/%ED%A0%80", 400),
        ("/v1/jobs/" + "a" * 513, 400),
        ("/v1/jobs/" + "a" * 60_000, 400),
        ("/v1/jobs/" + "a/" * 10_000, 404),
        ("/v1/jobs/..", 404),
        ("/v1/../v1/jobs", 404),
        ("//v1/jobs", 404),
        ("/v1//jobs", 404),
        ("/v1/jobs//", 404),
        ("/V1/jobs", 404),
        ("/v1%2Fjobs", 404),
        ("/v1/jobs?limit=1&limit=2", 400),
        ("/v1/jobs?" + "&".join(f"p{n}=1" for n in range(8_000)), 400),
        ("/v1/jobs?limit=%ff", 400),
        ("/v1/jobs?queue=%00", 400),
        ("/v1/jobs?%00=1", 400),
        ("/v1/jobs?cursor=" + "9" * 60_000, 400),
    ],
)
def test_path_and_query_tricks_are_refused(dial: Dial, path: str, status: int) -> None:
    heard = dial().say(request("GET", path)).hear()
    assert (heard.status, len(heard.detail) < 1_000) == (status, True), heard


def test_a_name_may_hold_what_a_path_may_not(dial: Dial, queue: Queue) -> None:
    for id in ("a/b", "..", "a?b#c", "%2F", " ", "\u2028", "\x01", "\U0010ffff"):
        queue.enqueue("q", id=id)
        heard = dial().say(request("GET", f"/v1/jobs/{quote(id, safe='')}")).hear()
        assert heard.status == 200, id
