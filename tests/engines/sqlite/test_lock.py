"""Waiting for the lock of a file that other writers hold."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import tenure
from tenure.engines.sqlite import lock
from tenure.engines.sqlite.disk import Disk
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.errors import StoreReadOnly
from tenure.queue import store_of


def engine_of(queue: tenure.Queue) -> SqliteEngine:
    engine = store_of(queue).engine
    assert isinstance(engine, SqliteEngine)
    return engine


class Sleeps:
    """Takes the place of `time` while a writer waits: time passes only when it sleeps."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.then: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return sum(self.steps)

    def sleep(self, seconds: float) -> None:
        self.steps.append(seconds)
        self.then()


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    found = Sleeps()
    monkeypatch.setattr(lock, "time", found)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{path}", settings=tenure.Settings(busy_timeout=2.0)) as queue:
        yield queue


@pytest.fixture
def other(path: Path, queue: tenure.Queue) -> Iterator[sqlite3.Connection]:
    """Another writer, which has the lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def test_a_writer_looks_often_for_a_moment_in_which_the_lock_is_free(
    queue: tenure.Queue, other: sqlite3.Connection, sleeps: Sleeps
) -> None:
    sleeps.then = lambda: other.execute("ROLLBACK") if len(sleeps.steps) == 200 else None
    queue.enqueue("mail")
    assert len(sleeps.steps) == 200
    assert sleeps.steps[0] == 0.0001
    assert sleeps.steps == sorted(sleeps.steps)
    assert sleeps.steps[-1] == 0.001
    assert sum(sleeps.steps[:36]) < 0.01  # a lock that is free for a tenth of the time is found


def test_a_writer_gives_up_after_the_timeout_and_changes_nothing(
    queue: tenure.Queue, other: sqlite3.Connection, sleeps: Sleeps
) -> None:
    with pytest.raises(tenure.Busy, match="stayed locked by another writer"):
        queue.enqueue("mail")
    assert 2.0 <= sum(sleeps.steps) < 2.002
    other.execute("ROLLBACK")
    assert queue.stats().unfinished == 0
    queue.enqueue("mail")
    assert queue.stats().unfinished == 1


def test_a_writer_does_not_wait_if_something_else_is_wrong(
    queue: tenure.Queue, sleeps: Sleeps
) -> None:
    writer = engine_of(queue)._writer
    assert writer is not None
    writer.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreReadOnly):
        queue.enqueue("mail")
    assert sleeps.steps == []


def test_the_connection_of_a_writer_does_not_wait_by_itself(queue: tenure.Queue) -> None:
    engine = engine_of(queue)
    writer = engine._writer
    assert writer is not None
    assert writer.execute("PRAGMA busy_timeout").fetchall() == [(0,)]
    engine._disk._next_attempt = 0
    queue.enqueue("mail")  # shortens the log, which waits for readers
    assert engine._disk._next_attempt > 0
    assert writer.execute("PRAGMA busy_timeout").fetchall() == [(0,)]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[tenure.Queue, tenure.Queue]]:
    """Queues in two files."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(tenure.connect(f"sqlite:///{tmp_path}/a.db")),
            stack.enter_context(tenure.connect(f"sqlite:///{tmp_path}/b.db")),
        )


def during(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[], object]
) -> None:
    """Call something in the middle of the next transaction of a queue, before one of its steps."""
    engine = store_of(queue).engine
    step = getattr(engine, name)

    def called_first(*args: object) -> object:
        monkeypatch.undo()
        call()
        return step(*args)

    monkeypatch.setattr(engine, name, called_first)


def test_transactions_of_two_files_do_not_run_at_once(
    two: tuple[tenure.Queue, tenure.Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    ended: list[str] = []

    def enqueue_to_b() -> None:
        b.enqueue("mail")
        ended.append("b")

    thread = threading.Thread(target=enqueue_to_b)

    def meanwhile() -> None:
        thread.start()
        thread.join(0.2)  # it must wait
        ended.append("a")

    during(a, monkeypatch, "_run", meanwhile)
    a.enqueue("mail")
    thread.join()
    assert ended == ["a", "b"]


def test_commits_of_two_files_run_at_once(
    two: tuple[tenure.Queue, tenure.Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    ended: list[bool] = []

    def checked() -> None:
        """Just before the commit."""
        check()
        thread = threading.Thread(target=b.enqueue, args=("mail",), daemon=True)
        thread.start()
        thread.join(10)
        ended.append(not thread.is_alive())

    disk: Disk = engine_of(a)._disk
    check = disk.check
    monkeypatch.setattr(disk, "check", checked)
    a.enqueue("mail")
    assert ended == [True]
    assert b.stats().pending == a.stats().pending == 1


def test_a_signal_handler_can_use_another_file_in_the_middle_of_a_transaction(
    two: tuple[tenure.Queue, tenure.Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    during(a, monkeypatch, "_run", lambda: b.enqueue("mail"))
    a.enqueue("mail")
    assert b.stats().pending == a.stats().pending == 1


def test_a_signal_handler_can_use_a_file_whose_writer_waits_for_the_interrupted_one(
    two: tuple[tenure.Queue, tenure.Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two
    writer = threading.Thread(target=b.enqueue, args=("mail",), daemon=True)

    def handler() -> None:
        writer.start()
        while not engine_of(b)._writing.locked():
            time.sleep(0.001)
        b.enqueue("mail")

    during(a, monkeypatch, "_run", handler)
    caller = threading.Thread(target=a.enqueue, args=("mail",), daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()
    writer.join(20)
    assert (a.stats().pending, b.stats().pending) == (1, 2)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_can_write_whatever_a_thread_of_its_parent_was_doing(
    two: tuple[tenure.Queue, tenure.Queue],
) -> None:
    a, _ = two
    began, ends = threading.Event(), threading.Event()

    def run() -> None:
        began.set()
        ends.wait(20)

    # As a thread that has opened another file since the fork began.
    thread = threading.Thread(target=lock.alone, args=(run,))
    thread.start()
    began.wait(20)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            start = time.monotonic()
            a.enqueue("mail")
            os._exit(time.monotonic() - start >= lock.PATIENCE_SECONDS)
        os._exit(2)
    ends.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert a.stats().pending == 1


def test_an_interrupt_while_waiting_for_other_threads_leaves_nothing_locked(
    two: tuple[tenure.Queue, tenure.Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two

    def interrupt() -> None:
        raise KeyboardInterrupt

    during(a, monkeypatch, "_run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        a.enqueue("mail")
    thread = threading.Thread(target=b.enqueue, args=("mail",), daemon=True)
    start = time.monotonic()
    thread.start()
    thread.join(20)
    assert time.monotonic() - start < lock.PATIENCE_SECONDS
    assert (a.stats().pending, b.stats().pending) == (0, 1)
