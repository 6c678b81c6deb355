"""Acks and the next claim of a worker are one statement if the queue has one lane and no limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tenure import Job
from tenure.engines.postgres.engine import PostgresEngine
from tenure.errors import JobNotFound, LeaseLost, StoreError
from tenure.model import ops, queries
from tenure.model.history import heard_key
from tenure.model.job import NULL, JobSpec, State
from tests.crash.watched import PATIENCE, start, until
from tests.support import postgres

CLAIM = ops.Claim(("q",), "w", 60_000, 2)


def enqueue(engine: PostgresEngine, ids: str, **fields: Any) -> None:
    engine.apply([ops.Enqueue(tuple(JobSpec(id, "q", NULL, **fields) for id in ids))])


def claimed(engine: PostgresEngine) -> list[Job]:
    (answer,) = engine.apply([CLAIM])
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def acks(jobs: Sequence[Job]) -> list[ops.Ack]:
    return [ops.Ack(job.id, job.token) for job in jobs]


def jobs_of(answer: object) -> list[Job]:
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def ids_of(answer: object) -> list[str]:
    return [job.id for job in jobs_of(answer)]


def test_acks_and_a_claim_are_one_statement(engine: PostgresEngine, statements: list[str]) -> None:
    enqueue(engine, "abcde")
    held = claimed(engine)
    statements.clear()
    *acked, leased = engine.apply([*acks(held), CLAIM])
    assert statements == ["ack_and_claim"]
    assert acked == [ops.Ok(), ops.Ok()]
    assert ids_of(leased) == ["c", "d"]
    *_, last = engine.apply([*acks(jobs_of(leased)), CLAIM])
    assert ids_of(last) == ["e"]
    *_, none = engine.apply([*acks(jobs_of(last)), CLAIM])
    assert ids_of(none) == []
    found: Any = engine.read(queries.GetStats("q"))
    assert [(stats.done, stats.leased, stats.ready) for stats in found] == [(5, 0, 0)]


def test_a_lease_that_was_lost_is_told_with_the_state_before_the_claim(
    engine: PostgresEngine,
) -> None:
    enqueue(engine, "abcd")
    a, b = claimed(engine)
    engine.apply([ops.Release(a.id, a.token)])
    batch = [*acks([a, b]), ops.Ack("none", 1), CLAIM]
    lost, ok, missing, leased = engine.apply(batch)
    assert isinstance(lost, LeaseLost)
    assert lost.state == "pending"
    assert ok == ops.Ok()
    assert isinstance(missing, JobNotFound)
    assert ids_of(leased) == ["a", "c"]


def test_several_claims_get_the_jobs_in_order(engine: PostgresEngine) -> None:
    enqueue(engine, "abcdefg")
    held = claimed(engine)
    *_, first, second = engine.apply([*acks(held), CLAIM, CLAIM])
    assert (ids_of(first), ids_of(second)) == (["c", "d"], ["e", "f"])
    assert len({job.token for job in (*jobs_of(first), *jobs_of(second))}) == 2


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        pytest.param({"after": ("a",)}, None, id="a child waits for an acked job"),
        pytest.param({"delay_ms": 1}, None, id="a job is due"),
        pytest.param({"tenant": "t"}, None, id="there are two lanes"),
        pytest.param({}, ops.SetLimit("q", None, None, 2), id="there is a limit"),
    ],
)
def test_what_takes_more_than_one_statement_is_done_by_several(
    engine: PostgresEngine,
    statements: list[str],
    fields: dict[str, Any],
    limit: ops.SetLimit | None,
) -> None:
    enqueue(engine, "ab")
    held = claimed(engine)
    enqueue(engine, "c", **fields)
    if limit is not None:
        engine.apply([limit])
    time.sleep(0.005)  # the delay, by the server's clock
    statements.clear()
    *acked, leased = engine.apply([*acks(held), CLAIM])
    assert len(statements) > 1
    assert acked == [ops.Ok(), ops.Ok()]
    assert ids_of(leased) == ["c"]


def test_a_child_that_comes_at_the_last_moment_is_told(engine: PostgresEngine) -> None:
    """The producer has locked the parent when the statement looks for children."""
    enqueue(engine, "ab")
    held = claimed(engine)
    with psycopg.connect(postgres.shared_url()) as producer:
        child = JobSpec("child", "q", NULL, after=("a",))
        engine.apply_within(producer, [ops.Enqueue((child,))])
        done = start(engine.apply, [*acks(held), CLAIM])
        until(lambda: done.done() or waiting(engine) > 0)
        assert not done.done()
        producer.commit()
        *acked, leased = done.result(PATIENCE)
    assert acked == [ops.Ok(), ops.Ok()]
    assert ids_of(leased) == ["child"]


def test_a_queue_that_is_bound_meanwhile_is_claimed_from_within_its_limit(
    engine: PostgresEngine,
) -> None:
    enqueue(engine, "abcde")
    held = claimed(engine)
    with psycopg.connect(postgres.shared_url()) as operator:
        engine.apply_within(operator, [ops.SetLimit("q", None, None, 1)])
        done = start(engine.apply, [*acks(held), CLAIM])
        until(lambda: done.done() or waiting(engine) > 0)
        assert not done.done()
        operator.commit()
        *acked, leased = done.result(PATIENCE)
    assert acked == [ops.Ok(), ops.Ok()]
    assert ids_of(leased) == ["c"]


def test_acks_that_end_with_an_error_have_changed_nothing(engine: PostgresEngine) -> None:
    """One of them notes that its worker learns of a cancellation, and is cut off while it waits."""
    enqueue(engine, "ab")
    held = claimed(engine)
    engine.apply([ops.Cancel(("b",))])
    key = heard_key("b", held[1].token)
    with psycopg.connect(postgres.shared_url()) as other:
        query = f"INSERT INTO {engine.address.schema}.records VALUES ('past', %s, '{{}}')"
        other.execute(query.encode(), (key,))
        done = start(engine.apply, acks(held))
        until(lambda: done.done() or waiting(engine) > 0)
        assert not done.done()
        other.execute(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND query LIKE %s",
            (f"%{engine.address.schema}.%",),
        )
        with pytest.raises(StoreError):
            done.result(PATIENCE)
        other.rollback()
    job = engine.read(queries.GetJob("a"))
    assert isinstance(job, Job)
    assert job.state is State.LEASED
    assert engine.apply(acks(held)) == [ops.Ok(), LeaseLost("b", "cancelled")]


_CLOCK = """
CREATE TABLE {0}.clock AS SELECT {0}.moment(NULL) AS now_ms;
CREATE OR REPLACE FUNCTION {0}.moment(given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(given, (SELECT now_ms FROM {0}.clock))
$$;
"""


def test_a_lease_that_expires_while_acks_wait_is_found_by_the_next_claim(
    engine: PostgresEngine,
) -> None:
    schema = engine.address.schema
    enqueue(engine, "abcd")
    with psycopg.connect(postgres.shared_url(), autocommit=True) as server:
        server.execute(_CLOCK.format(schema).encode())
        engine.apply([ops.Claim(("q",), "gone", 1_000, 1)])
        held = claimed(engine)
        with psycopg.connect(postgres.shared_url()) as other:
            other.execute(
                f"SELECT FROM {schema}.states JOIN {schema}.jobs USING (seq) "
                "WHERE id = 'b' FOR UPDATE".encode()
            )
            done = start(engine.apply, [*acks(held), CLAIM])
            until(lambda: done.done() or waiting(engine) > 0)
            assert not done.done()
            server.execute(f"UPDATE {schema}.clock SET now_ms = now_ms + 10000".encode())
        *_, leased = done.result(PATIENCE)
        assert ids_of(leased) == ["d"]
        assert [job.id for job in claimed(engine)] == ["a"]


def waiting(engine: PostgresEngine) -> int:
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        return len(connection.execute(query, (f"%{engine.address.schema}.%",)).fetchall())
