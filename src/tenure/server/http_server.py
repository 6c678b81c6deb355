"""Our own HTTP/1.1 server: listening sockets, connections, and an orderly stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from socket import socket
from typing import Protocol

from tenure.server.connection import Connection
from tenure.server.connections import Connections
from tenure.server.exchange import Exchange, HttpExchange
from tenure.server.handshake import Handshake
from tenure.server.listener import Listener

log = logging.getLogger("tenure.service")

LOOK_SECONDS = 0.02  # between checks whether all requests are finished, while it stops


class Handler(Protocol):
    def serve(self, exchange: Exchange) -> Awaitable[None]:
        """Answer a request."""


class HttpServer:
    """Serves requests on some sockets."""

    def __init__(self, handler: Handler, connections: Connections | None = None) -> None:
        self.connections: Connections = Connections() if connections is None else connections
        self.is_stopping: bool = False
        self.serve: Callable[[Exchange], Awaitable[None]] = handler.serve
        self._listeners: list[Listener] = []
        self._arriving: set[asyncio.Task[None]] = set()
        self.running: set[HttpExchange] = set()

    async def start(self, sockets: Sequence[socket], tls: ssl.SSLContext | None = None) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        connect = partial(Connection, self, loop)
        accepted: Callable[[socket], object] = self._accepted
        if tls is not None:
            accepted = partial(Handshake, tls=tls, connections=self.connections, then=connect)
        self._listeners += [Listener(one, accepted) for one in sockets]

    def _accepted(self, client: socket) -> None:
        task = self._loop.create_task(self._connect(client))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _connect(self, client: socket) -> None:
        connect = partial(Connection, self, self._loop)
        try:
            await self._loop.connect_accepted_socket(connect, client)
        except OSError as error:
            log.debug("a client has left: %s", error)

    async def stop(self, seconds: float) -> None:
        """Accept no more connections, close idle ones, and finish open requests. What is not
        finished within this time is cancelled."""
        self.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in self.connections:
            connection.stop()
        deadline = self._loop.time() + seconds
        while (self.running or len(self.connections)) and self._loop.time() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
        if self.running:
            log.error("%d requests were not finished within %g s", len(self.running), seconds)
        for exchange in list(self.running):
            if exchange.task is not None:
                exchange.task.cancel()
        for connection in self.connections:
            connection.drop()
        await asyncio.sleep(0)
