"""Closing a SQLite file, and the thread that looks for what others commit to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tenure.clock import SystemClock
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops
from tenure.settings import Settings


class Looking:
    """Stands for the watch's connection, while another thread closes the engine."""

    def __init__(self, close: threading.Thread) -> None:
        self._close = close
        self.closed = threading.Event()
        self.closed_too_soon = False

    def execute(self, _sql: str) -> Looking:
        self._close.start()
        self.closed_too_soon = self.closed.wait(0.2)
        return self

    def fetchone(self) -> tuple[int]:
        return (7,)

    def close(self) -> None:
        self.closed.set()


def test_a_file_is_not_closed_while_the_watch_looks_at_it(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db", Settings(), SystemClock())
    close = threading.Thread(target=engine.close)
    looking = Looking(close)
    engine._watcher = looking  # type: ignore[assignment]
    assert engine._version() == 7
    close.join(30)
    assert looking.closed.is_set()
    assert not looking.closed_too_soon
    assert engine._version() is None


def test_who_listens_again_after_all_have_left_is_woken(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db", Settings(), SystemClock())
    first, second = threading.Event(), threading.Event()
    stop = engine.listen(first.set)
    assert first.wait(30)
    stop()
    stop()  # leaving twice is leaving once
    leave = engine.listen(second.set)
    assert second.wait(30)
    leave()
    engine.close()


def test_listeners_leave_only_under_the_lock(tmp_path: Path) -> None:
    """Or one who comes at the same time would find a thread that is about to end."""
    engine = SqliteEngine(tmp_path / "jobs.db", Settings(), SystemClock())
    watch = engine._watch
    locked: list[bool] = []

    class Watchful(list[Callable[[], None]]):
        def remove(self, one: Callable[[], None]) -> None:
            locked.append(watch._lock.locked())
            super().remove(one)

    watch._listeners = Watchful()
    engine.listen(lambda: None)()
    engine.close()
    assert locked == [True]


def test_all_writes_share_one_connection(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db", Settings(), SystemClock())
    used = []
    for _ in range(2):
        engine.apply([ops.Pause("q")])
        used.append(engine._writer)
    engine.close()
    assert used[0] is used[1] is not None
