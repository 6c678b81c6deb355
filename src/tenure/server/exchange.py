"""A request and its response, as a server passes them to the service.

There are two kinds: those of our own server, and those of any ASGI server, for a service that is
mounted in another application.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from tenure.errors import TenureError
from tenure.server.problems import RETRY_AFTER

if TYPE_CHECKING:
    from tenure.server.connection import Connection

log = logging.getLogger("tenure.service")

Message = MutableMapping[str, Any]  # as ASGI defines them
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = tuple[tuple[bytes, bytes], ...]
Headers = dict[bytes, str]  # of a request; names are in lower case


NO_CONTENT = 204  # the status of a response without a body
NOSNIFF = (b"x-content-type-options", b"nosniff")
NO_STORE = (b"cache-control", b"no-store")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_START, _NUMBERS = secrets.token_hex(4), itertools.count(1)


def id_of(headers: Headers) -> str:
    """The id of a request: that of its header, or a new one."""
    given = headers.get(b"x-request-id")
    return given if given and _REQUEST_ID.fullmatch(given) else f"{_START}-{next(_NUMBERS)}"


@lru_cache(maxsize=1_000)
def usual_fields(status: int, media_type: str, *, stored: bool = False) -> Fields:
    """The headers that all responses of a kind have. stored: the response itself says how caches
    may store it."""
    fields = [NOSNIFF] if stored else [NOSNIFF, NO_STORE]
    if status != NO_CONTENT:
        fields.append((b"content-type", media_type.encode()))
    if status in RETRY_AFTER:
        fields.append((b"retry-after", RETRY_AFTER[status].encode()))
    if status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    return tuple(fields)


class Exchange(Protocol):
    """A request, and the way to answer it."""

    method: str
    path: str  # as it was sent, percent-encoded; without the path that an app is mounted at
    query: bytes
    headers: Headers
    address: str | None  # of the client
    is_gone: bool  # the client, as far as the server can tell; or its request was refused

    @property
    def is_stalled(self) -> bool:
        """Whether the client has not read most of what was sent before on its connection."""

    def body(self) -> bytes | None:
        """The body, if it has arrived completely and the server can tell."""

    @property
    def has_left(self) -> bool:
        """Whether the client has left or sends no more, which looks the same."""

    def trust(self, who: str) -> None:
        """Note that the client has shown a valid token. Raises Busy if that has too many
        connections."""

    def unread(self) -> int:
        """How many bytes the client has not read yet, as far as the server can tell."""

    async def drained(self) -> None:
        """Wait while it is stalled."""

    async def receive(self) -> Message:
        """The next part of the body, or that the client disconnected."""

    async def send(self, message: Message) -> None:
        """Send a part of a response that is a stream. Raises OSError if the client has left."""

    def answer(
        self, status: int, fields: Fields, id: str, body: bytes, *, last: bool
    ) -> Awaitable[None] | None:
        """Send the whole response. Returns what to await, if anything. fields: its headers, except
        for the id of the request and the length of the body. last: close the connection after
        it."""


class AsgiExchange:
    """A request that came through an ASGI server."""

    __slots__ = ("_receive", "_send", "address", "headers", "is_gone", "method", "path", "query")

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = _path(scope)
        self.query: bytes = scope["query_string"]
        self.headers: Headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        client = scope.get("client")
        self.address: str | None = client[0] if client else None
        self.is_gone: bool = False
        self._receive = receive
        self._send = send

    @property
    def is_stalled(self) -> bool:
        return False  # `send` waits

    def body(self) -> bytes | None:
        return None

    @property
    def has_left(self) -> bool:
        return self.is_gone

    def trust(self, who: str) -> None:
        """Do nothing: the server counts its connections itself."""

    def unread(self) -> int:
        return 0

    async def drained(self) -> None:
        """Do nothing."""

    async def receive(self) -> Message:
        return await self._receive()

    async def send(self, message: Message) -> None:
        await self._send(message)

    async def answer(
        self, status: int, fields: Fields, id: str, body: bytes, *, last: bool
    ) -> None:
        headers = [(b"x-request-id", id.encode()), *fields]
        if status != NO_CONTENT:
            headers.append((b"content-length", b"%d" % len(body)))
        if last:
            headers.append((b"connection", b"close"))
        if self.method == "HEAD":
            body = b""
        with suppress(OSError):  # the client went away
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})


def _path(scope: Message) -> str:
    """The path as it was sent, percent-encoded, without the path that an app is mounted at. Paths
    that are not ASCII match no route."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    root: str = scope.get("root_path", "").rstrip("/")
    if root and f"{scope['path']}/".startswith(f"{root}/"):  # some frameworks have removed it
        parts = path.split("/", root.count("/") + 1)
        path = f"/{parts[-1]}" if len(parts) > root.count("/") + 1 else "/"
    return path


# Over one of our own connections ------------------------------------------------------------------

STATUS_LINES = {
    one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode("ascii") for one in HTTPStatus
}
MOST_UNREAD = 65_536  # bytes of a body that are kept until the service asks for more


