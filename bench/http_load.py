"""A load generator: connections that each send the next request when the last is answered."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Next = Callable[[bytes], bytes]  # the body of an answer -> the next request
HEAD = (
    "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    "content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
)


def request(path: str, body: bytes, method: str = "POST") -> bytes:
    """A request as it goes over the wire."""
    return HEAD.format(method=method, path=path, length=len(body)).encode() + body


class Talk(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self._answer: asyncio.Future[bytes] | None = None
        self._next: Next | None = None
        self._left = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def keep_asking(self, first: bytes, following: Next) -> None:
        """Send requests without a pause, until told to stop."""
        self._next = following
        self._send(first)

    def stop(self) -> None:
        self._next = None

    def ask(self, text: bytes) -> asyncio.Future[bytes]:
        """Send one request; the body of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._send(text)
        return self._answer

    def _send(self, text: bytes) -> None:
        self._sent_at = time.perf_counter()
        self.transport.write(text)

    def data_received(self, data: bytes) -> None:
        self._left += data
        end = self._left.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._left[:end].lower()
        at = head.index(b"content-length: ") + 16
        length = int(head[at:].split(b"\r\n", 1)[0])
        if len(self._left) < end + 4 + length:
            return
        body = self._left[end + 4 : end + 4 + length]
        self._left = b""
        if head[9:10] != b"2":
            error = RuntimeError(f"{head[:200]!r} {body[:500]!r}")
            if self._answer is None or self._answer.done():
                raise error
            self._answer.set_exception(error)
            return
        self.latencies.append(time.perf_counter() - self._sent_at)
        if self._next is not None:
            self._send(self._next(body))
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(body)


@asynccontextmanager
async def connected(port: int, connections: int) -> AsyncIterator[list[Talk]]:
    """Connections to a server of this machine, which are closed at the end."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Talk, "127.0.0.1", port) for _ in range(connections)]
    try:
        yield [talk for _, talk in made]
    finally:
        for transport, _ in made:
            transport.close()


async def rate(
    port: int, connections: int, first: bytes, following: Callable[[], Next], span: float
) -> float:
    """Answers in a second, with every connection asking as fast as it is answered."""
    async with connected(port, connections) as talks:
        for talk in talks:
            talk.keep_asking(first, following())
        began = time.perf_counter()
        await asyncio.sleep(span)
        answered = sum([len(talk.latencies) for talk in talks])
        took = time.perf_counter() - began
        for talk in talks:
            talk.stop()
        await asyncio.sleep(0.3)  # what is under way is answered
    return answered / took


async def latencies(talks: list[Talk], text: bytes, per_second: float, span: float) -> list[float]:
    """From when a request was due until it was answered, at a steady rate."""
    loop = asyncio.get_running_loop()
    free = list(talks)
    waiting: list[float] = []  # requests that are due, and no connection is free
    found: list[float] = []
    began = loop.time()

    async def one(talk: Talk, due: float) -> None:
        await talk.ask(text)
        found.append(loop.time() - due)
        free.append(talk)

    tasks: set[asyncio.Task[None]] = set()
    n = 0
    while n < per_second * span or waiting:
        while n < per_second * span and began + n / per_second <= loop.time():
            waiting.append(began + n / per_second)
            n += 1
        while waiting and free:
            task = loop.create_task(one(free.pop(), waiting.pop(0)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.0005)
    while tasks:
        await asyncio.gather(*tasks)
    return found
