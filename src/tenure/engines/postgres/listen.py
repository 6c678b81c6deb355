"""Hearing from the server that jobs became ready: one connection and one thread for a process.

A notification may be lost while the connection is; whoever listens is told to look at everything
when it is back. Behind a pooler that gives connections out by the transaction there is none to be
heard: polling must do.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec
import psycopg

from tenure.engines.postgres.db import Db
from tenure.engines.postgres.server import Address, Connection, connect

Callback = Callable[[list[str]], None]  # the queues; none of them means any
PAUSE_SECONDS = 1.0  # before a server that is away is tried again


class Listener:
    """Tells all who asked for it, in a thread of its own, until the last has stopped."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callback] = {}
        self._asked = 0
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._ears: tuple[int, int] | None = None  # a pipe that wakes the thread

    def add(self, callback: Callback) -> Callable[[], None]:
        """Call back from now on; answers with what ends it."""
        with self._lock:
            if self._process != os.getpid():  # the thread stayed in the parent
                self._process, self._thread, self._callbacks = os.getpid(), None, {}
            self._asked += 1
            number = self._asked
            self._callbacks[number] = callback
            if self._thread is None:
                self._ears = os.pipe()
                self._thread = threading.Thread(
                    target=self._listen, args=(self._ears[0],), name="tenure-listen", daemon=True
                )
                self._thread.start()
        return lambda: self._remove(number)

    def _remove(self, number: int) -> None:
        with self._lock:
            known = self._callbacks.pop(number, None) is not None
            if not known or self._callbacks or self._thread is None:
                return
            thread, self._thread = self._thread, None
            ears, self._ears = self._ears, None
        assert ears is not None
        os.write(ears[1], b".")
        os.close(ears[1])
        if thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        for number in list(self._callbacks):
            self._remove(number)

    def _tell(self, queues: list[str]) -> None:
        for callback in list(self._callbacks.values()):
            callback(queues)

    def _listen(self, stop: int) -> None:
        """Until something comes through the pipe."""
        try:
            while not _is_over(stop, 0):
                try:
                    with connect(self._address) as connection:
                        Db(connection, self._address.statements.sql).send("listen")
                        self._tell([])
                        while not _is_over(stop, None, connection):
                            self._hear(connection)
                        return
                except psycopg.Error:
                    if _is_over(stop, PAUSE_SECONDS):
                        return
        finally:
            os.close(stop)

    def _hear(self, connection: Connection) -> None:
        """Everything that has arrived, in one call."""
        names: set[str] = set()
        heard = everything = False
        for notification in connection.notifies(timeout=0):
            heard = True
            queues = _queues(notification.payload)
            everything = everything or not queues
            names.update(queues)
        if heard:
            self._tell([] if everything else sorted(names))


def _queues(payload: str) -> list[str]:
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(payload, type=list[str])
    return []  # somebody else's


def _is_over(stop: int, timeout: float | None, connection: Connection | None = None) -> bool:
    """Wait for the end, or until the server has something to say."""
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    if connection is not None:
        poll.register(connection.fileno(), select.POLLIN)
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return any(file == stop for file, _ in ready)
