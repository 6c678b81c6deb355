"""Jobs are found by their error group, by an index."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import tenure

QUERY = """
    SELECT j.id FROM tenure_states s JOIN tenure_jobs j ON j.seq = s.seq
    WHERE s.error = ? ORDER BY s.seq
"""


def test_jobs_of_a_group_are_found_by_an_index(tmp_path: Path) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        for n in range(3):
            queue.enqueue("mail", id=f"job-{n}")
            (job,) = queue.claim("mail")
            queue.fail(job, "alpha" if n else "beta", retry_in=60)
        group = queue.get("job-1").errors[-1].group
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        assert [row[0] for row in db.execute(QUERY, (group,))] == ["job-1", "job-2"]
        plan = str(db.execute(f"EXPLAIN QUERY PLAN {QUERY}", (group,)).fetchall())
    assert "tenure_states_error" in plan
