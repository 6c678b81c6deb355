"""One HTTP connection: uvicorn's protocol, with limits on what a client may send and hold.

uvicorn limits neither the headers of a request nor its trailers, and never closes a connection that
sends only line breaks, or one whose client does not read. Here every state of a connection has a
deadline, checked by one timer. There is also a fast path for requests and responses that fit into
one piece.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tenure.errors import InvalidInput, TenureError
from tenure.server.connections import Connections
from tenure.server.problems import HeadTooLarge, TooSlow
from tenure.server.request_body import WHOLE
from tenure.server.route import as_problem

log = logging.getLogger("tenure.service")


class Exchange:
    """A request and its response, without ASGI messages."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: Protocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    def body(self) -> bytes | None:
        """The body, if it has arrived completely."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()  # from now on it is set when the client disconnects
        return body

    def trust(self) -> None:
        """Note that the client has shown a valid token: its connection is kept."""
        self._protocol.trust()

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent before on its connection."""
        if self._cycle.flow.write_paused:
            await self._cycle.flow.drain()

    def unread(self) -> int:
        """How many bytes the client has not read yet."""
        return int(self._cycle.transport.get_write_buffer_size())

    def answer(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool
    ) -> bool:
        """Write the response in one piece. Returns False if writing is paused, because the client
        has not read earlier responses."""
        cycle = self._cycle
        if cycle.flow.write_paused:
            return False
        if cycle.disconnected:
            return True
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if last:
            cycle.keep_alive = False
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", body)
        cycle.transport.write(b"".join(parts))
        cycle.response_started = cycle.response_complete = True
        cycle.scope.pop("extensions", None)  # break a reference cycle
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class Protocol(HttpToolsProtocol):
    """One connection. It is idle, reading headers, or serving a request. Bodies have their own
    deadline (see `Incoming`)."""

    max_head = 65_536  # bytes of a request line and its headers, or anything else but a body
    head_seconds = 30.0  # for these to arrive, and for the first request to begin
    stall_seconds = 30.0  # in which a client must read at least `stall_bytes`
    stall_bytes = 65_536
    open_connections = Connections()  # shared by all servers, unless `bounded_by` is used

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._in_message = False
        self._served = False  # at least one request
        self._not_body = 0  # bytes received since the last byte of a body
        self._since = self.loop.time()  # when the current state began
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_trusted = False

    @classmethod
    def bounded_by(cls, connections: Connections) -> type[Protocol]:
        """Return the protocol for one server that has its own limit on connections."""
        return type(cls.__name__, (cls,), {"open_connections": connections})

    @property
    def _is_serving(self) -> bool:
        """Whether a request is being read or answered."""
        return self._in_message or (self.cycle is not None and not self.cycle.response_complete)

    # A connection --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later(min(self.head_seconds, self.timeout_keep_alive))
        self.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.discard(self)
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None
        super().connection_lost(exc)

    def trust(self) -> None:
        if not self._is_trusted:
            self._is_trusted = True
            self.open_connections.trust(self)

    def drop(self) -> None:
        """Close the connection at once, without writing what is left."""
        self.transport.abort()

    # Reading -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._not_body += len(data)
        super().data_received(data)
        if self._not_body > self.max_head:
            self._refuse(HeadTooLarge(f"the headers are over {self.max_head:,} bytes"))

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._not_body = 0
        self._since = self.loop.time()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # otherwise it is a trailer, which is dropped
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.cycle is not None:
            exchange = Exchange(self, self.cycle)
            self.scope["extensions"] = {WHOLE: exchange}  # type: ignore[dict-item]

    def on_body(self, body: bytes) -> None:
        self._not_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._not_body = 0
        super().on_message_complete()

    def _unset_keepalive_if_required(self) -> None:
        """Do nothing: data that does not begin a request must not extend the idle time."""

    # Writing -------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._served = True
        if not self._in_message:
            self._since = self.loop.time()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_writing(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_writing, waiting)

    def _check_writing(self, waited: int) -> None:
        """Drop a client that reads too slowly. Nothing is written while writing is paused."""
        self._stall_timer = None
        read = waited - self.transport.get_write_buffer_size()
        if read < min(self.stall_bytes, waited):
            log.info("dropped a connection that read %d bytes in %g s", read, self.stall_seconds)
            self.drop()
        else:
            self._watch_writing()

    # Deadlines -----------------------------------------------------------------------------------

    def _look_later(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._check_deadline)

    def _check_deadline(self) -> None:
        """Close the connection if the deadline of its state has passed. The only timer."""
        if self.transport.is_closing():
            self.drop()  # the client does not read the last response
            return
        left = self._deadline() - self.loop.time()
        if left <= 0:
            if self._in_head:
                self._refuse(TooSlow(f"the headers did not arrive within {self.head_seconds:g} s"))
            else:
                self.transport.close()
            left = self.stall_seconds
        self._look_later(left)

    def _deadline(self) -> float:
        if self._in_head:
            return self._since + self.head_seconds
        if self._is_serving:
            return self.loop.time() + min(self.head_seconds, self.timeout_keep_alive)
        return self._since + (self.timeout_keep_alive if self._served else self.head_seconds)

    # Errors --------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for data that is not valid HTTP."""
        self._in_head = False
        self._refuse(InvalidInput("request", "is not HTTP that is understood here"))

    def _refuse(self, error: TenureError) -> None:
        """Send an error instead of a response, and close the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.drop()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        reply = as_problem(error)
        head = (
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n"
            f"content-type: {reply.media_type}\r\ncontent-length: {len(reply.body)}\r\n"
            "x-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + reply.body)
        self.transport.close()
