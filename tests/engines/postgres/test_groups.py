"""Groups are found by their names in an index, however many tenants a queue has."""

from __future__ import annotations

import psycopg

import tenure
from tenure.engines.postgres.postgres_statements import statements
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
