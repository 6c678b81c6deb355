"""A claim from a queue of many tenants is one statement if each tenant is served once. The
comparison with the model checks that it serves the same tenants as several statements do."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure import Job
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tests.crash.watched import PATIENCE, start, until
from tests.support import postgres

LIMIT = ops.SetLimit("q", None, None, 4)
EACH = ops.SetLimit("q", "*", None, 2)


def enqueue(engine: PostgresEngine, tenants: str, **fields: Any) -> None:
    """Jobs of these tenants, folded into the books."""
    specs = [JobSpec(f"{t}{n}", "q", NULL, tenant=t, **fields) for n, t in enumerate(tenants)]
    engine.apply([ops.Enqueue(tuple(specs))])
    engine.apply([ops.Maintain()])


def claim(n: int, worker: str = "w") -> ops.Claim:
    return ops.Claim(("q",), worker, 60_000, n)


def jobs_of(answer: object) -> list[Job]:
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def ids_of(answer: object) -> list[str]:
    return [job.id for job in jobs_of(answer)]


def acks(*answers: object) -> list[ops.Ack]:
    return [ops.Ack(job.id, job.token) for answer in answers for job in jobs_of(answer)]


def test_tenants_are_served_in_turn_by_one_statement_each(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT, EACH])
    enqueue(engine, "cabcabcab")
    statements.clear()
    (first,) = engine.apply([claim(2)])
    assert ids_of(first) == ["a1", "b2"]
    *_, second = engine.apply([*acks(first), claim(2)])
    assert ids_of(second) == ["c0", "a4"]
    *_, third = engine.apply([*acks(second), claim(3)])
    assert ids_of(third) == ["b5", "c3", "a7"]
    assert [name for name in statements if name != "notify"] == [
        "claim_alone",
        "ack_and_claim",
        "ack_and_claim",
    ]
    found: Any = engine.read(queries.GetStats("q"))
    assert [(stats.done, stats.leased, stats.ready) for stats in found] == [(4, 3, 2)]


def test_each_call_gets_the_jobs_that_are_leased_to_its_worker(engine: PostgresEngine) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "dcba")  # whose turns are not in the order of their jobs
    first, second = engine.apply([claim(1, "v"), claim(3, "w")])
    assert [(job.id, job.worker) for job in jobs_of(first)] == [("a3", "v")]
    assert [(job.id, job.worker) for job in jobs_of(second)] == [
        ("b2", "w"),
        ("c1", "w"),
        ("d0", "w"),
    ]
    assert {type(answer) for answer in engine.apply(acks(first, second))} == {ops.Ok}


def test_a_claim_that_finds_nothing_leases_nothing(
    engine: PostgresEngine, statements: list[str]
) -> None:
    enqueue(engine, "ab", group="g")
    others = ops.Claim(("q",), "w", 60_000, 1, not_groups=("g",))
    statements.clear()
    assert engine.apply([others, others]) == [ops.Leased([]), ops.Leased([])]
    assert "lease" not in statements
    engine.apply([ops.Enqueue((JobSpec("c", "q", NULL),))])
    assert [ids_of(answer) for answer in engine.apply([others, others])] == [["c"], []]
    assert "lease" in statements


def test_no_limit_is_exceeded(engine: PostgresEngine, statements: list[str]) -> None:
    engine.apply([LIMIT, EACH])
    enqueue(engine, "abc" * 5)
    taken = [ids_of(answer) for _ in range(3) for answer in engine.apply([claim(3)])]
    assert taken == [["a0", "b1", "c2"], ["a3"], []]
    assert "claim_alone" in statements
    engine.apply([ops.SetLimit("q", None, None, 100)])
    (rest,) = engine.apply([claim(9)])
    assert ids_of(rest) == ["b4", "c5"]


@pytest.mark.parametrize(
    ("tenants", "limits", "expected"),
    [
        pytest.param("aab", [], ["a0", "b2", "a1"], id="a tenant is served twice"),
        pytest.param(
            "abc", [ops.SetLimit("q", None, None, rate=1, per_ms=60_000)], ["a0"], id="a rate"
        ),
    ],
)  # fmt: skip
def test_what_takes_more_than_one_statement_is_done_by_several(
    engine: PostgresEngine,
    statements: list[str],
    tenants: str,
    limits: list[ops.SetLimit],
    expected: list[str],
) -> None:
    engine.apply([LIMIT, *limits])
    enqueue(engine, tenants)
    statements.clear()
    (leased,) = engine.apply([claim(3)])
    assert ids_of(leased) == expected
    assert "lease" in statements


def test_a_tenant_that_is_served_again_before_another_is_served_by_several(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT, ops.SetLimit("q", "a", None, weight=4)])
    enqueue(engine, "aaabb")
    (first,) = engine.apply([claim(2)])
    assert ids_of(first) == ["a0", "b3"]
    assert "lease" not in statements
    (second,) = engine.apply([claim(2)])
    assert ids_of(second) == ["a1", "a2"]
    assert "lease" in statements


def test_a_job_that_another_has_locked_is_passed_over_by_several_statements(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "abcd")
    (held,) = engine.apply([claim(1)])
    with psycopg.connect(postgres.shared_url()) as other:
        schema = engine.address.schema
        query = (
            f"SELECT FROM {schema}.states s JOIN {schema}.jobs j USING (seq) "
            "WHERE j.id = 'b1' FOR UPDATE OF s"
        )
        other.execute(query.encode())
        statements.clear()
        *acked, leased = engine.apply([*acks(held), claim(2)])
    assert acked == [ops.Ok()]
    assert ids_of(leased) == ["c2", "d3"]
    assert "lease" in statements


def test_a_claim_that_waits_is_bound_by_what_was_set_meanwhile(engine: PostgresEngine) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "abcd")
    with psycopg.connect(postgres.shared_url()) as operator:
        engine.apply_within(operator, [ops.SetLimit("q", None, None, 1)])
        done = start(engine.apply, [claim(2)])
        until(lambda: done.done() or waiting(engine) > 0)
        assert not done.done()
        operator.commit()
        (leased,) = done.result(PATIENCE)
    assert ids_of(leased) == ["a0"]


def waiting(engine: PostgresEngine) -> int:
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        return len(connection.execute(query, (f"%{engine.address.schema}.%",)).fetchall())


def test_a_job_that_expires_while_the_claim_waits_for_the_books_is_not_leased(
    engine: PostgresEngine, schema: str
) -> None:
    """The claim found nothing due before it waited."""
    engine.apply([LIMIT])
    enqueue(engine, "ab", expires_in_ms=60_000)
    with psycopg.connect(postgres.shared_url()) as connection:
        text = f"""
            SELECT c.id FROM {schema}.states s, {schema}.claim_in_turns(gen_random_uuid(),
                s.expires_at, s.queue, '{{1, 1}}', '{{w}}', '{{60000}}', 3::smallint, 1,
                s.expires_at - 1, '{{}}') c
            WHERE s.seq = (SELECT min(seq) FROM {schema}.states)"""
        rows = connection.execute(text.encode()).fetchall()
    assert rows == [(None,)]  # it cannot be done in one statement
    found: Any = engine.read(queries.GetStats("q"))
    assert [(stats.leased, stats.ready) for stats in found] == [(0, 2)]


@pytest.mark.parametrize(("turn", "found"), [(150, None), (149, ["a", "b"])])
def test_a_tie_of_turns_takes_more_than_one_statement(
    engine: PostgresEngine, schema: str, turn: int, found: list[str] | None
) -> None:
    """If `a` has its next turn when `b` has its first, their names decide who is served."""
    engine.apply([LIMIT])
    enqueue(engine, "aabb")
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(f"SET search_path TO {schema}".encode())
        connection.execute("UPDATE queues SET served = 99, first_turn = 0")
        connection.execute("UPDATE tenants SET stride = 50, turn = 100 WHERE tenant = 'a'")
        connection.execute("UPDATE tenants SET turn = %s WHERE tenant = 'b'", (turn,))
        rows = connection.execute(
            "SELECT n.names, takes_turns(q.id, 2) FROM queues q, next_turns(q.id, 2) n"
        ).fetchall()
        connection.rollback()
    assert rows == [(found, found is not None)]
