"""Jobs of others that an operation with a grant names are not waited for, and not locked."""

from __future__ import annotations

import psycopg
import pytest

from tenure import Busy, DependencyNotFound, JobNotFound, Queue
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Grant, Op
from tests.support import postgres

MINE = Grant(tenants=("mine",))
CHILD = JobSpec(id="c", queue="q", tenant="mine", payload=NULL, after=("theirs",))
CALLS: list[tuple[Op, object]] = [
    (ops.Cancel(("theirs",), grant=MINE), ops.Changed(0, ("theirs",))),
    (ops.Delete(("theirs",), grant=MINE), ops.Changed(0, ("theirs",))),
    (ops.Ack("theirs", 1, grant=MINE), JobNotFound),
    (ops.Fail("theirs", 1, grant=MINE), JobNotFound),
    (ops.Extend("theirs", 1, 1_000, grant=MINE), JobNotFound),
    (ops.Enqueue((CHILD,), grant=MINE), DependencyNotFound),
]


@pytest.mark.parametrize(("op", "expected"), CALLS)
@pytest.mark.parametrize("also", [(), (ops.Cancel(("none",)), ops.Ack("none", 1))])
def test_a_locked_job_of_others_is_not_waited_for(
    queue: Queue,
    engine: PostgresEngine,
    schema: str,
    op: Op,
    expected: object,
    also: tuple[Op, ...],
) -> None:
    queue.enqueue("q", id="theirs", tenant="theirs")
    with psycopg.connect(postgres.shared_url()) as other:
        other.execute(f"SELECT FROM {schema}.states FOR UPDATE".encode())
        answer = engine.apply([op, *also])[0]
        assert answer == expected or type(answer) is expected


@pytest.mark.parametrize(("op", "expected"), CALLS)
def test_a_locked_job_of_others_is_not_waited_for_beside_one_that_is(
    queue: Queue, engine: PostgresEngine, schema: str, op: Op, expected: object
) -> None:
    queue.enqueue("q", id="theirs", tenant="theirs")
    queue.enqueue("q", id="mine", tenant="mine")
    with psycopg.connect(postgres.shared_url()) as other:
        other.execute(f"SELECT FROM {schema}.states FOR UPDATE".encode())
        blocked, answer = engine.apply([ops.Cancel(("mine",), grant=MINE), op])
        assert isinstance(blocked, Busy)
        assert answer == expected or type(answer) is expected
