"""The service: an ASGI application over one queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from tenure.errors import Forbidden, TenureError
from tenure.queue import Queue
from tenure.server.auth import Tokens
from tenure.server.events import News
from tenure.server.guard import Guarded
from tenure.server.problems import RETRY_AFTER, BodyTooLarge, NoSuchRoute, TooSlow
from tenure.server.route import (
    ANY,
    Call,
    Reply,
    Route,
    Shown,
    Table,
    as_problem,
    names_of,
    query_of,
)

log = logging.getLogger("tenure.service")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_SECONDS = 30.0  # that a request may take to arrive


class Service:
    """Answers requests. What it is told on the way down (`closing`) ends the long ones."""

    def __init__(
        self,
        queue: Queue,
        routes: Iterable[Route],
        tokens: Tokens,
        metrics: Any,
        *,
        max_body: int = 32 * 1_048_576,
    ) -> None:
        self.queue = queue
        self.table = Table(routes)
        self.tokens = tokens
        self.metrics = metrics
        self.max_body = max_body
        self.closing = asyncio.Event()
        self.news = News(queue)
        self._guards: dict[str, Guarded] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                self.closing.set()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        show: Shown = as_problem
        reply: Reply | None
        try:
            route, params = self._find(scope["method"], _path(scope))
            show = route.show_error
            reply = await self._handle(route, params, scope, receive, send)
        except TenureError as error:
            reply = show(error)
        except Exception:
            request_id = uuid4().hex
            log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            reply = show(
                TenureError(f"this should not have happened; the log has it as {request_id}")
            )
        if reply is not None:
            await _send(send, reply, scope["method"] == "HEAD")

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        return self.table.find("GET" if method == "HEAD" else method, path)

    async def _handle(
        self,
        route: Route,
        params: dict[str, str],
        scope: Message,
        receive: Receive,
        send: Send,
    ) -> Reply | None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        queue: Queue = self.queue
        token = None
        if route.scope is not None:
            token = self.tokens.who(headers.get("authorization"))
            if route.scope != ANY and not token.allows(route.scope):
                raise Forbidden(f"{route} needs the scope {route.scope.value!r}")
            queue = self._guards.setdefault(token.hash, Guarded(self.queue, token))
        query = query_of(scope["query_string"]) if scope["query_string"] else {}
        names = names_of(params)
        call = Call(self, token, queue, names, query, headers)  # type: ignore[arg-type]
        arguments: list[Any] = [call]
        if route.query is not None:
            arguments.append(route.read_query(query))
        if route.body is not None:
            arguments.append(route.read(await self._body(headers, receive)))
        if route.streams:
            await route.handler(*arguments, receive, send)
            return None
        return route.write(await route.handler(*arguments))

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self.max_body:
            raise BodyTooLarge(f"the body is {int(length):,} bytes; at most {self.max_body:,}")
        message = await receive()
        if not message.get("more_body"):
            body: bytes = message.get("body", b"")
        else:
            body = await self._rest(message, receive)
        if len(body) > self.max_body:
            raise BodyTooLarge(f"the body is over {self.max_body:,} bytes")
        return body

    async def _rest(self, message: Message, receive: Receive) -> bytes:
        """A body that comes in pieces, up to a size and a time."""
        parts = [message.get("body", b"")]
        size = len(parts[0])
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while message.get("more_body") and size <= self.max_body:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise TooSlow("the client went away before its request was complete")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {BODY_SECONDS:g} s") from None
        return b"".join(parts)


def _path(scope: Message) -> str:
    """The path as it was sent; raises NoSuchRoute."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        return raw.partition(b"?")[0].decode("ascii")
    except UnicodeDecodeError:
        raise NoSuchRoute("the path is not ASCII") from None


async def _send(send: Send, reply: Reply, only_head: bool) -> None:
    headers: list[tuple[bytes, bytes]] = []
    if reply.status != 204:  # which has no body to speak of
        headers.append((b"content-type", reply.media_type.encode()))
        headers.append((b"content-length", str(len(reply.body)).encode()))
    if reply.status in RETRY_AFTER:
        headers.append((b"retry-after", RETRY_AFTER[reply.status].encode()))
    if reply.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    headers += [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    with suppress(OSError):  # the client went away
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if only_head else reply.body})
