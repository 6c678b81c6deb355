"""A pool of connections."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg.pq import TransactionStatus

from tenure.engines.postgres.server import Connection
from tenure.errors import Closed

MOST_KEPT = 8


class Pool:
    """Opens as many connections as are in use at once, and keeps a few of them."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False
        _POOLS.add(self)

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """A connection for exclusive use. One that was interrupted is not reused."""
        connection = self._take()
        try:
            yield connection
        except Exception:
            self._give_back(connection)
            raise
        except BaseException:
            _close(connection)
            raise
        self._give_back(connection)

    def _take(self) -> Connection:
        with self._lock:
            if self._closed:
                raise Closed("this queue handle was closed")
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: Connection) -> None:
        """Keep the connection, unless it is broken or has an open transaction."""
        clean = connection.pgconn.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if clean and not self._closed and len(self._idle) < MOST_KEPT:
                self._idle.append(connection)
                return
        _close(connection)

    def clear(self) -> None:
        """Close all idle connections: the server they lead to is gone."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.clear()

    def after_fork(self) -> None:
        """Drop the connections without closing them: they belong to the parent."""
        self._lock = threading.Lock()
        _THE_PARENTS.extend(self._idle)
        self._idle = []


def _close(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_THE_PARENTS: list[Connection] = []


def _in_child() -> None:
    for pool in list(_POOLS):
        pool.after_fork()


os.register_at_fork(after_in_child=_in_child)
