"""One HTTP/1.1 connection, with limits on what a client may send and hold.

It is idle, reading headers, or serving a request. Every state has a deadline, checked by one timer;
bodies have their own (see `Incoming`), and so do clients that do not read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import httptools

from tenure.errors import InvalidInput, TenureError
from tenure.server.exchange import Headers, HttpExchange, head_of, id_of, usual_fields
from tenure.server.problems import HeadTooLarge, TooSlow, UnknownMethod
from tenure.server.route import as_problem

if TYPE_CHECKING:
    from tenure.server.http_server import HttpServer

log = logging.getLogger("tenure.service")

# Headers that a proxy and the service must not read differently: they may be sent once. The parser
# itself refuses a second Content-Length.
_ONCE = frozenset(
    {
        *(b"authorization", b"content-encoding", b"content-type", b"host", b"idempotency-key"),
        *(b"origin", b"sec-fetch-site", b"transfer-encoding"),
    }
)

_PER_HEADER = len(": \r\n")

# Bytes that are parsed before looking whether requests wait. A request of 18 bytes becomes an
# object of 450, and one read can bring 256 KB.
PARSED_AT_ONCE = 4_096

SHORT_URL = 200  # bytes of URLs that are remembered
_REQUEST_LINE = re.compile(rb"([!#-'*+.^-`|~0-9A-Za-z-]+) [!-~]+ HTTP/1\.[01]\r\n")


class Connection(asyncio.Protocol):
    """Parses requests with httptools, and has the server handle them one after the other."""

    max_head = 65_536  # bytes of a request line and its headers, or anything else but a body
    max_held = 2 * 65_536  # bytes behind a request that waits; then nothing more is read
    head_seconds = 30.0  # for these to arrive, and for the first request to begin
    idle_seconds = 75.0  # between requests; longer than load balancers keep an idle connection
    stall_seconds = 30.0  # in which a client must read at least `stall_bytes`
    stall_bytes = 65_536

    def __init__(
        self,
        server: HttpServer,
        loop: asyncio.AbstractEventLoop,
        on_made: Callable[[], None] = lambda: None,
    ) -> None:
        """on_made: called when the connection is made, and its handshake finished if it uses
        TLS."""
        self.address: str | None = None  # of the client
        self._server = server
        self._loop = loop
        self._on_made = on_made
        self._parser = self._new_parser()
        self._resumes = False  # the parser is replaced, in the middle of a request
        self._url = b""
        self._headers: Headers = {}
        self._repeated_size = 0  # bytes of headers of the current head that were sent again
        self._arriving: HttpExchange | None = None  # whose body is being read
        self._exchange: HttpExchange | None = None  # being served
        self._pipeline: deque[HttpExchange] = deque()  # to be served after it
        self._held = b""  # what arrived after these, not parsed yet
        self._in_head = False
        self._in_message = False
        self._served = False  # at least one request
        self._not_body = 0  # bytes received since the last byte of a body
        self._since = loop.time()  # when the current state began
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._who: str | None = None  # the last token
        self._is_deaf = False  # what arrives is dropped
        self.is_ended: bool = False  # the client sends no more
        self._reads = True
        self.is_stalled: bool = False  # writing is paused
        self._drain: asyncio.Future[None] | None = None  # meanwhile

    # A connection --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # not a base of uvloop's
        self.write: Callable[[bytes], None] = self._transport.write
        # How many bytes the client has not read yet.
        self.unread: Callable[[], int] = self._transport.get_write_buffer_size
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else None
        self._look_later(min(self.head_seconds, self.idle_seconds))
        self._on_made()
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None
        if self._exchange is not None:
            self._exchange.leave()
        self._pipeline.clear()
        self._resume_drained()
        del self._parser  # it refers to this object

    def trust(self, who: str) -> None:
        """Note that the client has shown a valid token: its connection is kept. Raises Busy if the
        token has too many."""
        if who != self._who:
            self._server.connections.trust(self, who)
            self._who = who

    @property
    def is_idle(self) -> bool:
        return self._exchange is None and not self._in_message

    def drop(self) -> None:
        """Close the connection at once, without writing what is left."""
        self._transport.abort()

    def stop(self) -> None:
        """Close the connection, after the response to the current request if there is one. Nothing
        is waited for."""
        if self._exchange is None:
            self._transport.close()
        else:
            self._exchange.is_last = True
            self._exchange.hurry()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Data after a request that asks to close the connection is dropped, not an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # Reading -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PARSED_AT_ONCE):
            if self._is_deaf or self._transport.is_closing():
                return
            if self._pipeline or self._held:
                self._hold(data[start:])
                return
            self._parse(data[start : start + PARSED_AT_ONCE])

    def _parse(self, data: bytes) -> None:
        self._not_body += len(data)
        begins = not self._in_message
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, TenureError):
                self._reject(error.__context__)
                return
            self._in_head = False
            line = _REQUEST_LINE.match(data) if begins and self._exchange is None else None
            if line and isinstance(error, httptools.HttpParserInvalidMethodError):
                self._reject(UnknownMethod(line[1].decode("ascii")))
            else:
                self._reject(_not_understood())
            return
        if self._not_body > self.max_head:
            self._reject(self._head_too_large())

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._decline()
            else:
                return

    def _decline(self) -> None:
        """Go on as if the client had not offered another protocol. The parser takes all that
        follows for that protocol, even the body, so another one continues."""
        self._parser = self._new_parser()
        if self._resumes:
            assert self._arriving is not None
            headers = self._arriving.headers
            length = headers.get(b"content-length")
            body = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
            self._parser.feed_data(f"POST / HTTP/1.1\r\n{body}\r\n\r\n".encode("ascii"))
            self._resumes = self._in_head = False

    def eof_received(self) -> bool:
        """The client sends no more, and may have left. Requests that have arrived still get their
        responses, except that none of them waits for anything any more."""
        self.is_ended = True
        if self._exchange is None or self._transport.get_extra_info("sslcontext") is not None:
            return False
        self._exchange.hurry()
        if not self._held:
            self._forget_incomplete()
        return not self._transport.is_closing()

    def _forget_incomplete(self) -> None:
        """Drop the request whose rest will not arrive."""
        if self._arriving is not None and self._arriving is not self._exchange:
            self._pipeline.remove(self._arriving)
            self._arriving = None
        if self._exchange is None or self._exchange is self._arriving:
            self._transport.close()

    def _hold(self, data: bytes) -> None:
        """Buffer what arrives while a request waits behind another one, up to a limit. Reading goes
        on, because it is how a disconnect is noticed."""
        self._held += data
        if len(self._held) > self.max_held:
            self.pause_reading()

    def _parse_held(self) -> None:
        if not self._pipeline and not self._transport.is_closing():
            data, self._held = self._held, b""
            self._since = self._loop.time()  # it was not the client that kept a head waiting
            self.resume_reading()
            self.data_received(data)
            if self.is_ended and not self._held:
                self._forget_incomplete()

    def pause_if_served(self, exchange: HttpExchange) -> None:
        """Stop reading the body of the request that is being served. What arrives for those that
        wait is held instead."""
        if exchange is self._exchange:
            self.pause_reading()

    def pause_reading(self) -> None:
        if self._reads and not self.is_ended:
            self._reads = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reads and len(self._held) <= self.max_held:
            self._reads = True
            self._transport.resume_reading()

    # What the parser calls -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._not_body = 0
        self._since = self._loop.time()
        self._url = b""
        self._headers = {}
        self._repeated_size = 0

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self._headers:
            self._repeat(name)
        self._headers[name] = value.decode("latin-1")

    def _repeat(self, name: bytes) -> None:
        """Note that a header is sent again."""
        if self._in_head:  # otherwise it is a trailer, which is dropped
            if name in _ONCE:
                raise InvalidInput(name.decode("ascii"), "must not be sent twice")
            self._repeated_size += len(name) + len(self._headers[name]) + _PER_HEADER

    def _check_head(self, method: bytes, headers: Headers) -> None:
        """Raise HeadTooLarge if the head that has arrived is too large."""
        line = len(method) + len(self._url) + len("  HTTP/1.1\r\n\r\n")
        lines = sum([len(name) + len(text) + _PER_HEADER for name, text in headers.items()])
        if line + lines + self._repeated_size > self.max_head:
            raise self._head_too_large()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"the headers are over {self.max_head:,} bytes")

    def on_headers_complete(self) -> None:
        if self._resumes:
            self._headers = {}
            return
        parser, headers = self._parser, self._headers
        method = parser.get_method()
        if self._not_body + PARSED_AT_ONCE > self.max_head:  # at most so many bytes have arrived
            self._check_head(method, headers)
        self._in_head = False
        upgrade = parser.should_upgrade()
        if upgrade:
            self._resumes = _check_offer(method, headers)
        version = parser.get_http_version()
        if version != "1.1" or b"transfer-encoding" in headers:
            _check_version(version, headers)
        path, query = _target(self._url, headers)
        if version == "1.1" and b"host" not in headers:
            raise InvalidInput("host", "is missing")
        self._headers = {}  # trailers are dropped
        exchange = HttpExchange(
            self,
            method.decode("ascii"),
            path,
            query,
            headers,
            version=version,
            last=self._server.is_stopping or not parser.should_keep_alive(),
        )
        self._arriving = exchange
        if self._exchange is None:
            self._serve(exchange)
        else:
            self._pipeline.append(exchange)

    def on_body(self, body: bytes) -> None:
        self._not_body = 0
        if self._arriving is not None:
            self._arriving.add_body(body)

    def on_message_complete(self) -> None:
        if self._resumes:
            return  # the body follows
        self._in_message = False
        self._not_body = 0
        if self._arriving is not None:
            self._arriving.end_body()
            self._arriving = None

    # Requests ------------------------------------------------------------------------------------

    def _serve(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        if self.is_ended:
            exchange.hurry()
        server = self._server
        exchange.task = self._loop.create_task(exchange.serve(server.serve, server.running))

    def answered(self, exchange: HttpExchange) -> None:
        """Go on after a response: with the next request, or by closing the connection."""
        self._exchange = None
        if exchange.is_last:
            self._transport.close()
        if self._transport.is_closing():
            return
        if not self._reads:
            self.resume_reading()
        if self._pipeline:
            self._serve(self._pipeline.popleft())
            if self._held:
                self._loop.call_soon(self._parse_held)  # when the service has begun with that one
            return
        self._served = True
        if self.is_ended and not self._held:
            self._transport.close()
        elif not self._in_message:
            self._since = self._loop.time()

    # Writing -------------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Wait while writing is paused."""
        while self._drain is not None:
            await asyncio.shield(self._drain)

    def pause_writing(self) -> None:
        self.is_stalled = True
        self._drain = self._loop.create_future()
        self._watch_writing()

    def resume_writing(self) -> None:
        self._resume_drained()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _resume_drained(self) -> None:
        if self._drain is not None:
            self._drain.set_result(None)
            self._drain = None
        self.is_stalled = False

    def _watch_writing(self) -> None:
        self._stall_timer = self._loop.call_later(
            self.stall_seconds, self._check_writing, self.unread()
        )

    def _check_writing(self, waited: int) -> None:
        """Drop a client that reads too slowly. Nothing is written while writing is paused."""
        self._stall_timer = None
        read = waited - self.unread()
        if read < min(self.stall_bytes, waited):
            log.info("dropped a connection that read %d bytes in %g s", read, self.stall_seconds)
            self.drop()
        else:
            self._watch_writing()

    # Deadlines -----------------------------------------------------------------------------------

    def _look_later(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._check_deadline)

    def _check_deadline(self) -> None:
        """Close the connection if the deadline of its state has passed. The only timer."""
        if self._transport.is_closing():
            self.drop()  # the client does not read the last response
            return
        left = self._deadline() - self._loop.time()
        if left <= 0:
            if self._in_head:
                self._reject(TooSlow(f"the headers did not arrive within {self.head_seconds:g} s"))
            else:
                self._transport.close()
            left = self.stall_seconds
        self._look_later(left)

    def _deadline(self) -> float:
        if self._in_head and not self._held:
            return self._since + self.head_seconds
        if self._in_message or self._exchange is not None:
            return self._loop.time() + min(self.head_seconds, self.idle_seconds)
        return self._since + (self.idle_seconds if self._served else self.head_seconds)

    # Errors --------------------------------------------------------------------------------------

    def _reject(self, error: TenureError) -> None:
        """Reject what the client sends, and close the connection. A request that has arrived
        completely and is being served still gets its own response, since it may have changed
        something."""
        exchange = self._exchange
        if exchange is None or exchange is self._arriving or not exchange.is_served:
            self.refuse(error)
        elif exchange.is_begun:
            self.drop()
        else:
            exchange.is_last = self._is_deaf = True

    def refuse(self, error: TenureError) -> None:
        """Send an error instead of a response, and close the connection."""
        if self._transport.is_closing():
            return
        if self._exchange is not None:
            if self._exchange.is_begun:
                self.drop()
                return
            self._exchange.leave()
        headers = self._headers if self._exchange is None else self._exchange.headers
        reply, id = as_problem(error), id_of(headers)
        log.debug("refused a request: %d", reply.status, extra={"request": id, "error": error.code})
        head = head_of(reply.status, usual_fields(reply.status, reply.media_type), id, reply.body)
        self._transport.write(b"".join([*head, b"connection: close\r\n\r\n", reply.body]))
        self._transport.close()


