"""A request and its response, as a server passes them to the service.

There are two kinds: those of our own server (`http_exchange`), and those of any ASGI server, for a
service that is mounted in another application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote

Message = MutableMapping[str, Any]  # as ASGI defines them
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Fields = list[tuple[bytes, bytes]]


class Headers:
    """The headers of a request. Values are decoded when they are used."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]] = ()) -> None:
        """raw: names are in lower case."""
        self._raw: Mapping[bytes, bytes] = raw if isinstance(raw, dict) else dict(raw)

    def get(self, name: bytes) -> str | None:
        """The value of a header, by its name in lower case."""
        value = self._raw.get(name)
        return None if value is None else value.decode("latin-1")


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

    async def answer(self, status: int, headers: Fields, body: bytes, *, last: bool) -> None:
        """Send the whole response. last: close the connection after it."""


class AsgiExchange:
    """A request that came through an ASGI server."""

    __slots__ = ("_receive", "_send", "address", "headers", "is_gone", "method", "path", "query")

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = _path(scope)
        self.query: bytes = scope["query_string"]
        self.headers: Headers = Headers(scope["headers"])
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

    async def answer(self, status: int, headers: Fields, body: bytes, *, last: bool) -> None:
        if last:
            headers = [*headers, (b"connection", b"close")]
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
