"""A request and its response, as a server passes them to the service.

There are two kinds: those of our own server (`http_exchange`), and those of any ASGI server, for a
service that is mounted in another application.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote

from tenure.server.problems import RETRY_AFTER

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
