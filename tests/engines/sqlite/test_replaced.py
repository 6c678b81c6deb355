"""A file that is deleted or replaced while it is open: nothing more is acknowledged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure.queue import store_of
from tests.support.audit import audit

GONE = r"jobs\.db was deleted or replaced while it was open; nothing was changed"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{path}") as queue:
        queue.enqueue("mail", id="first")
        yield queue


def other_store(path: Path) -> Path:
    """Another file with a job of its own, that nobody has open."""
    with tenure.connect(f"sqlite:///{path}") as queue:
        queue.enqueue("mail", id="of-the-other")
    return path


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for one in path.parent.glob("jobs.db*"):
        one.unlink()


def delete_the_log(path: Path) -> None:
    path.with_name("jobs.db-wal").unlink()


def replace(path: Path) -> None:
    other_store(path.with_name("other.db")).replace(path)


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


HARM = [delete, delete_all, delete_the_log, replace, move_away]


@pytest.mark.parametrize("harm", HARM)
def test_nothing_is_acknowledged_once_the_file_is_gone(
    queue: tenure.Queue, path: Path, harm: Callable[[Path], None]
) -> None:
    (job,) = queue.claim("mail")
    harm(path)
    for call in (
        lambda: queue.enqueue("mail", id="second"),
        lambda: queue.ack(job),
        lambda: queue.claim("mail"),
    ):
        with pytest.raises(tenure.StoreError, match=GONE):
            call()


@pytest.mark.parametrize("harm", [delete, delete_all, replace, move_away])
def test_nothing_is_read_from_a_file_that_is_gone(
    queue: tenure.Queue, path: Path, harm: Callable[[Path], None]
) -> None:
    queue.stats()
    harm(path)
    for call in (queue.stats, queue.jobs):
        with pytest.raises(tenure.StoreError, match=GONE):
            call()


@pytest.mark.parametrize("harm", [delete, delete_all, move_away])
def test_no_empty_file_is_made_in_the_place_of_one_that_is_gone(
    queue: tenure.Queue, path: Path, harm: Callable[[Path], None]
) -> None:
    harm(path)
    engine = store_of(queue).engine
    engine.before_fork()  # type: ignore[attr-defined] # closes all connections
    engine.after_fork()  # type: ignore[attr-defined]
    with pytest.raises(tenure.StoreError, match=GONE):
        queue.enqueue("mail", id="second")
    with pytest.raises(tenure.StoreError, match=GONE):
        queue.stats()
    with pytest.raises(sqlite3.OperationalError):
        engine._version()  # type: ignore[attr-defined] # what looks for changes of others
    assert not path.exists()


def test_a_file_in_the_place_of_another_is_left_alone(queue: tenure.Queue, path: Path) -> None:
    replace(path)
    for closing_first in (False, True):
        if closing_first:
            store_of(queue).engine.before_fork()  # type: ignore[attr-defined]
            store_of(queue).engine.after_fork()  # type: ignore[attr-defined]
        with pytest.raises(tenure.StoreError, match=GONE):
            queue.enqueue("mail", id="second")
    queue.close()
    for name in ("jobs.db-wal", "jobs.db-shm"):  # as the docs say
        path.with_name(name).unlink(missing_ok=True)
    with tenure.connect(f"sqlite:///{path}") as other:
        assert [job.id for job in other.jobs().jobs] == ["of-the-other"]
    assert audit(path) == []


def test_a_file_that_is_put_back_works_again(queue: tenure.Queue, path: Path) -> None:
    move_away(path)
    with pytest.raises(tenure.StoreError, match=GONE):
        queue.enqueue("mail", id="second")
    path.with_name("moved.db").rename(path)
    queue.enqueue("mail", id="third")
    assert sorted(job.id for job in queue.jobs().jobs) == ["first", "third"]
    queue.close()
    assert audit(path) == []


def test_a_callers_own_transaction_is_told_too(queue: tenure.Queue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("BEGIN IMMEDIATE")
        delete(path)
        with pytest.raises(tenure.StoreError, match=GONE):
            queue.enqueue("mail", id="second", connection=mine)


def test_a_link_may_point_to_the_file(path: Path) -> None:
    other_store(path.with_name("real.db"))
    path.symlink_to(path.with_name("real.db"))
    with tenure.connect(f"sqlite:///{path}") as queue:
        queue.enqueue("mail", id="second")
        path.unlink()
        with pytest.raises(tenure.StoreError, match=GONE):
            queue.enqueue("mail", id="third")
