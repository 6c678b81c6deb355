"""A process learns of the commits of others as soon as they can be seen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.engines.sqlite.file_events import FileEvents
from tenure.queue import store_of
from tests.support.sizes import let

NEVER = 3600.0
PATIENCE = 20.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


class Ear:
    """Listens to a queue, and forgets what the start of listening told it."""

    def __init__(self, queue: tenure.Queue) -> None:
        self.heard = threading.Event()
        self.stop = store_of(queue).engine.listen(self.heard.set)
        assert self.heard.wait(PATIENCE)
        self.heard.clear()


@pytest.fixture
def queue(file: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{file}") as queue:
        yield queue


def test_a_commit_of_another_is_heard_without_looking(
    file: Path, queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_looks_at_a_file=0.0)
    let(monkeypatch, seconds_between_looks_at_an_idle_file=NEVER)
    ear = Ear(queue)
    with tenure.connect(f"sqlite:///{file}") as other:
        for _ in range(3):
            other.enqueue("mail")
            assert ear.heard.wait(PATIENCE)
            ear.heard.clear()
    ear.stop()


def test_a_commit_of_another_is_heard_soon_after_one_of_our_own(
    file: Path, queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_looks_at_a_file=NEVER)  # reached if there is no end of commits
    let(monkeypatch, seconds_between_looks_at_an_idle_file=NEVER)
    ear = Ear(queue)
    with tenure.connect(f"sqlite:///{file}") as other:
        for _ in range(3):
            queue.enqueue("mail")
            assert ear.heard.wait(PATIENCE)
            ear.heard.clear()
            other.enqueue("mail")
            assert ear.heard.wait(PATIENCE)
            ear.heard.clear()
    ear.stop()


def test_without_events_it_is_found_by_looking(
    file: Path, queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileEvents, "of", lambda path: None)
    let(monkeypatch, seconds_between_looks_at_an_idle_file=NEVER)
    ear = Ear(queue)
    with tenure.connect(f"sqlite:///{file}") as other:
        other.enqueue("mail")
    assert ear.heard.wait(PATIENCE)
    ear.stop()


def test_a_log_that_was_deleted_and_made_again_is_followed(
    file: Path, queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork closes all connections. Closing the last one deletes the log."""
    let(monkeypatch, seconds_between_looks_at_a_file=0.01)
    let(monkeypatch, seconds_between_looks_at_an_idle_file=0.2)
    ear = Ear(queue)
    store_of(queue).engine.before_fork()  # type: ignore[attr-defined]
    assert not file.with_name("jobs.db-wal").exists()
    store_of(queue).engine.after_fork()  # type: ignore[attr-defined]
    with tenure.connect(f"sqlite:///{file}") as other:
        for _ in range(3):
            other.enqueue("mail")
            assert ear.heard.wait(PATIENCE)
            ear.heard.clear()
    ear.stop()


def test_the_thread_ends_when_nobody_listens(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_looks_at_a_file=0.0)
    let(monkeypatch, seconds_between_looks_at_an_idle_file=NEVER)
    ear = Ear(queue)
    lookout = store_of(queue).engine._watch._lookout  # type: ignore[attr-defined]
    assert lookout.thread.is_alive()
    ear.stop()
    lookout.thread.join(PATIENCE)
    assert not lookout.thread.is_alive()
    assert lookout._events is None


def test_it_can_be_listened_to_again(file: Path, queue: tenure.Queue) -> None:
    for _ in range(3):
        ear = Ear(queue)
        with tenure.connect(f"sqlite:///{file}") as other:
            other.enqueue("mail")
        assert ear.heard.wait(PATIENCE)
        ear.stop()
