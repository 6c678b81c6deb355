"""Jobs of others that an operation with a grant names are not waited for, not locked, and not
touched, even if one takes the place of an own job meanwhile."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tenure import Busy, DependencyNotFound, JobNotFound, Queue
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.transaction import Transaction
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


@pytest.mark.parametrize("op", [op for op, _ in CALLS])
def test_a_job_of_others_is_not_locked(
    queue: Queue, engine: PostgresEngine, schema: str, op: Op
) -> None:
    queue.enqueue("q", id="theirs", tenant="theirs")
    (job,) = queue.claim("q", worker="w")
    if isinstance(op, ops.LeaseOp):
        op = replace(op, token=job.token)
    with (
        psycopg.connect(postgres.shared_url()) as mine,
        psycopg.connect(postgres.shared_url()) as other,
    ):
        engine.apply_within(mine, [op])
        other.execute(f"SELECT FROM {schema}.states FOR UPDATE NOWAIT".encode())


@pytest.mark.parametrize(("op", "expected"), CALLS)
def test_a_job_that_is_replaced_by_one_of_others_before_it_is_locked_is_not_touched(
    queue: Queue,
    engine: PostgresEngine,
    monkeypatch: pytest.MonkeyPatch,
    op: Op,
    expected: object,
) -> None:
    queue.enqueue("q", id="theirs", tenant="mine")
    replaced: list[str] = []

    def after_it_is_replaced(original: Any) -> Any:
        def call(tx: Transaction, *arguments: Any) -> Any:
            if not replaced:  # else it is the call that replaces it
                replaced.append("theirs")
                queue.delete("theirs")
                queue.enqueue("q", id="theirs", tenant="theirs")
            return original(tx, *arguments)

        return call

    for name in ("load", "hold", "existing"):  # what locks jobs
        monkeypatch.setattr(Transaction, name, after_it_is_replaced(getattr(Transaction, name)))
    (answer,) = engine.apply([op])
    assert answer == expected or type(answer) is expected
    found = queue.get("theirs")
    assert (found.tenant, found.state.value) == ("theirs", "pending")
    assert replaced
