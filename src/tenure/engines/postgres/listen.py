"""Hearing from the server that something changed: one connection and one thread for a process.

A notification may be lost while the connection is; whoever listens is told to look when it is back.
Behind a pooler that gives connections out by the transaction there is none to be heard: polling
must do.
"""

from __future__ import annotations

import os
import secrets
import select
import threading
from collections.abc import Callable

import psycopg

from tenure.engines.postgres.db import Db
from tenure.engines.postgres.server import Address, Connection, connect

Wake = Callable[[], None]
PAUSE_SECONDS = 0.5  # before a server that is away is tried again
QUIET_SECONDS = 0.03  # between two calls, however often others commit
CLOSING_SECONDS = 5.0  # that a thread which is just connecting may take to end


class Listener:
    """Tells all who asked for it, in a thread of its own, until the last has stopped. What this
    process did itself is not told."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._wakes: dict[int, Wake] = {}
        self._asked = 0
        self._begin()

    def _begin(self) -> None:
        """As it is in a process where nobody has listened yet."""
        self._process = os.getpid()
        self._name = f"{self._process}.{secrets.token_hex(8)}"
        self._wakes = {}
        self._thread: threading.Thread | None = None
        self._bell = -1  # what is written there ends the thread

    @property
    def name(self) -> str:
        """With which this process signs its notifications."""
        if self._process != os.getpid():
            with self._lock:
                self._look_where_we_are()
        return self._name

    def _look_where_we_are(self) -> None:
        """A fork has neither the thread of its parent nor its name."""
        if self._process != os.getpid():
            self._begin()

    def add(self, wake: Wake) -> Callable[[], None]:
        """Call it from now on; answers with what ends it."""
        with self._lock:
            self._look_where_we_are()
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
            self._look_where_we_are()
            known = self._wakes.pop(number, None) is not None
            if known and not self._wakes:
                self._end()

    def _end(self) -> None:
        self._thread = None
        os.write(self._bell, b".")
        os.close(self._bell)

    def close(self) -> None:
        with self._lock:
            self._look_where_we_are()
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
        """Until something comes through the pipe."""
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
        self._tell()  # of what was missed
        while not _is_over(ear, None, connection):
            heard = [one.payload for one in connection.notifies(timeout=0)]
            if any(sender != self._name for sender in heard):
                self._tell()
                if _is_over(ear, QUIET_SECONDS):
                    return


def _is_over(ear: int, timeout: float | None, connection: Connection | None = None) -> bool:
    """Wait for the end, or until the server has something to say."""
    poll = select.poll()
    poll.register(ear, select.POLLIN)
    if connection is not None:
        poll.register(connection.fileno(), select.POLLIN)
    ready = poll.poll(None if timeout is None else timeout * 1000)
    return any(file == ear for file, _ in ready)
