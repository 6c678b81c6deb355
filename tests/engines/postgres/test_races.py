"""PostgreSQL: two transactions that meet in the worst order, enforced by locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.postgres_statements import statements
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tests.crash.watched import PATIENCE, start, until
from tests.support import audit_postgres, postgres


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres.url_of(tmp_path), tenure.Settings(), SystemClock())
    yield engine
    engine.close()
    assert audit_postgres.audit(postgres.shared_url(), postgres.schema_of(tmp_path)) == []
    postgres.drop(tmp_path)


def spec(id: str, **fields: str) -> JobSpec:
    return JobSpec(id, "q", NULL, made_up_id=True, **fields)  # type: ignore[arg-type]


def claimed(engine: PostgresEngine, limit: int = 10) -> list[tenure.Job]:
    (answer,) = engine.apply([ops.Claim(("q",), "w", 60_000, limit)])
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def waiting(schema: str) -> int:
    """How many transactions of the store wait for another."""
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        return len(connection.execute(query, (f"%{schema}.%",)).fetchall())


def test_a_lane_is_kept_for_a_job_that_came_after_the_books_were_brought_up_to_date(
    engine: PostgresEngine,
) -> None:
    """Maintenance holds the books, which show that the lane is empty. Before it looks for empty
    lanes, a job is enqueued in this one and acknowledged to its caller."""
    schema = engine.address.schema
    engine.apply([ops.Enqueue((spec("a", tenant="t"),))])
    (job,) = claimed(engine)
    engine.apply([ops.Ack(job.id, job.token, keep=False)])
    with psycopg.connect(postgres.shared_url()) as maintenance:
        opened = f"SELECT FROM {schema}.open_books('{{q}}', NULL, true, false)"
        maintenance.execute(opened.encode())
        empty = f"SELECT id, done + ready + leased FROM {schema}.lanes".encode()
        assert [count for _, count in maintenance.execute(empty).fetchall()] == [0]
        (answer,) = engine.apply([ops.Enqueue((spec("b", tenant="t"),))])
        assert isinstance(answer, ops.Enqueued)
        maintenance.execute(f"SELECT {schema}.drop_empty(id, 100) FROM {schema}.queues".encode())
        maintenance.commit()
    assert [job.id for job in claimed(engine)] == ["b"]


@pytest.mark.parametrize("bound", [ops.Pause("q"), ops.SetLimit("q", concurrency=1)])
def test_a_queue_that_is_bound_while_a_claim_waits_for_it_is_no_longer_plain(
    engine: PostgresEngine, bound: ops.Pause | ops.SetLimit
) -> None:
    """The claim saw a queue without limits, and waits for the operator who sets one."""
    schema = engine.address.schema
    engine.apply([ops.Enqueue(tuple(spec(id) for id in "abcde"))])
    (first,) = claimed(engine, 1)
    with psycopg.connect(postgres.shared_url()) as operator:
        engine.apply_within(operator, [bound])
        claim = start(engine.apply, [ops.Claim(("q",), "w", 60_000, 10)])
        until(lambda: waiting(schema) > 0)
        operator.commit()
        (answer,) = claim.result(PATIENCE)
    assert isinstance(answer, ops.Leased)
    assert answer.jobs == []
    assert first.id == "a"


def test_lanes_that_two_make_at_once_are_made_in_one_order(engine: PostgresEngine) -> None:
    """One who waits for a lane has not made those that come after it, which would be a deadlock."""
    schema = engine.address.schema
    engine.apply([ops.Enqueue((spec("a", tenant="t"),))])
    make = f"SELECT {schema}.lanes_of(%s, %s, %s)".encode()

    def lanes(*groups: str) -> tuple[list[str], ...]:
        return ["q"] * len(groups), ["t"] * len(groups), list(groups)

    with (
        psycopg.connect(postgres.shared_url()) as first,
        psycopg.connect(postgres.shared_url()) as second,
    ):
        first.execute(make, lanes("y"))
        other = start(second.execute, make, lanes("z", "x", "y"))
        until(lambda: waiting(schema) > 0)
        first.execute(make, lanes("z"))
        first.commit()
        other.result(PATIENCE)


def test_a_tenant_is_kept_for_a_job_in_a_lane_that_is_being_made(engine: PostgresEngine) -> None:
    """Maintenance finds the tenant without jobs, and cannot see the lane yet."""
    schema = engine.address.schema
    engine.apply([ops.Enqueue((spec("a", tenant="t"),))])
    (job,) = claimed(engine)
    engine.apply([ops.Ack(job.id, job.token, keep=False)])
    assert claimed(engine) == []
    with (
        psycopg.connect(postgres.shared_url()) as producer,
        psycopg.connect(postgres.shared_url()) as maintenance,
    ):
        lane = ["{q}", "{t}", "{new}", "{1}", "{b}", '{"null"}', '{""}', "{0}", "{3}"]
        producer.execute(statements(schema).sql["enqueue"], (None, *lane, *["{}"] * 6))
        maintenance.execute(f"SELECT {schema}.drop_empty(id, 100) FROM {schema}.queues".encode())
        maintenance.commit()
        producer.commit()
    assert [job.id for job in claimed(engine)] == ["b"]


def test_jobs_are_locked_in_the_order_of_their_places(engine: PostgresEngine) -> None:
    """The first job has been moved behind the others, where the table is read last."""
    schema = engine.address.schema
    engine.apply([ops.Enqueue(tuple(spec(id) for id in "abc"))])
    (job,) = claimed(engine, 1)
    assert job.id == "a"
    load = f"SELECT {schema}.load(%s, '{{}}')".encode()
    with (
        psycopg.connect(postgres.shared_url()) as first,
        psycopg.connect(postgres.shared_url()) as second,
    ):
        first.execute(load, (["a"],))
        other = start(second.execute, load, (["c", "b", "a"],))
        until(lambda: waiting(schema) > 0)
        first.execute(load, (["b", "c"],))
        first.commit()
        other.result(PATIENCE)


def rows_read(schema: str, table: str) -> int:
    query = (
        "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_all_tables"
        " WHERE schemaname = %s AND relname = %s"
    )
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        ((count,),) = connection.execute(query, (schema, table)).fetchall()
    return int(count)


def test_lanes_are_dropped_without_reading_the_news_of_other_queues(
    engine: PostgresEngine,
) -> None:
    schema = engine.address.schema
    engine.apply([ops.Enqueue((spec("a"),))])
    (job,) = claimed(engine)
    engine.apply([ops.Ack(job.id, job.token, keep=False)])
    assert claimed(engine) == []
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        zeros = ", ".join(["0"] * 7)
        news = "queue, lane, waiting, delayed, ready, leased, done, dead, cancelled"
        connection.execute(
            f"INSERT INTO {schema}.news ({news})"
            f" SELECT -1, -1, {zeros} FROM generate_series(1, 1000)".encode()
        )
        connection.execute("SELECT pg_stat_force_next_flush()")
        before = rows_read(schema, "news")
        connection.execute(f"SELECT {schema}.drop_empty(id, 9) FROM {schema}.queues".encode())
        connection.execute("SELECT pg_stat_force_next_flush()")
        assert rows_read(schema, "news") - before < 100
        assert connection.execute(f"SELECT FROM {schema}.lanes".encode()).fetchall() == []
        connection.execute(f"DELETE FROM {schema}.news WHERE queue = -1".encode())
