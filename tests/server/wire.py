"""A service on a real socket, as it is hosted, and clients that send what no library would."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from tenure.server.connections import Connections
from tenure.server.exchange import Exchange
from tenure.server.http_server import HttpServer
from tenure.server.service import Service

PATIENCE = 30.0


class Tls(NamedTuple):
    """What the two sides of a connection need."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class Watched:
    """A service, and how many requests it is through with."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.ended = threading.Semaphore(0)

    async def serve(self, exchange: Exchange) -> None:
        try:
            await self._service.serve(exchange)
        finally:
            self.ended.release()


@contextmanager
def hosted(
    service: Watched,
    connections: Connections | None = None,
    tls: Tls | None = None,
) -> Iterator[Dial]:
    """A service in a thread of its own; answers with what connects to it."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    lines: list[Line] = []
    stops: list[Callable[[], object]] = []
    started = threading.Event()

    async def main() -> None:
        server, end, loop = (
            HttpServer(service, connections),
            asyncio.Event(),
            asyncio.get_event_loop(),
        )
        await server.start([listener], tls and tls.server)
        stops.append(lambda: loop.call_soon_threadsafe(end.set))
        started.set()
        await end.wait()
        await server.stop(PATIENCE)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="hosted")

    def dial() -> Line:
        lines.append(Line(listener.getsockname()[1], tls and tls.client))
        return lines[-1]

    thread.start()
    assert started.wait(PATIENCE)
    try:
        yield dial
        assert dial().say(request("GET", "/healthz")).hear().status == 200  # it lives on
    finally:
        for line in lines:
            line.hang_up()
        for stop in stops:
            stop()
        thread.join(PATIENCE)


class Heard(msgspec.Struct):
    """What came back: its status, headers and body; and whether the service hung up."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool

    @property
    def detail(self) -> str:
        """What an error says."""
        assert self.headers["content-type"] == "application/problem+json", self
        detail: str = msgspec.json.decode(self.body)["detail"]
        return detail


class Line:
    """A connection."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._file = self._socket.makefile("rb")

    def say(self, *parts: bytes) -> Line:
        for part in parts:
            self._socket.sendall(part)
        return self

    def hear(self) -> Heard:
        """The next answer."""
        first = self._file.readline()
        assert first.startswith(b"HTTP/1.1 "), first
        status = int(first.split()[1])
        headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = self._file.read(int(headers.get("content-length", "0")))
        closed = headers.get("connection") == "close" and self.is_closed()
        return Heard(status, headers, body, closed)

    def is_closed(self) -> bool:
        """Whether the service hangs up without a word."""
        try:
            return self._file.read() == b""
        except ConnectionResetError:  # it had not read all
            return True

    def hang_up(self) -> None:
        self._file.close()
        self._socket.close()


Dial = Callable[[], Line]


def request(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[str] = (),
    length: int | None = None,
) -> bytes:
    """A request; length: what is said of the body's."""
    lines = [f"{method} {path} HTTP/1.1", "Host: tenure", *headers]
    if not any(line.lower().startswith("content-type:") for line in headers):
        lines.append("Content-Type: application/json")
    if body or length is not None:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body