class HttpExchange:
    """One request and its response. `Connection` calls `add_body`, `end_body` and `leave`."""

    __slots__ = (
        *("address", "headers", "method", "path", "query"),
        *("_asks_first", "_connection", "_ended", "_news", "_parts", "_size", "_waiter"),
        *(
            "_chunked",
            "_hurried",
            "is_answered",
            "is_begun",
            "is_gone",
            "is_last",
            "is_served",
            "task",
        ),
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        query: bytes,
        headers: Headers,
        *,
        version: str,
        last: bool,
    ) -> None:
        self.method: str = method
        self.path: str = path
        self.query: bytes = query
        self.headers: Headers = headers
        self.address: str | None = connection.address
        self.task: asyncio.Task[None] | None = None  # kept, as event loops do not keep tasks
        self.is_served: bool = False  # the service has begun with it
        self.is_begun: bool = False  # the response
        self.is_answered: bool = False
        self.is_last: bool = last  # on its connection
        self._connection = connection
        self._parts: list[bytes] = []  # of the body, not yet asked for
        self._size = 0  # of these
        self._ended = False  # the body
        self.is_gone: bool = False  # the client
        self._hurried = False
        self._news = False  # whether `receive` has something to return
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = version == "1.1"  # the response, if it is a stream
        # Older clients take it for the response.
        self._asks_first = (
            b"expect" in headers and headers[b"expect"].lower() == "100-continue" and self._chunked
        )

    # What the connection reports -----------------------------------------------------------------

    def add_body(self, part: bytes) -> None:
        if self.is_answered or self.is_gone:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > MOST_UNREAD:
            self._connection.pause_if_served(self)
        self._news = True
        if self._waiter is not None:
            self._wake()

    def end_body(self) -> None:
        self._ended = self._news = True
        if self._waiter is not None:
            self._wake()

    def leave(self) -> None:
        """Note that the client has left, or that the connection has sent an error itself."""
        self.is_gone = self._news = True
        if self._waiter is not None:
            self._wake()

    def hurry(self) -> None:
        """End a wait: the client sends no more, and may have left, or its connection is needed. It
        still gets its response."""
        self._hurried = True
        if self._waiter is not None and self._ended:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # While it is served --------------------------------------------------------------------------

    async def serve(
        self, serve: Callable[[Exchange], Awaitable[None]], running: set[HttpExchange]
    ) -> None:
        """Let the service answer it. running: has it meanwhile."""
        running.add(self)
        self.is_served = True
        try:
            await serve(self)
        except Exception:
            log.exception("%s %s failed", self.method, self.path)
            self.fail()
        finally:
            self.task = None  # they refer to each other
            running.discard(self)
            self.abandon()

    # What the service asks for -------------------------------------------------------------------

    def body(self) -> bytes | None:
        if not self._ended or self.is_gone:
            return None
        self._news = False  # from now on `receive` waits until the client disconnects
        return self._take()

    def _take(self) -> bytes:
        parts, self._parts, self._size = self._parts, [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def is_stalled(self) -> bool:
        return self._connection.is_stalled

    @property
    def has_left(self) -> bool:
        return self.is_gone or self._connection.is_ended

    def trust(self, who: str) -> None:
        self._connection.trust(who)

    def unread(self) -> int:
        return self._connection.unread()

    async def drained(self) -> None:
        await self._connection.drained()

    async def receive(self) -> Message:
        if self._asks_first and not self.is_begun and not self._ended:
            self._asks_first = False
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self._is_over or self._news or (self._hurried and self._ended)):
            self._connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._is_over or not self._news:
            return {"type": "http.disconnect"}
        self._news = False
        return {"type": "http.request", "body": self._take(), "more_body": not self._ended}

    @property
    def _is_over(self) -> bool:
        return self.is_gone or self.is_answered

    # The response --------------------------------------------------------------------------------

    def answer(self, status: int, fields: Fields, id: str, body: bytes, *, last: bool) -> None:
        if self.is_gone or self.is_answered or self.is_begun:
            return  # an error in a stream must not look like a part of it
        self.is_begun = True
        head = head_of(status, fields, id, body)
        if last or self.is_last:
            self.is_last = True
            head.append(b"connection: close\r\n")
        elif not self._chunked:  # clients of HTTP/1.0 expect the end of the connection
            head.append(b"connection: keep-alive\r\n")
        self._connection.write(b"".join([*head, b"\r\n", b"" if self.method == "HEAD" else body]))
        self._finish()

    async def send(self, message: Message) -> None:
        await self._connection.drained()
        if self._is_over:
            raise ConnectionResetError("the client has left")
        if message["type"] == "http.response.start":
            head = [_head(message["status"], tuple(message["headers"])), _date()]
            if self._chunked:
                head.append(b"transfer-encoding: chunked\r\n")
            else:
                self.is_last = True  # nothing else tells the end
            if self.is_last:
                head.append(b"connection: close\r\n")
            self.is_begun = True
            self._connection.write(b"".join([*head, b"\r\n"]))
            return
        body: bytes = message["body"]
        if body:
            self._connection.write(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)
        if not message.get("more_body", False):
            if self._chunked:
                self._connection.write(b"0\r\n\r\n")
            self._finish()

    def fail(self) -> None:
        """Send an error, unless the service has already responded."""
        if not self._is_over:
            self._connection.refuse(TenureError("internal error; see the log"))

    def abandon(self) -> None:
        """Close the connection if the service has ended without a complete response."""
        if not self._is_over:
            self._connection.drop()

    def _finish(self) -> None:
        self.is_answered = self._news = True
        if self._waiter is not None:
            self._wake()
        self._connection.answered(self)


def head_of(status: int, fields: Fields, id: str, body: bytes) -> list[bytes]:
    """The head of a whole response, without its end."""
    head = [_head(status, fields), _date(), b"x-request-id: ", id.encode(), b"\r\n"]
    if status != NO_CONTENT:
        head.append(b"content-length: %d\r\n" % len(body))
    return head


@lru_cache(maxsize=1_000)
def _head(status: int, fields: Fields) -> bytes:
    """The start of a response. Most responses have one of a few."""
    return STATUS_LINES[status] + b"".join([b"%b: %b\r\n" % field for field in fields])


_dated = (0, b"")


def _date() -> bytes:
    """The Date header, made once a second."""
    global _dated
    now = int(time.time())
    if now != _dated[0]:
        _dated = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode("ascii")
    return _dated[1]
