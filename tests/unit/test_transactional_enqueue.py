"""enqueue(connection=...): the job is part of the caller's own transaction."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tenure
from tests.support.audit import audit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def queue(path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{path}") as queue:
        yield queue
    assert audit(path) == []


def implicit(path: Path) -> sqlite3.Connection:
    """As sqlite3 makes them: a transaction begins with the first change."""
    return sqlite3.connect(path)


def explicit(path: Path) -> sqlite3.Connection:
    """One whose caller begins transactions by hand, and has."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


@pytest.fixture(params=[implicit, explicit])
def connection(
    request: pytest.FixtureRequest, path: Path, queue: tenure.Queue
) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE orders (id TEXT)")
    with closing(request.param(path)) as connection:
        yield connection


def order(connection: sqlite3.Connection, id: str = "order-1") -> None:
    connection.execute("INSERT INTO orders VALUES (?)", (id,))


def orders(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM orders ORDER BY id")]


def ids(queue: tenure.Queue) -> list[str]:
    return sorted(job.id for job in queue.jobs().jobs)


# Together or not at all -------------------------------------------------------------------------


def test_a_commit_brings_the_job_and_the_callers_change(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path
) -> None:
    order(connection)
    job = queue.enqueue("mail", {"order": 1}, id="job", connection=connection)
    assert (job.id, job.state, job.payload) == ("job", "pending", {"order": 1})
    assert connection.in_transaction
    assert ids(queue) == []
    connection.commit()
    assert queue.get("job").payload == {"order": 1}
    assert orders(path) == ["order-1"]
    assert [job.id for job in queue.claim("mail")] == ["job"]


def test_a_rollback_takes_both_back(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path
) -> None:
    order(connection)
    queue.enqueue("mail", id="job", connection=connection)
    connection.rollback()
    assert ids(queue) == []
    assert orders(path) == []
    assert queue.claim("mail") == []
    queue.enqueue("mail", id="job")  # the id is free


def test_the_job_may_come_before_the_callers_change(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path
) -> None:
    queue.enqueue("mail", id="job", connection=connection)
    assert connection.in_transaction
    order(connection)
    connection.rollback()
    assert (ids(queue), orders(path)) == ([], [])


def test_many_jobs_are_part_of_the_transaction(
    queue: tenure.Queue, connection: sqlite3.Connection
) -> None:
    order(connection)
    jobs = [tenure.NewJob(queue="mail", id=f"job-{n}", payload=n) for n in range(3)]
    assert queue.enqueue_many(jobs, connection=connection) == ["job-0", "job-1", "job-2"]
    queue.enqueue_many([], connection=connection)
    assert ids(queue) == []
    connection.commit()
    assert ids(queue) == ["job-0", "job-1", "job-2"]


def test_the_awaited_forms_do_the_same(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path
) -> None:
    async def main() -> None:
        order(connection)
        await queue.aenqueue("mail", id="job-0", connection=connection)
        connection.rollback()
        assert ids(queue) == []
        connection.execute("BEGIN IMMEDIATE")
        order(connection)
        job = await queue.aenqueue("mail", id="job-1", connection=connection)
        assert job.id == "job-1"
        news = [tenure.NewJob(queue="mail", id="job-2")]
        assert await queue.aenqueue_many(news, connection=connection) == ["job-2"]
        connection.commit()
        assert (await queue.aget("job-1")).state == "pending"

    asyncio.run(main())
    assert ids(queue) == ["job-1", "job-2"]
    assert orders(path) == ["order-1"]


def test_several_calls_share_one_transaction(
    queue: tenure.Queue, connection: sqlite3.Connection
) -> None:
    connection.rollback()
    queue.limits.set("mail", tenant="acme", concurrency=1)
    connection.execute("BEGIN IMMEDIATE")
    for n in range(5):
        queue.enqueue("mail", "x" * 2000, id=f"{n}", tenant="acme", connection=connection)
    queue.enqueue("mail", id="last", after=["0", "1"], connection=connection)
    queue.enqueue("mail", id="later", delay=60, unique_key="k", connection=connection)
    connection.commit()
    assert len(ids(queue)) == 7
    assert queue.get("last").state == "waiting"
    assert len(queue.claim("mail", limit=10)) == 1


def test_a_reader_of_the_same_process_sees_the_job_after_the_commit(
    queue: tenure.Queue, connection: sqlite3.Connection
) -> None:
    assert queue.jobs().jobs == []  # a reader is open from here on
    queue.enqueue("mail", id="job", connection=connection)
    with pytest.raises(tenure.JobNotFound):
        queue.get("job")
    connection.commit()
    assert queue.get("job").state == "pending"
    assert queue.stats("mail").ready == 1


# Refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["id", "unique_key"])
def test_a_duplicate_leaves_the_callers_transaction_as_it_was(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path, field: str
) -> None:
    # Through the caller's connection, since it may hold the lock already.
    queue.enqueue("mail", connection=connection, **{field: "held"})  # type: ignore[arg-type]
    order(connection)
    with pytest.raises(tenure.Duplicate):
        queue.enqueue("mail", connection=connection, **{field: "held"})  # type: ignore[arg-type]
    new: dict[str, Any] = {field: "held"}
    with pytest.raises(tenure.Duplicate):
        queue.enqueue_many(
            [tenure.NewJob(queue="mail", id="fine"), tenure.NewJob(queue="mail", **new)],
            connection=connection,
        )
    assert connection.in_transaction
    order(connection, "order-2")
    queue.enqueue("mail", id="next", connection=connection)
    connection.commit()
    assert orders(path) == ["order-1", "order-2"]
    assert len(ids(queue)) == 2
    assert "fine" not in ids(queue)


def test_a_duplicate_may_be_passed_over(
    queue: tenure.Queue, connection: sqlite3.Connection
) -> None:
    queue.enqueue("mail", 1, id="job", connection=connection)
    queue.enqueue("mail", 2, id="job", if_exists="skip", connection=connection)
    connection.commit()
    assert queue.get("job").payload == 1


def test_without_a_transaction_a_manual_connection_is_refused(
    queue: tenure.Queue, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(tenure.InvalidInput, match="BEGIN IMMEDIATE"):
            queue.enqueue("mail", connection=connection)
        assert not connection.in_transaction
    assert ids(queue) == []


def test_an_implicit_connection_gets_its_transaction(queue: tenure.Queue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        queue.enqueue("mail", id="job", connection=connection)
        assert connection.in_transaction
        assert ids(queue) == []
    assert ids(queue) == []  # closing is not committing
    with closing(sqlite3.connect(path)) as connection, connection:
        queue.enqueue("mail", id="job", connection=connection)
    assert ids(queue) == ["job"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="autocommit came with Python 3.12")
def test_autocommit_is_heeded(queue: tenure.Queue, path: Path) -> None:
    if sys.version_info >= (3, 12):
        with closing(sqlite3.connect(path, autocommit=True)) as connection:
            # commit() does nothing on such a connection, so it must have begun by itself.
            with pytest.raises(tenure.InvalidInput, match="BEGIN IMMEDIATE"):
                queue.enqueue("mail", connection=connection)
            connection.execute("BEGIN IMMEDIATE")
            queue.enqueue("mail", id="job-1", connection=connection)
            connection.execute("COMMIT")
        with closing(sqlite3.connect(path, autocommit=False)) as connection:
            queue.enqueue("mail", id="undone", connection=connection)
            connection.rollback()
            queue.enqueue("mail", id="job-2", connection=connection)
            connection.commit()
        assert ids(queue) == ["job-1", "job-2"]


def test_a_connection_to_another_file_is_refused(queue: tenure.Queue, tmp_path: Path) -> None:
    for other in (":memory:", "", str(tmp_path / "other.db")):
        with closing(sqlite3.connect(other)) as connection:
            connection.execute("CREATE TABLE mine (id)")
            with pytest.raises(tenure.InvalidInput, match="connection: is to"):
                queue.enqueue("mail", connection=connection)
            assert not connection.in_transaction
            assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


@pytest.mark.parametrize("wrong", ["sqlite:///x.db", 5, object()])
def test_what_is_no_connection_is_refused(queue: tenure.Queue, wrong: object) -> None:
    with pytest.raises(tenure.InvalidInput, match="connection"):
        queue.enqueue("mail", connection=wrong)
    assert ids(queue) == []


def test_a_connection_to_the_file_by_another_name_is_taken(
    queue: tenure.Queue, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(path)
    with closing(sqlite3.connect(tmp_path / "link.db")) as connection:
        queue.enqueue("mail", id="job", connection=connection)
        connection.commit()
    assert ids(queue) == ["job"]


def test_the_memory_engine_refuses() -> None:
    with (
        tenure.connect("memory://") as queue,
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(tenure.InvalidInput, match="connection"),
    ):
        queue.enqueue("mail", connection=connection)


def test_invalid_input_leaves_the_callers_transaction_as_it_was(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path
) -> None:
    order(connection)
    with pytest.raises(tenure.InvalidInput):
        queue.enqueue("", connection=connection)
    with pytest.raises(tenure.DependencyNotFound):
        queue.enqueue("mail", after=["nobody"], connection=connection)
    connection.commit()
    assert orders(path) == ["order-1"]
    assert ids(queue) == []


def test_a_snapshot_that_is_too_old_is_refused_and_the_caller_can_try_again(
    queue: tenure.Queue, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM tenure_jobs").fetchall()
        queue.enqueue("mail", id="other")  # somebody else commits meanwhile
        with pytest.raises(tenure.Busy):
            queue.enqueue("mail", id="job", connection=connection)
        connection.rollback()
        connection.execute("BEGIN IMMEDIATE")
        queue.enqueue("mail", id="job", connection=connection)
        connection.commit()
    assert ids(queue) == ["job", "other"]


# The caller's connection is the caller's ---------------------------------------------------------


def as_dicts(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("row_factory", [sqlite3.Row, as_dicts])
def test_the_callers_row_factory_does_not_matter(
    queue: tenure.Queue, connection: sqlite3.Connection, row_factory: Callable[..., Any]
) -> None:
    connection.row_factory = row_factory
    order(connection)
    queue.enqueue("mail", id="job-1", connection=connection)
    queue.enqueue("mail", id="job-2", after=["job-1"], connection=connection)
    assert connection.row_factory is row_factory
    assert connection.execute("SELECT id FROM orders").fetchone()["id"] == "order-1"
    connection.commit()
    assert ids(queue) == ["job-1", "job-2"]


@pytest.mark.parametrize("text_factory", [bytes, lambda data: data.decode()[::-1]])
def test_the_callers_text_factory_does_not_matter(
    queue: tenure.Queue, connection: sqlite3.Connection, text_factory: Callable[[bytes], Any]
) -> None:
    connection.text_factory = text_factory
    order(connection)
    assert queue.enqueue("mail", id="job-1", unique_key="k", connection=connection).id == "job-1"
    with pytest.raises(tenure.Duplicate) as refused:
        queue.enqueue("mail", unique_key="k", connection=connection)
    assert refused.value.job_id == "job-1"
    assert connection.text_factory is text_factory
    assert connection.execute("SELECT id FROM orders").fetchone() == (text_factory(b"order-1"),)
    connection.commit()
    assert ids(queue) == ["job-1"]


def test_a_half_read_result_of_the_caller_stays_readable(
    queue: tenure.Queue, connection: sqlite3.Connection
) -> None:
    for n in range(5):
        order(connection, f"order-{n}")
    for n, (id,) in enumerate(connection.execute("SELECT id FROM orders ORDER BY id")):
        assert id == f"order-{n}"
        queue.enqueue("mail", id=id, connection=connection)
        with pytest.raises(tenure.Duplicate):
            queue.enqueue("mail", id=id, connection=connection)
    connection.commit()
    assert len(ids(queue)) == 5


def test_the_callers_savepoints_hold_the_job_too(
    queue: tenure.Queue, connection: sqlite3.Connection, path: Path
) -> None:
    order(connection)
    connection.execute("SAVEPOINT mine")
    queue.enqueue("mail", id="undone", connection=connection)
    connection.execute("ROLLBACK TO mine")
    queue.enqueue("mail", id="done", connection=connection)
    connection.execute("RELEASE mine")
    connection.commit()
    assert ids(queue) == ["done"]
    assert orders(path) == ["order-1"]


# Killed -----------------------------------------------------------------------------------------


def die_before_the_commit(path: str) -> None:
    with tenure.connect(f"sqlite:///{path}") as queue:
        connection = sqlite3.connect(path)
        order(connection, "half")
        queue.enqueue("mail", id="half", connection=connection)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_caller_killed_before_its_commit_leaves_neither(queue: tenure.Queue, path: Path) -> None:
    with closing(sqlite3.connect(path)) as own:
        own.execute("CREATE TABLE orders (id TEXT)")
    code = f"from {__name__} import die_before_the_commit as die; die({str(path)!r})"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (ids(queue), orders(path)) == ([], [])
    queue.enqueue("mail", id="half")  # the lock is free, and so is the id
    assert ids(queue) == ["half"]