def _check_offer(method: bytes, headers: Headers) -> bool:
    """Whether a request that offers another protocol has a body. Raises InvalidInput for a
    WebSocket, whose client could do nothing with another response."""
    if method == b"CONNECT":
        raise UnknownMethod("CONNECT")
    if (headers.get(b"upgrade") or "").lower() == "websocket":
        raise InvalidInput("upgrade", "is not supported; send the request without this header")
    length = headers.get(b"content-length")
    return b"transfer-encoding" in headers or (length is not None and int(length) > 0)


def _check_version(version: str, headers: Headers) -> None:
    """Raise InvalidInput if a proxy could read the version or the length of the body
    differently."""
    encoding = headers.get(b"transfer-encoding")
    if version not in ("1.0", "1.1"):
        raise _not_understood()
    if encoding is not None and (encoding.lower() != "chunked" or version == "1.0"):
        raise InvalidInput("transfer-encoding", "must be chunked, in HTTP/1.1")


def _target(url: bytes, headers: Headers) -> tuple[str, bytes]:
    """Split the target of a request into its path and query string."""
    if url.startswith((b"/", b"*")):
        return _split(url) if len(url) <= SHORT_URL else _split.__wrapped__(url)
    parsed = urlsplit(url)
    if parsed.scheme not in (b"http", b"https") or b"#" in url:
        raise _not_understood()
    if parsed.netloc.lower() != (headers.get(b"host") or "").lower().encode("latin-1"):
        raise InvalidInput("host", "must be the host of the URL")
    return (parsed.path or b"/").decode("ascii"), parsed.query


@lru_cache(maxsize=1_000)
def _split(url: bytes) -> tuple[str, bytes]:
    if b"#" in url:
        raise _not_understood()
    path, _, query = url.partition(b"?")
    return path.decode("ascii"), query


def _not_understood() -> InvalidInput:
    return InvalidInput("request", "is not a valid HTTP/1 request")
