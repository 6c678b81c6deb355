"""A wire to a PostgreSQL server that can be cut at the moment that hurts most."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

Cut = Literal["", "before", "after"]
# What commits: the word itself, or a statement that is a transaction of its own.
COMMITS = (b"COMMIT", b"WITH marked", b".ack_alone(", b".claim_alone(", b".ack_and_claim(")


class Wire:
    """Carries bytes between clients and the server's socket. Once set to cut, the next connection
    over which a commit goes is cut: before the server gets it, or after the server has answered it
    and before the client hears of that."""

    def __init__(self, server: Path) -> None:
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.cut: Cut = ""
        self.then: list[Cut] = []  # what is cut after that
        self.cuts = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._let_in, daemon=True).start()

    def close(self) -> None:
        self._door.close()
        self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection there is."""
        ends, self._open = self._open, []
        _close(*ends)

    def _let_in(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._open += [client, server]
                armed = threading.Event()
                for target, args in (
                    (self._to_server, (client, server, armed)),
                    (self._to_client, (server, client, armed)),
                ):
                    threading.Thread(target=target, args=args, daemon=True).start()

    def _to_server(
        self, client: socket.socket, server: socket.socket, cut: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.cut and any(text in data for text in COMMITS):
                    when, self.cut = self.cut, self.then.pop(0) if self.then else ""
                    self.cuts += 1
                    if when == "before":
                        break
                    cut.set()
                server.sendall(data)
        _close(client, server)

    def _to_client(
        self, server: socket.socket, client: socket.socket, cut: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if cut.is_set():
                    break
                client.sendall(data)
        _close(client, server)


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
