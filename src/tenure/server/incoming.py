"""The body of a request, while it arrives: up to a size, and within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from tenure.errors import InvalidInput
from tenure.server.problems import BodyTooLarge, TooSlow

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Incoming:
    """A body that is read once, or passed over."""

    def __init__(
        self, receive: Receive, headers: Mapping[str, str], most: int, seconds: float
    ) -> None:
        self._receive = receive
        self._headers = headers
        self._most = most
        self._seconds = seconds
        self._ended = False

    @property
    def is_announced(self) -> bool:
        """Whether the headers speak of a body."""
        headers = self._headers
        return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

    @property
    def _asks_first(self) -> bool:
        """Whether the client waits for a word before it sends."""
        return not self._ended and "expect" in self._headers

    async def read(self) -> bytes:
        """All of it; raises BodyTooLarge, TooSlow or InvalidInput."""
        encoding = self._headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise InvalidInput("content-encoding", f"{encoding!r} is not read; send JSON as it is")
        said = self._headers.get("content-length", "")
        if self._asks_first and said.isdecimal() and int(said) > self._most:
            raise self._too_large(int(said))
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._seconds):
                while not self._ended:
                    part = await self._next()
                    size += len(part)
                    # What is too much is read on and dropped: whoever sends does not listen yet.
                    if size <= self._most:
                        parts.append(part)
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {self._seconds:g} s") from None
        if size > self._most:
            raise self._too_large(size)
        return b"".join(parts)

    async def is_over(self) -> bool:
        """Whether the client is through with sending, so that it hears an answer and can ask
        again; what it still sends is dropped."""
        if self._ended or not self.is_announced:
            return True
        if self._asks_first:
            return False
        try:
            async with asyncio.timeout(self._seconds):
                while not self._ended:
                    await self._next()
        except (TimeoutError, TooSlow):
            return False
        return True

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise TooSlow("the client went away before its request was complete")
        self._ended = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def _too_large(self, size: int) -> BodyTooLarge:
        return BodyTooLarge(f"the body is {size:,} bytes; at most {self._most:,}")
