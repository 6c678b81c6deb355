"""A request and its response, as a server passes them to the service.

There are two kinds: those of our own server (`http_exchange`), and those of any ASGI server, for a
service that is mounted in another application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote

Message = MutableMapping[str, Any]  # as ASGI defines them
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = tuple[tuple[bytes, bytes], ...]
Headers = dict[bytes, str]  # of a request; names are in lower case


NO_CONTENT = 204  # the status of a response without a body


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

    def trust(self) -> None:
        """Note that the client has shown a valid token."""

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

    def trust(self) -> None:
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
