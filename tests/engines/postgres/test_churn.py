"""Many jobs go through a queue while an old snapshot prevents vacuuming: a claim must not read more
and more. For a longer run with times, see bench/churn.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

import tenure
from tenure.engines.postgres.postgres_statements import statements
from tests.support import postgres

HELD, CYCLES, BATCH = 300, 60, 100


def blocks_of_a_claim(schema: str, queue: str) -> int:
    """How many blocks the server reads for a claim of 100 jobs, which is then rolled back."""
    query = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statements(schema).sql["claim_alone"]
    mark = "00000000-0000-0000-0000-000000000000"
    values = (mark, None, queue, [1] * BATCH, ["w"], [60_000], 3, 1)
    with psycopg.connect(postgres.shared_url()) as connection:
        found: Any = connection.execute(query, values).fetchall()
        connection.rollback()
    plan = found[0][0][0]["Plan"]
    assert plan["Actual Rows"] == BATCH
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_claim_does_not_read_more_and_more_while_nothing_can_be_vacuumed(
    schema: str, tmp_path: Path
) -> None:
    with tenure.connect(postgres.url_of(tmp_path)) as queue:

        def enqueue(n: int) -> None:
            queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(n)])

        def cycle() -> None:
            jobs = queue.claim("mail", limit=BATCH, lease=0.05)
            assert queue.ack_many(jobs) == [None] * BATCH
            enqueue(BATCH)

        enqueue(HELD)
        with psycopg.connect(postgres.shared_url()) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute(f"SELECT count(*) FROM {schema}.states".encode())
            for _ in range(3):
                cycle()
            before = blocks_of_a_claim(schema, "mail")
            for _ in range(CYCLES):
                cycle()
            after = blocks_of_a_claim(schema, "mail")
        assert queue.stats("mail").ready == HELD
    assert after < before * 1.5, (before, after)
