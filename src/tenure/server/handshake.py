"""TLS connections until their handshake is finished."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from socket import socket

from tenure.server.connections import Connections

log = logging.getLogger("tenure.service")

# Makes the protocol of a connection; it calls the function when the handshake is finished.
Then = Callable[[Callable[[], None]], asyncio.Protocol]


class Handshake:
    """Counts as a connection while it lasts, and can be dropped like any other. (If an event loop
    accepts TLS connections itself, nobody knows of them before their handshake is finished.)"""

    seconds = 30.0  # that it may take
    is_idle = True

    def __init__(
        self, client: socket, tls: ssl.SSLContext, connections: Connections, then: Then
    ) -> None:
        self._client = client
        self._tls = tls
        self._connections = connections
        self._then = then
        self._begun = False  # then the event loop closes the socket
        self._task = asyncio.get_running_loop().create_task(self._run())
        connections.add(self)

    async def _run(self) -> None:
        self._begun = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._then(self._leave),
                self._client,
                ssl=self._tls,
                ssl_handshake_timeout=self.seconds,
            )
        except OSError as error:  # the client is too slow, has left, or does not speak TLS
            log.debug("a handshake failed: %s", error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._connections.discard(self)

    def drop(self) -> None:
        """Close the connection at once."""
        self._task.cancel()
        if not self._begun:
            self._client.close()
            self._leave()

    stop = drop  # no request is being served
