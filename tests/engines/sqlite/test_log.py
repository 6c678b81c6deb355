"""The write-ahead log stays short although there is never a moment without a reader."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import tenure
from tenure.queue import store_of
from tests.support.audit import audit
from tests.support.sizes import let

LIMIT = 512 * 1024
BATCH = [tenure.NewJob(queue="mail", payload="x" * 1000) for _ in range(50)]


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test need not write 32 MiB."""
    let(monkeypatch, bytes_of_the_log=LIMIT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{path}") as queue:
        yield queue


def length(queue: tenure.Queue) -> int:
    found: int = store_of(queue).engine.log_bytes()  # type: ignore[attr-defined]
    return found


def read(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM tenure_queues").fetchone()


@contextmanager
def overlapping_readers(path: Path) -> Iterator[None]:
    """Two readers, each of which ends its snapshot only once the other has begun a new one."""
    stop = threading.Event()

    def take_turns() -> None:
        with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(path)) as other:
            read(one)
            while not stop.wait(0.002):
                read(other)
                one.rollback()
                one, other = other, one

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_the_log_stays_short_under_readers_that_overlap(queue: tenure.Queue, path: Path) -> None:
    longest = 0
    with overlapping_readers(path):
        for _ in range(60):  # about 8 MB of log
            queue.enqueue_many(BATCH)
            longest = max(longest, length(queue))
    assert longest < 3 * LIMIT
    queue.close()
    assert audit(path) == []


def test_a_reader_that_does_not_end_costs_no_commit(
    queue: tenure.Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, milliseconds_until_a_file_is_busy=1)
    with closing(sqlite3.connect(path)) as reader:
        read(reader)
        for _ in range(40):
            queue.enqueue_many(BATCH)
        assert length(queue) > 2 * LIMIT
        reader.rollback()
    for _ in range(3):  # the first of these writes begins the log anew
        queue.enqueue_many(BATCH)
    assert length(queue) <= LIMIT
    queue.close()
    assert audit(path) == []


def test_attempts_to_shorten_the_log_become_rarer_while_a_reader_stays(
    queue: tenure.Queue, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, milliseconds_until_a_file_is_busy=1)
    attempts: list[str] = []
    writer: sqlite3.Connection = store_of(queue).engine._writer  # type: ignore[attr-defined]
    writer.set_trace_callback(lambda sql: attempts.append(sql) if "checkpoint" in sql else None)
    with closing(sqlite3.connect(path)) as reader:
        read(reader)
        for _ in range(60):
            queue.enqueue_many(BATCH)
        assert length(queue) > 4 * LIMIT
        reader.rollback()
    assert 1 <= len(attempts) < 20
    assert writer.execute("PRAGMA busy_timeout").fetchone() == (0,)


def test_a_log_that_cannot_be_shortened_is_no_failed_commit(
    queue: tenure.Queue,
) -> None:
    writer: sqlite3.Connection = store_of(queue).engine._writer  # type: ignore[attr-defined]
    store_of(queue).engine._disk._next_attempt = 0  # type: ignore[attr-defined]
    refused: list[str] = []

    def refuse(action: int, name: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_PRAGMA and name == "wal_checkpoint":
            refused.append(name)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    writer.set_authorizer(refuse)
    queue.enqueue("mail", id="job")
    writer.set_authorizer(None)
    assert refused
    assert queue.get("job").state == "pending"


def test_the_length_of_the_log_is_in_the_stats(queue: tenure.Queue, path: Path) -> None:
    queue.enqueue("mail", "x" * 10_000)
    found = queue.stats().log_bytes
    assert found == path.with_name("jobs.db-wal").stat().st_size
    assert found > 10_000
    with tenure.connect("memory://") as other:
        assert other.stats().log_bytes is None
