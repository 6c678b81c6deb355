"""What one statement may do at most: rows that it deletes, and bytes that it returns."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import tenure
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops
from tenure.model.records import NewRecord, PutRecords
from tenure.testing import ManualClock

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
        engine = queue._engine
        assert isinstance(engine, SqliteEngine)
        assert engine._writer is not None
        engine._writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5 * LARGE)
        claim = ops.Claim(("q",), "w", 60_000, limit=10)
        found = engine.apply([claim, claim])
        jobs = [job for leased in found if isinstance(leased, ops.Leased) for job in leased.jobs]
        assert [len(job.payload) for job in jobs] == [LARGE] * 20
