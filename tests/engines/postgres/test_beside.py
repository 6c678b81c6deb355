"""PostgreSQL: a claim beside another that has the books of the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import tenure
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.session import Db
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tests.crash.watched import PATIENCE, start, until
from tests.support import postgres


@pytest.fixture
def books_held(schema: str, queue: tenure.Queue) -> Iterator[None]:
    """A queue that was worked off, whose books another has; and one that is full."""
    for name in ("mail", "web"):
        queue.enqueue(name, id=f"first-{name}", tenant="acme")
        queue.ack(queue.claim(name)[0])
        assert queue.claim(name) == []
        assert queue.claim(name) == []
    queue.enqueue("web", tenant="acme", priority=-1)
    with psycopg.connect(postgres.shared_url()) as holder:
        holder.execute(
            f"SELECT FROM {schema}.queues WHERE queue = 'mail' FOR NO KEY UPDATE".encode()
        )
        yield


@pytest.mark.usefixtures("books_held")
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_jobs_that_only_the_news_tell_of_are_found_in_order(
    queue: tenure.Queue, tenant: str | None
) -> None:
    for name, priority in (("b", 0), ("a", -5), ("c", 0)):
        queue.enqueue("mail", id=name, tenant="acme", priority=priority)
    assert [job.id for job in queue.claim("mail", limit=2, tenant=tenant)] == ["a", "b"]
    assert [job.id for job in queue.claim("mail", limit=2, tenant=tenant)] == ["c"]
    assert queue.claim("mail", tenant=tenant) == []


@pytest.mark.usefixtures("books_held")
def test_a_tenant_that_has_no_jobs_gets_none_of_another(queue: tenure.Queue) -> None:
    queue.enqueue("mail", id="a", tenant="acme")
    assert queue.claim("mail", tenant="bolt") == []
    assert [job.id for job in queue.claim("mail", tenant="acme")] == ["a"]


def enqueue(engine: PostgresEngine, tenant: str, n: int) -> None:
    specs = [JobSpec(f"{tenant}{i}", "q", NULL, tenant=tenant) for i in range(n)]
    engine.apply([ops.Enqueue(tuple(specs))])


def ids_of(answer: object) -> list[str]:
    assert isinstance(answer, ops.Leased)
    return [job.id for job in answer.jobs]


@pytest.fixture
def limited_tenant_to_come(engine: PostgresEngine) -> PostgresEngine:
    """A queue with one lane, and with a limit of a tenant that has no jobs yet."""
    engine.apply([ops.SetLimit("q", "A", None, 1)])
    enqueue(engine, "a", 1)
    engine.apply([ops.Claim(("q",), "w", 60_000, 5)])
    return engine


def test_the_limit_of_a_tenant_that_comes_during_a_claim_holds(
    limited_tenant_to_come: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = limited_tenant_to_come
    send = Db.send

    def come(db: Db, name: str, *params: Any) -> Any:
        if name == "candidates_beside":
            enqueue(engine, "A", 3)
        return send(db, name, *params)

    enqueue(engine, "a", 2)
    with psycopg.connect(postgres.shared_url()) as holder:
        query = f"SELECT FROM {engine.address.schema}.queues FOR NO KEY UPDATE"
        holder.execute(query.encode())
        monkeypatch.setattr(Db, "send", come)
        # A claim that leaves out a group takes several statements.
        (leased,) = engine.apply([ops.Claim(("q",), "w", 60_000, 5, not_groups=("g",))])
        monkeypatch.undo()
    assert len([one for one in ids_of(leased) if one.startswith("A")]) <= 1


# The original, which then waits once for a lock of the test.
_WAITS = """
ALTER FUNCTION {0}.is_plain(integer) RENAME TO is_plain_now;
CREATE FUNCTION {0}.is_plain(one integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found boolean := {0}.is_plain_now(one);
BEGIN
    PERFORM set_config('tenure.asked',
        coalesce(current_setting('tenure.asked', true), '') || 'x', true);
    IF current_setting('tenure.asked') = 'xx' THEN
        PERFORM pg_advisory_xact_lock_shared({0}.about_lock());
    END IF;
    RETURN found;
END $$;
CREATE FUNCTION {0}.about_lock() RETURNS bigint LANGUAGE sql
AS $$ SELECT hashtextextended('{0}', 1) $$;
"""


def test_the_limit_of_a_tenant_that_comes_during_a_claim_of_one_statement_holds(
    limited_tenant_to_come: PostgresEngine,
) -> None:
    engine = limited_tenant_to_come
    schema = engine.address.schema
    enqueue(engine, "a", 2)
    with psycopg.connect(postgres.shared_url()) as other:
        other.execute(_WAITS.format(schema).encode())
        other.commit()
        other.execute(f"SELECT pg_advisory_xact_lock({schema}.about_lock())".encode())
        done = start(engine.apply, [ops.Claim(("q",), "w", 60_000, 5)])
        until(lambda: done.done() or waiting(engine) > 0)
        assert not done.done()
        enqueue(engine, "A", 3)
        other.rollback()
        (leased,) = done.result(PATIENCE)
    assert len([one for one in ids_of(leased) if one.startswith("A")]) <= 1


def waiting(engine: PostgresEngine) -> int:
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        return len(connection.execute(query, (f"%{engine.address.schema}.%",)).fetchall())
