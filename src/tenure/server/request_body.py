"""Reads the body of a request, with limits on its size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from tenure.errors import InvalidInput
from tenure.server.problems import BodyTooLarge, TooSlow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


WHOLE = "tenure.whole"  # an ASGI extension of our own server


class Whole(Protocol):
    """A request and its response, each in one piece."""

    def body(self) -> bytes | None:
        """The body, if it has arrived completely."""

    def trust(self) -> None:
        """Note that the client has shown a valid token."""

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent before on its connection."""

    def unread(self) -> int:
        """How many bytes the client has not read yet."""

    def answer(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, last: bool
    ) -> bool:
        """Send the response. Returns False if it must be sent as ASGI messages instead."""


class Headers:
    """The headers of a request. Values are decoded when they are used."""

    __slots__ = ("_raw",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = dict(raw)

    def get(self, name: bytes) -> str | None:
        """The value of a header, by its name in lower case."""
        value = self._raw.get(name)
        return None if value is None else value.decode("latin-1")


# Limits for a client that has not shown a valid token: bytes kept, bytes read and dropped, seconds.
STRANGER_BYTES, STRANGER_DROPPED, STRANGER_SECONDS = 65_536, 1_048_576, 5.0


class Incoming:
    """A body that is read once, or skipped. Until the client is trusted, little of it is read."""

    __slots__ = (
        *("_ended", "_headers", "_late", "_most", "_receive", "_seconds", "_trusted", "_whole"),
    )

    def __init__(
        self,
        receive: Receive,
        whole: Whole | None,
        headers: Headers,
        most: int,
        seconds: float,
    ) -> None:
        self._receive = receive
        self._whole = whole
        self._headers = headers
        self._most = most
        self._seconds = seconds
        self._trusted = False
        self._ended = False
        self._late = False

    def trust(self) -> None:
        """Note that the client has shown a valid token."""
        self._trusted = True
        if self._whole is not None:
            self._whole.trust()

    @property
    def _kept(self) -> int:
        """The maximum size of the body, in bytes."""
        return self._most if self._trusted else min(self._most, STRANGER_BYTES)

    @property
    def is_announced(self) -> bool:
        """Whether the headers announce a body."""
        length = self._headers.get(b"content-length") or "0"
        return length != "0" or self._headers.get(b"transfer-encoding") is not None

    @property
    def _asks_first(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return not self._ended and self._headers.get(b"expect") is not None

    async def read(self) -> bytes:
        """Return the whole body; raises BodyTooLarge, TooSlow or InvalidInput."""
        encoding = self._headers.get(b"content-encoding") or "identity"
        if encoding.lower() != "identity":
            raise InvalidInput("content-encoding", f"{encoding!r} is not read; send JSON as it is")
        if self._whole is not None and (body := self._whole.body()) is not None:
            self._ended = True
            if len(body) > self._kept:
                raise self._too_large(len(body))
            return body
        said = self._headers.get(b"content-length") or ""
        if self._asks_first and said.isdecimal() and int(said) > self._kept:
            raise self._too_large(int(said))
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up, task)
        try:
            return await self._read()
        except asyncio.CancelledError:
            if not self._late:
                raise
            task.uncancel()
            raise TooSlow(f"the body did not arrive within {self._seconds:g} s") from None
        finally:
            timer.cancel()

    def _give_up(self, task: asyncio.Task[object]) -> None:
        self._late = True
        task.cancel()

    async def _read(self) -> bytes:
        first, most = await self._next(), self._kept
        if self._ended and len(first) <= most:
            return first
        parts, size = [first], len(first)
        while not self._ended and (self._trusted or size <= most):
            part = await self._next()
            size += len(part)
            # Read and drop the excess: most clients do not read a response while they send.
            if size <= most:
                parts.append(part)
        if size > most:
            raise self._too_large(size)
        return b"".join(parts)

    @property
    def is_over(self) -> bool:
        """Whether the client has sent the whole request."""
        return self._ended or not self.is_announced

    async def ends(self) -> bool:
        """Read and drop the rest of the body. Returns whether its end was reached: then the client
        can read the response and reuse the connection."""
        if self._asks_first:
            return False
        seconds = self._seconds if self._trusted else min(self._seconds, STRANGER_SECONDS)
        dropped = 0
        try:
            async with asyncio.timeout(seconds):
                while not self._ended and (self._trusted or dropped <= STRANGER_DROPPED):
                    dropped += len(await self._next())
        except (TimeoutError, TooSlow):
            return False
        return self._ended

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise TooSlow("the client went away before its request was complete")
        self._ended = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def _too_large(self, size: int) -> BodyTooLarge:
        return BodyTooLarge(f"the body is {size:,} bytes; at most {self._kept:,}")
