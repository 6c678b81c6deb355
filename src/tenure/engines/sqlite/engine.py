"""The engine: connections, transactions, and the table of operations."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from tenure.clock import Clock
from tenure.core import features, fencing
from tenure.core.fencing import Fence
from tenure.engines.sql.reads import read
from tenure.engines.sqlite import acks, claim, file, lock, upkeep
from tenure.engines.sqlite.counters import Books
from tenure.engines.sqlite.db import Db
from tenure.engines.sqlite.disk import Disk
from tenure.engines.sqlite.oldest import OldestReady
from tenure.engines.sqlite.reads import Snapshot
from tenure.engines.sqlite.transaction import Transaction
from tenure.engines.sqlite.watch import Version, Watch
from tenure.errors import InvalidInput
from tenure.features.operate import Operations, operate
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.model.queries import READ_SECONDS, Found, Query, took_too_long
from tenure.settings import Settings

STEPS_PER_LOOK = 100_000  # of SQLite's virtual machine, a few milliseconds

# Operations that the core does not have, or that are faster in bulk.
_OWN: Operations = {
    ops.Claim: claim.claim,
    ops.Ack: acks.ack,
    ops.Maintain: upkeep.maintain,
    ops.Reconcile: upkeep.reconcile,
    ops.ReconcileSlots: upkeep.reconcile_slots,
}


class SqliteEngine:
    """Jobs in one SQLite file that several processes may share."""

    in_flight = 1  # a file has one writer

    def __init__(self, path: Path, settings: Settings, clock: Clock) -> None:
        self.path = path
        self._settings = settings
        self._clock = clock
        self._writing = threading.Lock()
        self._reading = threading.Condition()
        self._reads = 0  # currently running
        self._readers: list[sqlite3.Connection] = []
        self._oldest = OldestReady()
        self._watcher: sqlite3.Connection | None = None
        self._watchers = 0  # opened so far
        self._closed = False
        self._disk = Disk(path)
        self._watch = Watch(self._version, lambda: self._disk.log_path)
        self._writer: sqlite3.Connection | None = self._open_writer()
        self._books: Books | None = None  # of the writer, as they were after its last commit
        _OPEN.add(self)

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> SqliteEngine:
        return cls(file.path_of(url), settings, clock)

    def _open_writer(self) -> sqlite3.Connection:
        self._disk.check()
        writer = file.open_writer(self.path, self._settings.busy_timeout, self._clock)
        self._disk.opened(writer)
        return writer

    def before_fork(self) -> None:
        """Close all connections before a fork, because SQLite cannot tell a child's connections
        from its parent's. Waits for running calls. Both processes reopen the file when needed."""
        self._writing.acquire()
        self._reading.acquire()
        while self._reads:
            self._reading.wait()
        self._close_connections()
        self._watch.before_fork()

    def after_fork(self) -> None:
        self._watch.after_fork()
        self._reading.release()
        self._writing.release()

    def apply(self, batch: Sequence[Op], fence: Fence | None = None) -> list[Answer]:
        answers: list[Answer] = []
        self.apply_to(batch, answers, fence)
        return answers

    def apply_to(
        self, batch: Sequence[Op], answers: list[Answer], fence: Fence | None = None
    ) -> None:
        with self._writing, file.translated(self.path):
            if self._writer is None:
                self._writer = self._open_writer()
            writer = self._writer
            try:
                books, found = self._begin(writer, batch, fence)
                self._disk.check()
                answers += found
                writer.execute("COMMIT")
                self._books = books
                self._watch.committed_at = monotonic()
            except BaseException as error:
                # An interrupt is raised after the commit. The tokens of claims that were not
                # committed may be given out again.
                if writer.in_transaction or isinstance(error, sqlite3.Error):
                    answers.clear()
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise
            self._disk.shorten_log(writer)

    def _begin(
        self, writer: sqlite3.Connection, batch: Sequence[Op], fence: Fence | None
    ) -> tuple[Books, list[Answer]]:
        """Begin a transaction and run a batch in it, as soon as no one else writes to the file. An
        interrupt may be raised right after it has begun."""
        wait = lock.Wait(self._settings.busy_timeout)

        def run() -> tuple[Books, list[Answer]] | None:
            if not wait.begin(writer):
                return None
            books = self._take_books(writer)
            return books, self._run(books, batch, fence)

        while (found := lock.alone(run)) is None:
            wait.sleep()
        return found

    def _take_books(self, writer: sqlite3.Connection) -> Books:
        """The books of the last transaction, if nobody else has written since; otherwise empty
        ones. They are kept again only after a commit: an error may leave them half changed.

        The version of the file is that of the snapshot which the transaction sees. SQLite decides
        the same way whether the pages that it has in memory are still valid."""
        ((version,),) = writer.execute("PRAGMA data_version").fetchall()
        books, self._books = self._books, None
        if books is None or books.version != version or books.are_many:
            return Books(Db(writer), version)
        return books

    def _run(self, books: Books, batch: Sequence[Op], fence: Fence | None) -> list[Answer]:
        tx = Transaction(books, self._clock.now_ms(), self._settings)
        if fence is not None:
            fencing.check(tx, fence)
        answers = operate(tx, batch, _OWN)
        features.end(tx)
        tx.books.flush()
        return answers

    def apply_within(
        self, connection: Any, batch: Sequence[Op], fence: Fence | None = None
    ) -> list[Answer]:
        self._disk.check_file()
        self._check_shared(connection)
        with file.translated(self.path), _default_text_factory(connection):
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            connection.execute("SAVEPOINT tenure")
            try:
                answers = self._run(Books(Db(connection)), batch, fence)
                connection.execute("RELEASE tenure")
            except BaseException:
                # Some errors roll back the whole transaction, including the savepoint.
                if connection.in_transaction:
                    connection.execute("ROLLBACK TO tenure")
                    connection.execute("RELEASE tenure")
                raise
        return answers

    def _check_shared(self, connection: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise InvalidInput("connection", "must be a sqlite3.Connection to the queue's file")
        with _default_text_factory(connection):
            names = {row[1]: row[2] for row in Db(connection).all("databases")}
        main = names["main"]
        if not main or not Path(main).samefile(self.path):
            raise InvalidInput(
                "connection", f"is to {main or 'memory'}, but the queue is in {self.path}"
            )
        by_hand = connection.isolation_level is None or getattr(connection, "autocommit", 0) is True
        if by_hand and not connection.in_transaction:
            raise InvalidInput(
                "connection", "has no open transaction: execute BEGIN IMMEDIATE first"
            )

    def read(self, query: Query) -> Found:
        self._disk.check_file()
        with file.translated(self.path), self._reader() as connection, self._deadline(connection):
            connection.execute("BEGIN")
            try:
                return read(Snapshot(Db(connection), self._clock.now_ms(), self._oldest), query)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _deadline(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Stop what takes longer than READ_SECONDS."""
        until = self._clock.monotonic() + READ_SECONDS
        connection.set_progress_handler(lambda: self._clock.monotonic() > until, STEPS_PER_LOOK)
        try:
            yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise took_too_long(READ_SECONDS) from error
            raise
        finally:
            connection.set_progress_handler(None, 0)

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A read connection, which is kept for reuse unless an error occurs."""
        with self._reading:
            self._reads += 1
            connection = self._readers.pop() if self._readers else None
        try:
            if connection is None:
                connection = file.open_reader(self.path, self._settings.busy_timeout)
            yield connection
        except BaseException:
            if connection is not None:
                connection.close()
                connection = None
            raise
        finally:
            with self._reading:
                self._reads -= 1
                if connection is not None and not self._closed:
                    self._readers.append(connection)
                    connection = None
                self._reading.notify_all()
            if connection is not None:
                connection.close()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._watch.listen(wake)

    def _version(self) -> Version | None:
        """It changes with every commit of another connection."""
        with self._reading:  # a fork or a close waits for it
            if self._closed:
                return None
            if self._watcher is None:
                timeout = self._settings.busy_timeout
                self._watcher = file.connect(self.path, timeout, create=False)
                self._watchers += 1
            row = self._watcher.execute("PRAGMA data_version").fetchone()
            return self._watchers, int(row[0])  # numbers of two connections cannot be compared

    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        return self._disk.log_bytes()

    def close(self) -> None:
        with self._writing, self._reading:
            self._closed = True
            self._close_connections()
        _OPEN.discard(self)

    def _close_connections(self) -> None:
        for connection in self._readers:
            connection.close()
        self._readers.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = self._books = None
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        self._disk.closed()


# Engines that must be told when the process forks.
_OPEN: weakref.WeakSet[SqliteEngine] = weakref.WeakSet()
_one_fork = threading.Lock()
_forking: list[SqliteEngine] = []


def _before_fork() -> None:
    _one_fork.acquire()
    _forking.extend(_OPEN)
    for engine in _forking:
        engine.before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop().after_fork()
    _one_fork.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@contextmanager
def _default_text_factory(connection: sqlite3.Connection) -> Iterator[None]:
    """Use the default text factory on a caller's connection, which may have another one."""
    text_factory = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = text_factory
