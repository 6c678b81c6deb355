"""Reads the body of a request, with limits on its size and time."""

from __future__ import annotations

import asyncio

from tenure.errors import InvalidInput
from tenure.server.exchange import Exchange
from tenure.server.problems import BodyTooLarge, TooSlow
from tenure.server.traffic import SMALL, Traffic

# Limits for a client that has not shown a valid token: bytes kept, bytes read and dropped, seconds.
STRANGER_BYTES, STRANGER_DROPPED, STRANGER_SECONDS = 65_536, 1_048_576, 5.0


class Incoming:
    """A body that is read once, or skipped. Until the client is trusted, little of it is read."""

    __slots__ = (
        *("_ended", "_exchange", "_headers", "_late", "_most", "_reserved", "_room", "_seconds"),
        "_trusted",
    )

    def __init__(self, exchange: Exchange, most: int, seconds: float) -> None:
        self._exchange = exchange
        self._headers = exchange.headers
        self._most = most
        self._seconds = seconds
        self._trusted = False
        self._ended = False
        self._late = False
        self._room: Traffic | None = None
        self._reserved = 0  # bytes, there

    def trust(self, who: str, room: Traffic | None = None) -> None:
        """Note that the client has shown a valid token; raises Busy. room: for a large body."""
        self._exchange.trust(who)
        self._trusted = True
        self._room = room

    def free(self) -> None:
        """Note that the body is no longer needed."""
        if self._room is not None and self._reserved:
            self._room.release(self._reserved)
            self._reserved = 0

    async def _reserve(self) -> None:
        """Wait until there is room for a large body; raises Busy."""
        said = self._headers.get(b"content-length") or ""
        size = min(int(said), self._most) if said.isdecimal() else self._most
        if self._room is not None:
            await self._room.reserve(size)
            self._reserved = size

    @property
    def _kept(self) -> int:
        """The maximum size of the body, in bytes."""
        return self._most if self._trusted else min(self._most, STRANGER_BYTES)

    @property
    def is_announced(self) -> bool:
        """Whether the headers announce a body."""
        length = self._headers.get(b"content-length") or "0"
        return length != "0" or b"transfer-encoding" in self._headers

    @property
    def _asks_first(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends the body."""
        return not self._ended and self._headers.get(b"expect") is not None

    def arrived(self) -> bytes | None:
        """Return the body if all of it has arrived; raises BodyTooLarge or InvalidInput."""
        encoding = self._headers.get(b"content-encoding")
        if encoding and encoding.lower() != "identity":
            raise InvalidInput(
                "content-encoding", f"{encoding!r} is not supported; send plain JSON"
            )
        body = self._exchange.body()
        if body is not None:
            self._ended = True
            if len(body) > self._kept:
                raise self._too_large(len(body))
        return body

    async def read(self) -> bytes:
        """Return the whole body; raises BodyTooLarge, TooSlow or InvalidInput."""
        body = self.arrived()
        if body is not None:
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
            if size > SMALL and not self._reserved:
                await self._reserve()
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
        message = await self._exchange.receive()
        if message["type"] == "http.disconnect":
            raise TooSlow("the client went away before its request was complete")
        self._ended = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    def _too_large(self, size: int) -> BodyTooLarge:
        return BodyTooLarge(f"the body is {size:,} bytes; at most {self._kept:,}")
