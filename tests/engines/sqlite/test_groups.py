"""Groups are found by their names in an index, however many tenants a queue has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import tenure
from tenure import NewJob
from tenure.engines.sqlite.sqlite_statements import SQL


def steps(path: Path, first: str, last: str, limit: int = 50) -> int:
    """How many instructions SQLite runs for a list of group totals."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path)) as db:
        db.set_progress_handler(step, 1)
        params = {"queue": 1, "first": first, "last": last, "limit": limit}
        rows = db.execute(SQL["group_totals"], params).fetchall()
    assert len(rows) == (1 if first == last else limit)
    return count


def test_a_total_costs_the_same_with_10_000_tenants_as_with_100(tmp_path: Path) -> None:
    spent: dict[int, tuple[int, int]] = {}
    for tenants in (100, 10_000):
        path = tmp_path / f"{tenants}.db"
        with tenure.connect(f"sqlite:///{path}") as queue:
            queue.enqueue_many(
                NewJob(queue="q", tenant=f"t{n}", group=f"g{n:05}") for n in range(tenants)
            )
        spent[tenants] = steps(path, "g00050", "g00050"), steps(path, "g00010", "z")
    assert spent[10_000] == spent[100]
    assert spent[100][0] < 500  # the schema is read, too


def test_a_single_tenant_is_found_in_an_index(
    tmp_path: Path,
) -> None:
    plans = set()
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue("q", tenant="t")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        params = {"queue": 1, "first": "t", "last": "t", "limit": 1}
        for row in db.execute(f"EXPLAIN QUERY PLAN {SQL['tenants']}", params):
            plans.add(row[-1])
    assert any("queue=? AND tenant>? AND tenant<?" in plan for plan in plans), plans
