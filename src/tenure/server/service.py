"""The service: an ASGI application over one queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.parse import unquote

from tenure.errors import Busy, Forbidden, NotFound, TenureError
from tenure.model.fields import is_trace
from tenure.model.job import Job
from tenure.observe.metrics import Metrics
from tenure.observe.tracing import CARRIED, serving
from tenure.queue import Calls, Queue, Store, store_of
from tenure.server.about import About
from tenure.server.auth import Origins, Token, Tokens, check_json
from tenure.server.checks import Checked, FairStore, Means
from tenure.server.dialects import NAMES
from tenure.server.docs_page import docs_page
from tenure.server.event_feed import Feed
from tenure.server.events import News
from tenure.server.exchange import (
    AsgiExchange,
    Exchange,
    Headers,
    Message,
    Receive,
    Send,
    id_of,
    usual_fields,
)
from tenure.server.idempotency import HEADER, answer_once
from tenure.server.openapi import openapi
from tenure.server.problems import NoSuchRoute, WrongMethod
from tenure.server.readiness import Pulse
from tenure.server.redaction import Redaction
from tenure.server.request_body import Incoming
from tenure.server.route import (
    ANY,
    Call,
    Reply,
    Route,
    Table,
    as_problem,
    encode,
    names_of,
    query_of,
)
from tenure.server.traffic import Line
from tenure.server.turns import Turns, check_there
from tenure.server.waiting import Rooms

T = TypeVar("T")
log = logging.getLogger("tenure.service")


class Request:
    """A request, and what is logged about it. Contents are never logged."""

    __slots__ = (
        *("began", "error", "headers", "id", "job", "method", "path", "token", "trace"),
        *("is_known", "who"),
    )

    def __init__(self, exchange: Exchange) -> None:
        self.began: float = time.perf_counter()
        self.method: str = exchange.method
        self.path: str = exchange.path
        self.headers: Headers = exchange.headers
        self.id: str = id_of(self.headers)
        self.trace: str = self.headers.get(b"traceparent", "")
        if self.trace and not is_trace(self.trace):
            self.trace = ""
        if self.trace or CARRIED.get():  # left by the previous request on this connection
            CARRIED.set(self.trace)
        self.job = self.token = self.error = ""
        self.who = ""  # the hash of the token
        self.is_known = False  # whether the token was accepted

    def log(self, status: int) -> None:
        """Log the request: failures of the service as warnings, all others for debugging."""
        level = logging.WARNING if status >= 500 else logging.DEBUG
        if log.isEnabledFor(level):
            about = {
                "request": self.id,
                "job": self.job,
                "token": self.token,
                "error": self.error,
                "status": status,
                "ms": round((time.perf_counter() - self.began) * 1000, 1),
            }
            known = {name: value for name, value in about.items() if value != ""}
            log.log(level, "%s %s: %d", self.method, self.path, status, extra=known)


# Responses a second to clients without a token, and the bytes that count as one more.
STRANGER_RATE, STRANGER_BURST, TURN_BYTES = 500, 100, 8_192

REASON = b"tenure-reason"  # the header that says why something is changed, for the audit log
COUNTED_BYTES = 16_384  # smaller requests and responses do not count as traffic
HEALTH = ("/healthz", "/readyz", "/health", "/ping")  # two are of dialects
TOO_MANY = Busy("too many requests without a valid token; try again later")
HELD_WEIGHT = 4  # of the CPU time of a decoder, which no other thread can interrupt
MANY_BYTES = 65_536  # of a body, from which on it is decoded in a thread


def dialect_of(route: Route) -> str | None:
    """The dialect that a route belongs to; None for the native API."""
    return route.tag if route.tag in NAMES else None


class Part:
    """The base of what a feature keeps while a service runs."""

    def __init__(self, queue: Queue, tokens: Tokens) -> None:
        self._queue = queue
        self._tokens = tokens

    def close(self) -> None:
        """The service ends."""


P = TypeVar("P", bound=Part)


class Service:
    """The ASGI application. `closing` is set when the service stops; long requests then end."""

    def __init__(
        self,
        queue: Queue,
        routes: Iterable[Route],
        tokens: Tokens,
        metrics: Metrics,
        *,
        allowed_hosts: Iterable[str] | None = None,
        max_body: int = 32 * 1_048_576,
        body_seconds: float = 30.0,
        about: About | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        self.queue = queue
        self.about: About = about or About()
        self.redaction: Redaction = redaction or Redaction(())
        self.table: Table = Table(routes)
        self.tokens = tokens
        self.metrics = metrics
        self._origins = Origins(allowed_hosts)
        self.max_body = max_body  # bytes
        self.body_seconds = body_seconds  # in which a body must arrive
        self.closing: asyncio.Event = asyncio.Event()
        self.news: News = News(queue)
        self.feed: Feed = Feed(queue)
        self._parts: dict[type, Part] = {}
        self.rooms: Rooms = Rooms(queue.changes)
        self.pulse: Pulse = Pulse(queue)
        self.means: Means = Means(queue, self.redaction, shared=tokens.required)
        self._strangers = Line(STRANGER_RATE, STRANGER_BURST)
        self._turns = Turns()
        self._queues: dict[str, tuple[Token, Calls]] = {}
        self._descriptions: dict[str | None, tuple[Reply, Reply]] = {}

    def description(self, dialect: str | None = None) -> tuple[Reply, Reply]:
        """The OpenAPI document and the docs page of the native API, or of a dialect. Cached, as
        they are slow to make and need no token. Raises NotFound."""
        if dialect not in self._descriptions:
            routes = [one for one in self.table.routes if dialect_of(one) == dialect]
            if not routes:
                raise NotFound(f"there is no dialect {dialect!r}")
            document = openapi(routes, version("tenure"))
            others = list(dict.fromkeys(filter(None, map(dialect_of, self.table.routes))))
            page = docs_page(document, dialect, others)
            self._descriptions[dialect] = Reply(encode(document)), page
        return self._descriptions[dialect]

    def finish(self) -> None:
        """End long polls and streams. Later requests do not wait."""
        self.closing.set()
        self.rooms.wake_all()
        self.feed.wake()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self.serve(AsgiExchange(scope, receive, send))
        else:  # websockets are not supported
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def part(self, kind: type[P]) -> P:
        """What a feature keeps while the service runs: one of each kind, made when it is needed."""
        part = self._parts.get(kind)
        if part is None:
            part = self._parts[kind] = kind(self.queue, self.tokens)
        assert isinstance(part, kind)
        return part

    def close(self) -> None:
        """End long polls and streams, and stop listening for changes."""
        self.closing.set()
        self.news.close()
        self.feed.close()
        for part in self._parts.values():
            part.close()
        self.rooms.close()
        self.means.close()

    async def serve(self, exchange: Exchange) -> None:
        """Answer a request."""
        request = Request(exchange)
        incoming = Incoming(exchange, self.max_body, self.body_seconds)
        reply: Reply | None
        if exchange.is_stalled:
            await exchange.drained()  # so a client that does not read gets no more data prepared
        found = self.table.find(request.method, request.path)
        forged = self._forged(request)
        if forged is not None:
            reply = found[0].show_error(forged) if found else as_problem(forged)
        elif found is None:
            reply = self._not_found(request.method, request.path)
        else:
            route, params = found
            with serving(route.method, route.path, request.trace) as span:
                try:
                    reply = await self._reply(request, route, params, incoming, exchange)
                finally:
                    incoming.free()
                if span is not None and reply is not None:
                    span.set_attribute("http.response.status_code", reply.status)
        if reply is not None:
            is_served = True
            if not request.is_known:
                is_served = await self._take_turn(exchange, reply)
                if not is_served:
                    request.error = TOO_MANY.code
                    reply = found[0].show_error(TOO_MANY) if found else as_problem(TOO_MANY)
            elif len(reply.body) > COUNTED_BYTES:
                self.means.traffic[request.who].pace.spend(len(reply.body))
            # Close the connection when the service stops, or if the rest of the body is not read.
            last = self.closing.is_set() or not is_served
            last = last or not (incoming.is_over or await incoming.ends())
            request.log(reply.status)
            fields = usual_fields(reply.status, reply.media_type)
            if reply.headers:
                stored = "cache-control" in reply.headers
                fields = usual_fields(reply.status, reply.media_type, stored=stored)
                fields += tuple((a.encode(), b.encode()) for a, b in reply.headers.items())
            sending = exchange.answer(reply.status, fields, request.id, reply.body, last=last)
            if sending is not None:
                await sending
            if request.is_known and exchange.unread():
                self.means.traffic[request.who].sent(exchange)

    async def _take_turn(self, exchange: Exchange, reply: Reply) -> bool:
        """Wait until a client without a token may get a response. Returns whether it may: not if
        too many wait. Health checks never wait, and who has left is not counted."""
        if exchange.path in HEALTH or exchange.is_gone:
            return True
        turns = 1 + len(reply.body) // TURN_BYTES
        return await self._strangers.turn(turns, lambda: exchange.has_left)

    def _forged(self, request: Request) -> TenureError | None:
        """The error if a web page of another site may have sent the request, else None."""
        try:
            self._origins.check(request.method, request.headers)
        except TenureError as error:
            request.error = error.code
            return error
        return None

    def _not_found(self, method: str, path: str) -> Reply:
        routes = self.table.routes_at(path)
        if not routes:
            return as_problem(NoSuchRoute(f"there is no {method} {path[:200]}; see /docs"))
        error = WrongMethod(method, [name for route in routes for name in _methods(route)])
        reply = routes[0].show_error(error)
        reply.headers = {"allow": error.allowed}
        return reply

    def _queue_of(self, token: Token) -> Calls:
        known = self._queues.get(token.hash)
        if known is not None and known[0] == token:
            return known[1]
        queue = self.queue_for(token, redacted=True)
        self._queues[token.hash] = token, queue
        return queue

    def fair_store(self, token: Token) -> Store:
        """The store with no limits, except for a token's share of the readers."""
        return FairStore(store_of(self.queue), self.means, token.hash)

    def queue_for(
        self, token: Token, *, acts_for_dialect: bool = False, redacted: bool = False
    ) -> Calls:
        """The queue, limited to what a token may do and to its share of the service."""
        store = store_of(self.queue)
        return Calls(
            Checked(store, token, self.means, acts_for_dialect=acts_for_dialect, redacted=redacted)
        )

    async def _reply(
        self,
        request: Request,
        route: Route,
        params: dict[str, str],
        incoming: Incoming,
        exchange: Exchange,
    ) -> Reply | None:
        """Have the handler of a route answer a request. None: it has sent a stream."""
        try:
            call = self._call(request, route, params, incoming, exchange)
            arguments: list[Any] = [call]
            if route.query is not None:
                arguments.append(route.read_query(call.query))
            announced, body = incoming.is_announced, b""
            if announced or route.body is not None:
                if route.body is not None and announced:
                    check_json(request.headers)
                traffic = self.means.traffic.get(request.who)  # none yet, of most tokens
                if traffic is not None:
                    await traffic.pace.ready()
                arrived = incoming.arrived()
                body = await incoming.read() if arrived is None else arrived
                call.body_size = len(body)
                if len(body) > COUNTED_BYTES:
                    self.means.traffic[request.who].pace.spend(len(body))
            if request.is_known and not self._turns.may_begin():
                await self._turns.turn(request.who, exchange)
            # Otherwise the body is ignored, but an incomplete request must change nothing.
            if route.body is not None:
                if len(body) > MANY_BYTES:
                    read = partial(route.read, body)
                    work = self.means.in_thread(request.who, read, weight=HELD_WEIGHT)
                    arguments.append(await work)
                else:
                    arguments.append(route.read(body))
            check_there(exchange)
            if route.streams:
                return await _stream(route, arguments, exchange)
            if route.takes_key and request.headers.get(HEADER) is not None:
                query = exchange.query
                return await answer_once(call, route, request.path, query, arguments, body)
            value = await route.handler(*arguments)
            if isinstance(value, Job):
                request.job = value.id
            return route.write(value)
        except TenureError as error:
            request.error = error.code
            return route.show_error(error)
        except Exception:
            log.exception(
                "%s %s failed", request.method, request.path, extra={"request": request.id}
            )
            request.error = "internal"
            return route.show_error(TenureError(f"internal error; the log has it as {request.id}"))

    def _call(
        self,
        request: Request,
        route: Route,
        params: dict[str, str],
        incoming: Incoming,
        exchange: Exchange,
    ) -> Call:
        """The request as its handler gets it; raises Unauthorized or Forbidden."""
        queue: Calls = self.queue
        token = None
        if route.scope is not None:
            token = self.tokens.of(request.headers, exchange.address)
            request.who, request.is_known = token.hash, True
            request.token = token.name if self.tokens.required else ""
            incoming.trust(token.hash, self.means.bodies[token.hash])
            if route.scope != ANY and not token.allows(route.scope):
                raise Forbidden(f"{route} needs the scope {route.scope.value!r}")
            queue = self._queue_of(token)
            reason = request.headers.get(REASON)
            if reason is not None:
                queue = queue.audited(reason=unquote(reason))
        is_read = exchange.query and (token is not None or route.query is not None)
        query = query_of(exchange.query) if is_read else {}
        if params:
            params = names_of(params)
            request.job = params.get("id", "")
        return Call(
            self,
            token,  # type: ignore[arg-type]
            queue,
            params,
            query,
            request.headers,
            exchange.receive,
        )


async def _stream(route: Route, arguments: list[Any], exchange: Exchange) -> Reply | None:
    if exchange.method == "HEAD":
        return Reply(b"", media_type=route.media_type)
    await route.handler(*arguments, exchange.receive, exchange.send)
    return None


def _methods(route: Route) -> list[str]:
    return ["GET", "HEAD"] if route.method == "GET" else [route.method]
