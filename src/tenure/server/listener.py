"""Accepts connections on a socket."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from socket import socket

log = logging.getLogger("tenure.service")

BACKLOG = 2_048
# Connections accepted in one iteration of the event loop. (uvloop itself accepts one; while the
# loop is busy, everybody who connects would wait behind those that connect again and again.)
AT_ONCE = 16
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
EXHAUSTED_SECONDS = 1.0  # before the next connection is accepted


class Listener:
    """Passes the connections to a socket on, until it is closed."""

    def __init__(self, listener: socket, accepted: Callable[[socket], object]) -> None:
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                client, _ = self._listener.accept()
            except OSError as error:  # there are no more, or the client has left
                if error.errno in EXHAUSTED:
                    log.warning("cannot accept connections: %s", error.strerror)
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(EXHAUSTED_SECONDS, self._start)
                return
            client.setblocking(False)
            self._accepted(client)

    def close(self) -> None:
        """Accept no more connections."""
        if self._pause is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pause.cancel()
        self._listener.close()
