"""One connection to a service, over which requests go one after the other."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

import msgspec


class Answer(NamedTuple):
    status: int
    head: bytes  # in small letters
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def is_last(self) -> bool:
        """Whether the service closes the connection now."""
        return b"connection: close" in self.head


class CutError(Exception):
    """The connection was closed instead of an answer, or, if `within`, in the middle of one."""

    def __init__(self, within: bool) -> None:
        super().__init__("within an answer" if within else "before an answer")
        self.within = within


class Connection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str = ""
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._more = f"authorization: Bearer {token}\r\n" if token else ""

    @classmethod
    async def open(
        cls, port: int, tls: ssl.SSLContext | None = None, *, token: str = ""
    ) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls), token)

    def send(self, method: str, path: str, body: Any = None) -> None:
        data = b"" if body is None else body
        if not isinstance(data, bytes):
            data = msgspec.json.encode(data)
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"{self._more}content-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)

    def say(self, data: bytes) -> None:
        """Send what need not be a request."""
        self._writer.write(data)

    def pause(self) -> None:
        """Read no more, not even into memory."""
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    async def read_some(self) -> bytes:
        """What has come; nothing at the end."""
        return await self._reader.read(65_536)

    async def flush(self) -> None:
        """Wait until what was sent is on its way."""
        await self._writer.drain()

    async def answer(self) -> Answer:
        """What is answered next; raises CutError."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        except (asyncio.IncompleteReadError, OSError) as error:
            raise CutError(within=bool(getattr(error, "partial", b""))) from None
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        try:
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            raise CutError(within=True) from None
        return Answer(int(head.split(b" ", 2)[1]), head, body)

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request and have its answer; raises CutError."""
        self.send(method, path, body)
        return await self.answer()

    def close(self) -> None:
        self._writer.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        with suppress(OSError):  # what matters was told with the answers
            await self._writer.wait_closed()
