"""The indexes of jobs by state: what is found in them, and a file of an older version."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import NewJob
from tenure.engines.sqlite.sqlite_statements import SQL

INDEXES = {
    "tenure_states_leased": r"\(queue=\?",
    "tenure_states_at": r"\(queue=\? AND state=\?",
}
BY_STATE = sorted((name, index) for name, text in SQL.items() for index in INDEXES if index in text)
WHOLE_QUEUE = "emptied_before"  # looks for jobs in any state


def plan(db: sqlite3.Connection, name: str) -> list[str]:
    named = dict.fromkeys(re.findall(r":(\w+)", SQL[name]), 1)
    params: Any = named or [1] * (SQL[name].count("?") if "?1" not in SQL[name] else 1)
    return [row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", params)]


@pytest.mark.parametrize(("name", "index"), BY_STATE)
def test_a_statement_searches_by_queue_and_state(name: str, index: str, tmp_path: Path) -> None:
    tenure.connect(f"sqlite:///{tmp_path}/jobs.db").close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        found = [step for step in plan(db, name) if f"INDEX {index} " in step]
    wanted = r"\(queue=\?" if name == WHOLE_QUEUE else INDEXES[index]
    assert found
    assert [step for step in found if not re.search(wanted, step)] == []


def steps(path: Path, name: str, params: dict[str, Any]) -> int:
    """How many instructions SQLite runs for a statement."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path)) as db:
        db.set_progress_handler(step, 1)
        db.execute(SQL[name], params).fetchall()
    return count


def test_a_claim_does_not_look_at_leases_that_have_not_expired(tmp_path: Path) -> None:
    spent = set()
    for leased in (10, 1_000):
        path = tmp_path / f"{leased}.db"
        with tenure.connect(f"sqlite:///{path}") as queue:
            queue.enqueue_many(NewJob(queue="q") for _ in range(leased))
            queue.claim("q", limit=leased)
        spent.add(steps(path, "anything_over", {"queue": 1, "now": 1}))
    assert len(spent) == 1


def test_a_queue_with_jobs_in_one_state_only_is_not_forgotten(tmp_path: Path) -> None:
    """Even if its counters are wrong."""
    path = tmp_path / "jobs.db"
    with tenure.connect(f"sqlite:///{path}") as queue:
        queue.enqueue("ended")
        queue.ack(queue.claim("ended")[0])
        queue.enqueue("delayed", delay=3600)
        queue.enqueue("leased")
        queue.claim("leased")
        queue.enqueue("empty", id="gone")
        queue.cancel("gone")
        queue.delete("gone")
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "UPDATE tenure_queues SET waiting = 0, delayed = 0, ready = 0, leased = 0, done = 0, "
            "dead = 0, cancelled = 0, emptied_at = 1"
        )
        found = db.execute(SQL["emptied_before"], {"after": "", "last": None, "until": 2})
        names = dict(db.execute("SELECT id, queue FROM tenure_queues"))
        assert [names[row[0]] for row in found.fetchall()] == ["empty"]
