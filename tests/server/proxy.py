"""A proxy between a client and its service over which requests and answers get lost."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, get_args

Fate = Literal[
    "passed on",
    "lost before it is sent",
    "lost while it is served",  # so that it is sent again while the first is being served
    "served, and the answer lost",
    "served, and the answer torn",
    "served, and the answer cut off unnoticed",  # as where only the end of a connection ends it
    "served, and the answer garbled",  # as by a proxy that has a page of its own
    "rejected",  # by something on the way; not drawn by chance
]
FATES: tuple[Fate, ...] = get_args(Fate)
LOSSES = FATES[1:-1]


GARBAGE = (
    b"<html>Come back later</html>",
    b"",
    b'{"answers":[],"found":[1]}',
    b'{"answers":[{"answer":"Ok"},{"answer":"\xff"}],"found":"\xff"}',
)
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"


class LossyProxy:
    """Passes requests on, each to one of several ports, unless it loses them on the way."""

    def __init__(self, ports: Sequence[int], seed: int, loss: float) -> None:
        self.fates: Counter[Fate] = Counter()
        self.loss = loss
        self.next: list[Fate] = []  # what becomes of the next requests, before chance decides
        self._ports = ports
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._let_in, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _let_in(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection, until something is lost on it or an end closes it."""
        with suppress(OSError), client:
            port = self._random.choice(self._ports)
            with socket.create_connection(("127.0.0.1", port)) as server:
                while (request := _message(client)) and self._passes(request, client, server):
                    pass

    def _passes(self, request: bytes, client: socket.socket, server: socket.socket) -> bool:
        fate = self._draw()
        if fate == "lost before it is sent":
            return False
        if fate == "rejected":
            client.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
            return True
        server.sendall(request)
        if fate == "lost while it is served":
            return False
        answer = _message(server)
        if fate == "served, and the answer torn":
            client.sendall(answer[: len(answer) // 2])
        if fate == "served, and the answer cut off unnoticed":
            client.sendall(_OK + _body(answer)[:-1])
        if fate == "served, and the answer garbled":
            client.sendall(_OK + self._random.choice(GARBAGE))
        if fate == "passed on":
            client.sendall(answer)
        return bool(answer) and fate == "passed on"

    def _draw(self) -> Fate:
        with self._lock:
            if self.next:
                fate = self.next.pop(0)
                self.fates[fate] += 1
                return fate
            lost = self._random.random() < self.loss
            fate = self._random.choice(LOSSES) if lost else FATES[0]
            self.fates[fate] += 1
        return fate


def _body(message: bytes) -> bytes:
    return message.partition(b"\r\n\r\n")[2]


def _message(source: socket.socket) -> bytes:
    """A whole request or answer; empty if the connection is closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := source.recv(1 << 16)):
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while len(body) < length:
        if not (more := source.recv(1 << 16)):
            return b""
        body += more
    return head + b"\r\n\r\n" + body
