"""What one statement or transaction may do at most: rows that it deletes, bytes that it returns,
jobs that it sweeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure.engines.sqlite import transaction
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops
from tenure.model.records import NewRecord, PutRecords
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.support.sizes import let

LARGE = 11_000  # bytes of a payload that is fetched separately


def test_maintenance_deletes_no_more_records_than_its_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), clock)
    engine.apply([PutRecords(tuple(NewRecord("rate", f"k{n}", b"1", 10) for n in range(5)))])
    clock.advance(1)
    left = []
    for _ in range(3):
        engine.apply([ops.Maintain(limit=2)])
        with closing(sqlite3.connect(engine.path)) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM tenure_records").fetchall()
        left.append(count)
    engine.close()
    assert left == [3, 1, 0]


def test_large_payloads_are_not_packed_into_one_value(tmp_path: Path) -> None:
    """All that is claimed together could exceed what SQLite allows for a value."""
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue_many([tenure.NewJob(queue="q", payload="x" * LARGE) for _ in range(20)])
        engine = store_of(queue).engine
        assert isinstance(engine, SqliteEngine)
        assert engine._writer is not None
        engine._writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5 * LARGE)
        claim = ops.Claim(("q",), "w", 60_000, limit=10)
        found = engine.apply([claim, claim])
        jobs = [job for leased in found if isinstance(leased, ops.Leased) for job in leased.jobs]
        assert [len(job.payload) for job in jobs] == [LARGE] * 20


def test_all_claims_of_a_transaction_sweep_no_more_than_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and of however many queues."""
    let(monkeypatch, jobs_swept_in_a_step=3)
    clock = ManualClock()
    url = f"sqlite:///{tmp_path}/jobs.db"
    with tenure.connect(url, clock=clock, settings=tenure.Settings(sweep=2)) as queue:
        for name in ("a", "b", "c"):
            queue.enqueue_many([tenure.NewJob(queue=name) for _ in range(4)])
            assert len(queue.claim(name, limit=4, lease=1)) == 4
            queue.pause(name)
        clock.advance(2)
        claim = ops.Claim(("c", "b", "a"), "w", 60_000, limit=1)
        left = []
        for _ in range(5):
            store_of(queue).engine.apply([claim, claim, claim])
            left.append(sum(queue.stats(name).leased for name in ("a", "b", "c")))
        assert left == [9, 6, 3, 0, 0]


def test_the_error_groups_of_a_queue_are_counted_once_in_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if each failure begins a new one."""
    counted: list[tuple[object, ...]] = []
    count_records = transaction.Transaction.count_records

    def noted(tx: transaction.Transaction, *params: object) -> int:
        counted.append(params)
        return count_records(tx, *params)  # type: ignore[arg-type]

    monkeypatch.setattr(transaction.Transaction, "count_records", noted)
    clock = ManualClock()
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as queue:
        queue.enqueue_many([tenure.NewJob(queue="q", kind=f"k{n}") for n in range(50)])
        assert len(queue.claim("q", limit=50, lease=1)) == 50
        clock.advance(2)
        queue.claim("q")
        assert len(counted) == 1
        assert len(queue.errors.list(limit=100).errors) == 50
