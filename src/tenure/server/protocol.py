"""HTTP as uvicorn speaks it, with bounds on the head of a request, which uvicorn does not have:
without, one client could fill the memory with headers, or keep a connection for good. And with a
short way for what is whole: a body that is there, an answer that is written at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tenure.errors import InvalidInput, TenureError
from tenure.server.incoming import WHOLE
from tenure.server.problems import HeadTooLarge, TooSlow
from tenure.server.route import as_problem


class Exchange:
    """A request and its answer, without the messages of ASGI."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def body(self) -> bytes | None:
        """The body, if all of it has come."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()  # it is read: whoever waits now waits for the client to leave
        return body

    def answer(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool
    ) -> bool:
        """Write the answer in one piece. False, if the client does not take what it was sent."""
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
        cycle.scope.pop("extensions", None)  # which leads back here: garbage would be left
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class Protocol(HttpToolsProtocol):
    """One connection."""

    max_head = 65_536  # bytes of a request line and its headers
    head_seconds = 30.0  # that these may take to arrive

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_size = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            self._stop_timer()
            return
        self._start_timer()
        self._head_size += len(data)
        if self._head_size > self.max_head:
            self._refuse(HeadTooLarge(f"the headers are over {self.max_head:,} bytes"))

    def on_message_begin(self) -> None:
        self._in_head, self._head_size = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.cycle is not None:
            self.scope["extensions"] = {WHOLE: Exchange(self.cycle)}  # type: ignore[dict-item]

    def on_response_complete(self) -> None:
        """As uvicorn has it, but with a timer for each connection and not for each answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_later(self.timeout_keep_alive)

    def _look_later(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, if nothing was asked for so long."""
        self.timeout_keep_alive_task = None
        if self._idle_since is not None:
            left = self._idle_since + self.timeout_keep_alive - self.loop.time()
            if left > 0:
                self._look_later(left)
            else:
                super().timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None  # the timer finds out

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to what is not HTTP."""
        self._in_head = False
        if self.cycle is not None:
            self.cycle.disconnected = True  # a request with this behind it was not what was meant
        self._refuse(InvalidInput("request", "is not HTTP that is understood here"))

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if self._in_head:
            self._refuse(TooSlow(f"the headers did not arrive within {self.head_seconds:g} s"))
        else:
            self.transport.close()  # nothing was ever asked

    def _refuse(self, error: TenureError) -> None:
        if self.transport.is_closing():
            return
        reply = as_problem(error)
        head = (
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n"
            f"content-type: {reply.media_type}\r\ncontent-length: {len(reply.body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + reply.body)
        self.transport.close()
