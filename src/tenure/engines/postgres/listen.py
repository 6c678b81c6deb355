"""Listening for the server's notifications: one connection and one thread per process.

A notification may be lost while the connection is down, so listeners are called when it is back.
Behind a pooler in transaction mode no notifications arrive, so callers must poll.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
from collections.abc import Callable

import psycopg

from tenure.engines.postgres.server import Address, Connection, connect
from tenure.engines.postgres.session import Db

Wake = Callable[[], None]
PAUSE_SECONDS = 0.5  # before reconnecting to a server that is away
QUIET_SECONDS = 0.03  # between two calls, however often others commit
CLOSING_SECONDS = 5.0  # how long to wait for a thread that is just connecting


class Listener:
    """Calls all listeners from its own thread, until the last one is removed. Changes of this
    process itself are not reported."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._wakes: dict[int, Wake] = {}
        self._asked = 0
        self._begin()

    def _begin(self) -> None:
        """Reset to the state of a process without listeners."""
        self._process = os.getpid()
        self._name = f"{self._process}.{secrets.token_hex(8)}"
        self._wakes = {}
        self._thread: threading.Thread | None = None
        self._bell = -1  # writing to it ends the thread

    @property
    def name(self) -> str:
        """The sender name in this process's notifications."""
        if self._process != os.getpid():
            with self._lock:
                self._restart_after_fork()
        return self._name

    def _restart_after_fork(self) -> None:
        """Start over after a fork, which has neither the thread nor the name of its parent."""
        if self._process != os.getpid():
            self._begin()

    def add(self, wake: Wake) -> Callable[[], None]:
        """Add a listener. Returns a function that removes it."""
        with self._lock:
            self._restart_after_fork()
            self._asked += 1
            number = self._asked
            self._wakes[number] = wake
            if self._thread is None:
                ear, self._bell = os.pipe()
                self._thread = threading.Thread(
                    target=self._listen, args=(ear,), name="tenure-listen", daemon=True
                )
                self._thread.start()
        return lambda: self._remove(number)

    def _remove(self, number: int) -> None:
        """Does not wait for the thread, which may be waiting for the server."""
        with self._lock:
            self._restart_after_fork()
            known = self._wakes.pop(number, None) is not None
            if known and not self._wakes:
                self._end()

    def _end(self) -> None:
        self._thread = None
        os.write(self._bell, b".")
        os.close(self._bell)

    def close(self) -> None:
        with self._lock:
            self._restart_after_fork()
            self._wakes = {}
            thread = self._thread
            if thread is not None:
                self._end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSING_SECONDS)

    def _tell(self) -> None:
        for wake in list(self._wakes.values()):
            wake()

    def _listen(self, ear: int) -> None:
        """Run until something arrives through the pipe."""
        try:
            while not _is_over(ear, 0):
                try:
                    with connect(self._address) as connection:
                        self._hear(connection, ear)
                        return
                except psycopg.Error:
                    if _is_over(ear, PAUSE_SECONDS):
                        return
        finally:
            os.close(ear)

    def _hear(self, connection: Connection, ear: int) -> None:
        Db(connection, self._address.statements.sql).send("listen")
        self._tell()  # for what was missed
        while not _is_over(ear, None, connection):
            heard = [one.payload for one in connection.notifies(timeout=0)]
            if any(sender != self._name for sender in heard):
                self._tell()
                if _is_over(ear, QUIET_SECONDS):
                    return


def _is_over(ear: int, timeout: float | None, connection: Connection | None = None) -> bool:
    """Wait for the end, or for data from the server. Returns whether it is the end."""
    poll = select.poll()
    poll.register(ear, select.POLLIN)
    if connection is not None:
        poll.register(connection.fileno(), select.POLLIN)
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return any(file == ear for file, _ in ready)
