"""HTTP as uvicorn speaks it, with bounds on the head of a request, which uvicorn does not have:
without, one client could fill the memory with headers, or keep a connection for good."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenure.errors import InvalidInput, TenureError
from tenure.server.problems import HeadTooLarge, TooSlow
from tenure.server.route import as_problem


class Protocol(HttpToolsProtocol):
    """One connection."""

    max_head = 65_536  # bytes of a request line and its headers
    head_seconds = 30.0  # that these may take to arrive

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_size = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
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
