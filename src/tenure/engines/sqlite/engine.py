"""The engine: connections, transactions, and the table of what does what."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from tenure import ops
from tenure.clock import Clock
from tenure.engines.sqlite import claim, enqueue, file, leases, operator, reads, upkeep
from tenure.engines.sqlite.db import Db
from tenure.engines.sqlite.transaction import Transaction
from tenure.errors import InvalidInput
from tenure.ops import Answer, Found, Op, Query
from tenure.settings import Settings

# Operations of one kind that stand next to each other are run together.
_OPERATIONS: dict[type[Op], Callable[[Transaction, Any], list[Answer]]] = {
    ops.Enqueue: enqueue.enqueue,
    ops.Claim: claim.claim,
    ops.Ack: leases.ack,
    ops.Fail: leases.fail,
    ops.Extend: leases.extend,
    ops.Release: leases.release,
    ops.Progress: leases.progress,
    ops.Cancel: operator.cancel,
    ops.Replay: operator.replay,
    ops.Delete: operator.delete,
    ops.SetLimit: operator.set_limit,
    ops.ClearLimit: operator.clear_limit,
    ops.Pause: operator.pause,
    ops.Resume: operator.resume,
    ops.TakeSlot: upkeep.take_slot,
    ops.DropSlot: upkeep.drop_slot,
    ops.PutSchedule: upkeep.put_schedule,
    ops.DropSchedule: upkeep.drop_schedule,
    ops.Fire: upkeep.fire,
    ops.Maintain: upkeep.maintain,
    ops.Reconcile: upkeep.reconcile,
    ops.ReconcileSlots: upkeep.reconcile_slots,
}


class SqliteEngine:
    """Jobs in one SQLite file that several processes may share."""

    def __init__(self, path: Path, settings: Settings, clock: Clock) -> None:
        self.path = path
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._open()

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> SqliteEngine:
        return cls(file.path_of(url), settings, clock)

    def _open(self) -> None:
        self._writer = file.open_writer(self.path, self._settings.busy_timeout, self._clock)
        self._readers: list[sqlite3.Connection] = []
        self._pid = os.getpid()

    def _after_fork(self) -> None:
        """A connection must not be used, nor closed, by a child of the process that opened it."""
        with self._lock:
            if self._pid != os.getpid():
                _INHERITED.extend([self._writer, *self._readers])
                self._open()

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        if self._pid != os.getpid():
            self._after_fork()
        with file.translated(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                answers = self._run(self._writer, batch)
                self._writer.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
        return answers

    def _run(self, connection: sqlite3.Connection, batch: Sequence[Op]) -> list[Answer]:
        tx = Transaction(Db(connection), self._clock.now_ms(), self._settings.sweep)
        answers: list[Answer] = []
        for kind, run in groupby(batch, key=type):
            answers.extend(_OPERATIONS[kind](tx, list(run)))
        tx.books.flush()
        return answers

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        self._check_shared(connection)
        with file.translated(self.path), _as_we_expect(connection):
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("SAVEPOINT tenure")
            try:
                answers = self._run(connection, batch)
                connection.execute("RELEASE tenure")
            except BaseException:
                # Some errors end the whole transaction, and the savepoint with it.
                if connection.in_transaction:
                    connection.execute("ROLLBACK TO tenure")
                    connection.execute("RELEASE tenure")
                raise
        return answers

    def _check_shared(self, connection: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise InvalidInput("connection", "must be a sqlite3.Connection to the queue's file")
        main = next(
            row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"
        )
        if not main or not Path(main).samefile(self.path):
            raise InvalidInput(
                "connection", f"is to {main or 'memory'}, but the queue is in {self.path}"
            )
        if connection.isolation_level is None and not connection.in_transaction:
            raise InvalidInput(
                "connection", "has no open transaction: execute BEGIN IMMEDIATE first"
            )

    def read(self, query: Query) -> Found:
        if self._pid != os.getpid():
            self._after_fork()
        with file.translated(self.path), self._reader() as connection:
            connection.execute("BEGIN")
            try:
                return reads.read(Db(connection), query, self._clock.now_ms())
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            spare = self._readers.pop() if self._readers else None
        connection = spare or file.open_reader(self.path, self._settings.busy_timeout)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            keep = not self._closed
            if keep:
                self._readers.append(connection)
        if not keep:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers, self._readers = self._readers, []
        if self._pid == os.getpid():
            for connection in [*readers, self._writer]:
                connection.close()


# Connections of a parent process: kept, because closing them here would harm it.
_INHERITED: list[sqlite3.Connection] = []


@contextmanager
def _as_we_expect(connection: sqlite3.Connection) -> Iterator[None]:
    """A caller's connection may decode text in its own way."""
    text_factory = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = text_factory
