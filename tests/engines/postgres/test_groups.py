"""Groups are found by their names in an index, however many tenants a queue has."""

from __future__ import annotations

from pathlib import Path

import psycopg

import tenure
from tenure.engines.postgres.statements import statements
from tests.support import postgres

TENANTS = 10_000


def rows_read(schema: str, first: str, last: str, limit: int) -> int:
    """How many rows of the books PostgreSQL reads for a list of group totals."""
    params = {"queue": 1, "first": first, "last": last, "limit": limit}
    counted = (
        "SELECT pg_stat_get_xact_tuples_returned(c) + pg_stat_get_xact_tuples_fetched(c) "
        f"FROM (SELECT '{schema}.lanes'::regclass::oid AS c UNION ALL SELECT indexrelid "
        f"FROM pg_index WHERE indrelid = '{schema}.lanes'::regclass) x"
    )
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(statements(schema).sql["group_totals"], params)
        return sum(row[0] for row in connection.execute(counted.encode()).fetchall())


def test_a_total_reads_only_its_own_rows_of_10_000_tenants(
    queue: tenure.Queue, schema: str
) -> None:
    queue.enqueue_many(
        tenure.NewJob(queue="q", tenant=f"t{n}", group=f"g{n:05}") for n in range(TENANTS)
    )
    queue.maintain()  # folds the news into the books
    assert queue.group_totals("q", group="g00050") == [tenure.GroupTotal("q", "g00050", 1, 0)]
    assert len(queue.group_totals("q", limit=50, after="g00010")) == 50
    for first, last, limit in (("g00050", "g00050", 1), ("g00010", "z", 50)):
        assert 0 < rows_read(schema, first, last, limit) <= 6 * limit


def test_a_store_of_version_4_gets_the_index(schema: str, tmp_path: Path) -> None:
    url = postgres.url_of(tmp_path)
    with tenure.connect(url) as queue:
        queue.enqueue("q", tenant="a", group="g")
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(f"DROP INDEX {schema}.lanes_group".encode())
        functions = ("group_totals", "is_overdue", "look_at_queues", "forget_queues")
        for function in functions:
            connection.execute(f"DROP FUNCTION {schema}.{function}".encode())
        connection.execute(f"ALTER TABLE {schema}.queues DROP COLUMN emptied_at".encode())
        connection.execute(statements(schema).schema[5].encode())  # the migration to version 5
    with tenure.connect(url) as queue:
        assert queue.group_totals("q") == [tenure.GroupTotal("q", "g", 1, 0)]
    with psycopg.connect(postgres.shared_url()) as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_indexes WHERE schemaname = %s AND indexname = 'lanes_group'",
            (schema,),
        ).fetchall()
    assert found == [(1,)]
