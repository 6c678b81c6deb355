"""A lane's head that is wrong in the store, by a bug or by hand, is put right by reconcile."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest

import tenure
from tests.support import postgres


def claimed_after_reconcile(url: str) -> list[str]:
    with tenure.connect(url) as queue:
        queue.reconcile("q")
        return [job.id for job in queue.claim("q", limit=3)]


def three_jobs(url: str) -> None:
    with tenure.connect(url) as queue:
        for name in ("a", "b", "c"):
            queue.enqueue("q", id=name, tenant="acme")
        queue.limits.set("q", concurrency=10)
        (job,) = queue.claim("q")  # so that the head is written down
        queue.release(job)


@pytest.mark.parametrize("wrong", ["b", "c"])
def test_a_sqlite_lane_gets_its_first_job_back(tmp_path: Path, wrong: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    three_jobs(url)
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        find = "SELECT seq FROM tenure_jobs WHERE id = ?"
        connection.execute(f"UPDATE tenure_lanes SET head_seq = ({find})", (wrong,))
    connection.close()
    assert claimed_after_reconcile(url) == ["a", "b", "c"]


@pytest.mark.parametrize("wrong", ["b", "c"])
def test_a_postgresql_lane_gets_its_first_job_back(tmp_path: Path, wrong: str) -> None:
    url, schema = postgres.url_of(tmp_path), postgres.schema_of(tmp_path)
    three_jobs(url)
    with tenure.connect(url) as queue:
        queue.maintain()  # folds the news, so that the head is written down
    with psycopg.connect(postgres.shared_url()) as connection:
        find = f"SELECT seq FROM {schema}.jobs WHERE id = %s"
        changed = connection.execute(
            f"UPDATE {schema}.lanes SET head_seq = ({find}) WHERE head_seq IS NOT NULL".encode(),
            (wrong,),
        )
        assert changed.rowcount == 1
    assert claimed_after_reconcile(url) == ["a", "b", "c"]
    postgres.drop(tmp_path)
