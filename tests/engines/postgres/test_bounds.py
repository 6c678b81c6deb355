"""A limit that is set while a claim waits for the books of its queue applies to that claim."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tests.crash.watched import PATIENCE, until
from tests.support import postgres

CLAIM = ops.Claim(("q",), "w", 60_000, 2)
# How a claim gets the books: alone, and among other operations.
CLAIMS: dict[str, list[Op]] = {
    "alone": [CLAIM],
    "in a batch": [CLAIM, ops.TakeSlot("s", "k", "h", 1000)],
}
BOUNDS: dict[str, Op] = {
    "a paused queue": ops.Pause("q"),
    "a paused tenant": ops.Pause("q", "t"),
    "a paused group": ops.Pause("q", "t", "g"),
    "a limit of the queue": ops.SetLimit("q", concurrency=1),
    "a limit of the tenant": ops.SetLimit("q", "t", concurrency=1),
    "a limit of the group": ops.SetLimit("q", "t", "g", concurrency=1),
    "a rate": ops.SetLimit("q", rate=1, per_ms=3_600_000),
}


def waits_for_a_lock(schema: str) -> bool:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        return bool(connection.execute(query, (f"%{schema}.%",)).fetchall())


def is_plain(schema: str) -> bool:
    with psycopg.connect(postgres.shared_url()) as connection:
        query = f"SELECT {schema}.is_plain(id) FROM {schema}.queues"
        return connection.execute(query.encode()).fetchall() == [(True,)]


def leased(answers: list[Answer]) -> int:
    (answer,) = answers[:1]
    assert isinstance(answer, ops.Leased), answer
    return len(answer.jobs)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_claim_that_waits_is_bound_by_what_was_set_meanwhile(
    engine: PostgresEngine, schema: str, bound: str, claim: str
) -> None:
    """The queue has no limit when the claim begins, and looks as if it could be claimed from
    without its books. The transaction that sets one is committed once the claim waits for it."""
    jobs = [JobSpec(f"{n}", "q", NULL, tenant="t", group="g") for n in range(6)]
    engine.apply([ops.Enqueue((jobs.pop(),))])
    (first,) = engine.apply([CLAIM])
    assert isinstance(first, ops.Leased)
    engine.apply([ops.Ack(first.jobs[0].id, first.jobs[0].token), ops.Enqueue(tuple(jobs))])
    assert is_plain(schema)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(postgres.shared_url()) as operator:
        engine.apply_within(operator, [BOUNDS[bound]])
        waiting = pool.submit(engine.apply, CLAIMS[claim])
        until(lambda: waits_for_a_lock(schema))
        operator.commit()
        allowed = 0 if isinstance(BOUNDS[bound], ops.Pause) else 1
        assert leased(waiting.result(PATIENCE)) == allowed
