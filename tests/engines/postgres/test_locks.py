"""A transaction that a producer keeps open: what waits for it, for how long, and what does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tests.crash.watched import PATIENCE, start, until
from tests.support import postgres

SOON = 10.0  # seconds; far below the default lease
Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def in_flight(engine: PostgresEngine, *batch: Op) -> Iterator[Connection]:
    """A transaction that has applied the batch and stays open."""
    with psycopg.connect(postgres.shared_url()) as connection:
        engine.apply_within(connection, batch)
        yield connection


def spec(id: str, **fields: Any) -> JobSpec:
    return JobSpec(**{"id": id, "queue": "q", "payload": NULL} | fields)


def claimed(engine: PostgresEngine, *ids: str) -> dict[str, tenure.Job]:
    """Jobs with these ids, enqueued and claimed."""
    engine.apply([ops.Enqueue(tuple(map(spec, ids)))])
    (answer,) = engine.apply([ops.Claim(("q",), "w", 60_000, len(ids))])
    assert isinstance(answer, ops.Leased)
    return {job.id: job for job in answer.jobs}


def child_of(*parents: str, **fields: Any) -> ops.Enqueue:
    return ops.Enqueue((spec("child", after=parents, queue="r", **fields),))


def state(engine: PostgresEngine, id: str) -> str:
    found = engine.read(queries.GetJob(id))
    assert isinstance(found, tenure.Job)
    return found.state.value


def waits_for_a_lock(schema: str) -> bool:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        return bool(connection.execute(query, (f"%{schema}.%",)).fetchall())


# Renewing ---------------------------------------------------------------------------------------


def test_leases_are_renewed_beside_a_producer_that_holds_a_parent(engine: PostgresEngine) -> None:
    """All of them, including that of the parent."""
    jobs = claimed(engine, "a", "parent", "b")
    extend: list[Op] = [ops.Extend(job.id, job.token, 600_000) for job in jobs.values()]
    with in_flight(engine, child_of("parent")):
        assert start(engine.apply, extend).result(SOON) == [ops.Ok()] * 3
        for job in jobs.values():
            found = engine.read(queries.GetJob(job.id))
            assert isinstance(found, tenure.Job)
            assert found.lease_until is not None
            assert job.lease_until is not None
            assert found.lease_until > job.lease_until + 500_000


def test_progress_is_reported_beside_a_producer_that_holds_a_parent(
    engine: PostgresEngine,
) -> None:
    jobs = claimed(engine, "a", "parent")
    report: list[Op] = [ops.Progress(job.id, job.token, 40, "half") for job in jobs.values()]
    with in_flight(engine, child_of("parent")):
        assert start(engine.apply, report).result(SOON) == [ops.Ok()] * 2
    found = engine.read(queries.GetJob("parent"))
    assert isinstance(found, tenure.Job)
    assert (found.progress, found.note) == (40, "half")


def test_a_job_that_another_transaction_holds_costs_no_other_job_its_lease(
    engine: PostgresEngine, schema: str
) -> None:
    jobs = claimed(engine, "a", "held", "b")
    extend: list[Op] = [ops.Extend(job.id, job.token, 60_000) for job in jobs.values()]
    with in_flight(engine, ops.Cancel(("held",))) as other:
        began = time.monotonic()
        first, second, third = start(engine.apply, extend).result(SOON)
        assert time.monotonic() - began < SOON / 2
        assert (first, third) == (ops.Ok(), ops.Ok())
        assert isinstance(second, tenure.Busy)
        other.rollback()
    assert engine.apply(extend) == [ops.Ok()] * 3


def test_a_renewal_of_a_held_job_under_an_old_token_is_lost_at_once(engine: PostgresEngine) -> None:
    job = claimed(engine, "held")["held"]
    with in_flight(engine, ops.Cancel(("held",))):
        (answer,) = answered(engine, [ops.Extend("held", job.token - 1, 60_000)])
    assert answer == tenure.LeaseLost("held", "leased")


def test_a_renewal_that_meets_a_short_transaction_waits_for_what_becomes_of_it(
    engine: PostgresEngine, schema: str
) -> None:
    jobs = claimed(engine, "a", "held")
    extend: list[Op] = [ops.Extend(job.id, job.token, 60_000) for job in jobs.values()]
    with in_flight(engine, ops.Cancel(("held",))) as other:
        extended = start(engine.apply, extend)
        until(lambda: waits_for_a_lock(schema))
        other.commit()
        assert extended.result(SOON) == [ops.Ok(), tenure.LeaseLost("held", "cancelled")]


def test_of_several_renewals_of_a_job_each_is_judged_by_its_token(engine: PostgresEngine) -> None:
    jobs = claimed(engine, "a")
    token = jobs["a"].token
    answers = engine.apply(
        [
            ops.Extend("a", token, 10_000),
            ops.Extend("a", token - 1, 1),
            ops.Extend("nobody", 1, 1),
            ops.Extend("a", token, 900_000),
        ]
    )
    assert answers == [
        ops.Ok(),
        tenure.LeaseLost("a", "leased"),
        tenure.JobNotFound("nobody"),
        ops.Ok(),
    ]
    found = engine.read(queries.GetJob("a"))
    assert isinstance(found, tenure.Job)
    assert found.lease_until is not None
    assert found.lease_until - found.updated_at == 900_000


# Ending a parent --------------------------------------------------------------------------------


def endings(job: tenure.Job) -> dict[str, Op]:
    return {
        "ack": ops.Ack(job.id, job.token),
        "fail": ops.Fail(job.id, job.token, "x", fatal=True),
        "cancel": ops.Cancel((job.id,)),
    }


@pytest.mark.parametrize("how", ["ack", "fail", "cancel"])
def test_a_parent_that_cannot_end_yet_holds_up_nobody_else(
    engine: PostgresEngine, how: str
) -> None:
    """A group commit also contains operations of others."""
    jobs = claimed(engine, "a", "parent", "b")
    others = [ops.Ack(jobs[id].id, jobs[id].token) for id in "ab"]
    with in_flight(engine, child_of("parent", if_parent_fails="cancel")) as producer:
        batch: list[Op] = [others[0], endings(jobs["parent"])[how], others[1]]
        first, held, last = start(engine.apply, batch).result(SOON)
        assert (first, last) == (ops.Ok(), ops.Ok())
        assert isinstance(held, tenure.Busy)
        assert [state(engine, id) for id in ("a", "parent", "b")] == ["done", "leased", "done"]
        producer.commit()
    assert not isinstance(engine.apply([batch[1]])[0], tenure.TenureError)
    assert state(engine, "child") == ("pending" if how == "ack" else "cancelled")


@pytest.mark.parametrize("applied", [True, False])
def test_only_if_nothing_of_a_batch_was_applied_its_error_is_that_of_the_batch(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """The first part of a batch is applied while a producer holds a job of the second. The store
    is lost before one of the parts."""
    jobs = claimed(engine, "a", "parent")
    batch: list[Op] = [ops.Ack(job.id, job.token) for job in jobs.values()]
    lost = tenure.StoreError("the server is gone")
    apply = engine.apply
    with in_flight(engine, child_of("parent")) as producer:

        def apply_part(part: list[Op], fence: None) -> list[Answer]:
            if part == batch[1:] or not applied:
                raise lost
            answers = apply(part)
            producer.rollback()
            return answers

        monkeypatch.setattr(engine, "apply", apply_part)
        if applied:
            assert apply(batch) == [ops.Ok(), lost]
        else:
            with pytest.raises(tenure.StoreError, match="is gone"):
                apply(batch)


def test_many_parents_that_cannot_end_yet_cost_no_more_time_than_one(
    engine: PostgresEngine,
) -> None:
    ids = [f"p{n:02}" for n in range(30)]
    jobs = claimed(engine, *ids, "free")
    batch: list[Op] = [ops.Ack(job.id, job.token) for job in jobs.values()]
    with in_flight(engine, child_of(*ids)):
        *held, free = start(engine.apply, batch).result(SOON)
        assert all(isinstance(answer, tenure.Busy) for answer in held)
        assert free == ops.Ok()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_an_ack_that_waits_for_a_producer_tells_the_child_if_there_is_one(
    engine: PostgresEngine, schema: str, commits: bool, alone: bool
) -> None:
    """A single ack is one statement; with other operations it is part of a transaction."""
    job = claimed(engine, "parent")["parent"]
    batch: list[Op] = [ops.Ack(job.id, job.token)]
    if not alone:
        batch.append(ops.TakeSlot("s", "k", "h", 60_000))
    with in_flight(engine, child_of("parent")) as producer:
        acked = start(engine.apply, batch)
        until(lambda: waits_for_a_lock(schema))
        producer.commit() if commits else producer.rollback()
        assert acked.result(SOON)[0] == ops.Ok()
    if commits:
        assert state(engine, "child") == "pending"


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("how", ["ack", "fail", "cancel"])
def test_a_child_that_comes_while_its_parent_is_about_to_end_waits_to_see_it(
    engine: PostgresEngine, schema: str, how: str, commits: bool
) -> None:
    job = claimed(engine, "parent")["parent"]
    with in_flight(engine, endings(job)[how]) as ending:
        enqueued = start(engine.apply, [child_of("parent", if_parent_fails="cancel")])
        until(lambda: waits_for_a_lock(schema))
        ending.commit() if commits else ending.rollback()
        (answer,) = enqueued.result(SOON)
        assert isinstance(answer, ops.Enqueued)
    if not commits:
        assert state(engine, "child") == "waiting"
    else:
        assert state(engine, "child") == ("pending" if how == "ack" else "cancelled")


def test_a_producer_in_a_fixed_snapshot_does_not_overlook_the_end_of_a_parent(
    engine: PostgresEngine,
) -> None:
    job = claimed(engine, "parent")["parent"]
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        engine.apply([ops.Ack(job.id, job.token)])
        with pytest.raises(tenure.Busy):
            engine.apply_within(connection, [child_of("parent")])


def test_a_worker_tells_later_what_it_could_not_tell_at_once(
    queue: tenure.Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job is a parent that a producer holds when it ends."""
    app = tenure.Tenure(postgres.url_of(tmp_path))
    may_end, runs = threading.Event(), list[str]()

    @app.task(queue="q")
    def work() -> None:
        runs.append("parent")
        may_end.wait(PATIENCE)

    async def main() -> None:
        worker = app.worker(lease=30)
        working = asyncio.create_task(worker.run())
        with psycopg.connect(postgres.shared_url()) as producer:
            await asyncio.to_thread(until, lambda: bool(runs))
            queue.enqueue("r", id="child", after=["parent"], connection=producer)
            may_end.set()
            await asyncio.to_thread(until, lambda: "Ack of job parent" in caplog.text)
            assert queue.get("parent").state == "leased"
            producer.commit()
        await asyncio.to_thread(until, lambda: queue.get("parent").state == "done")
        await worker.stop()
        await working

    work.using(id="parent").enqueue()
    asyncio.run(main())
    assert runs == ["parent"]
    assert queue.get("child").state == "pending"
    app.close()


# Operators --------------------------------------------------------------------------------------


OPERATIONS: list[Op] = [
    ops.SetLimit("q", concurrency=5),
    ops.Pause("q"),
    ops.Resume("q"),
    ops.ClearLimit("q"),
]


def kind(op: Op) -> str:
    return type(op).__name__


@pytest.mark.parametrize("op", OPERATIONS, ids=kind)
def test_an_operator_does_not_wait_for_ever_behind_a_producer(
    engine: PostgresEngine, op: Op
) -> None:
    """The producer's job is the first of its tenant, so it locks the limits."""
    claimed(engine, "a")
    with psycopg.connect(postgres.shared_url()) as producer:
        sql = f"SELECT FROM {engine.address.schema}.queues FOR KEY SHARE"
        producer.execute(sql.encode())
        began = time.monotonic()
        with pytest.raises(tenure.Busy, match="another transaction"):
            start(engine.apply, [op]).result(SOON)
        assert time.monotonic() - began < SOON / 2
        producer.rollback()
    assert engine.apply([op]) == [ops.Ok()]


@pytest.mark.parametrize("op", OPERATIONS[:2], ids=kind)
def test_an_operator_names_a_queue_that_a_producer_is_about_to_make(
    engine: PostgresEngine, op: Op
) -> None:
    with in_flight(engine, ops.Enqueue((spec("a"),))) as producer:
        with pytest.raises(tenure.Busy):
            start(engine.apply, [op]).result(SOON)
        producer.commit()
    assert engine.apply([op]) == [ops.Ok()]


@pytest.mark.parametrize("op", OPERATIONS, ids=kind)
def test_an_operator_need_not_wait_for_the_first_job_of_a_tenant(
    engine: PostgresEngine, op: Op
) -> None:
    claimed(engine, "a")
    with in_flight(engine, ops.Enqueue((spec("b", tenant="new"),))) as producer:
        assert start(engine.apply, [op]).result(SOON) == [ops.Ok()]
        producer.commit()
    assert state(engine, "b") == "pending"


def answered(engine: PostgresEngine, batch: list[Op]) -> list[Answer]:
    return start(engine.apply, batch).result(SOON)


def test_a_key_that_a_producer_holds_costs_only_those_who_want_it(engine: PostgresEngine) -> None:
    claimed(engine, "a")
    with in_flight(engine, ops.Enqueue((spec("b", unique_key="k"),))) as producer:
        batch: list[Op] = [
            ops.Enqueue((spec("c"),)),
            ops.Enqueue((spec("d", unique_key="k"),)),
            ops.Enqueue((spec("e"),)),
        ]
        first, held, last = answered(engine, batch)
        assert isinstance(first, ops.Enqueued)
        assert isinstance(held, tenure.Busy)
        assert isinstance(last, ops.Enqueued)
        producer.commit()
    (answer,) = answered(engine, batch[1:2])
    assert isinstance(answer, tenure.Duplicate)


def test_a_producer_waits_for_another_no_longer_than_the_busy_timeout(
    schema: str, tmp_path: Path
) -> None:
    settings = tenure.Settings(busy_timeout=1)
    wants = ops.Enqueue((spec("b", unique_key="k"),))
    with (
        closing(PostgresEngine(postgres.url_of(tmp_path), settings, SystemClock())) as engine,
        in_flight(engine, ops.Enqueue((spec("a", unique_key="k"),))) as first,
        psycopg.connect(postgres.shared_url()) as second,
    ):
        began = time.monotonic()
        with pytest.raises(tenure.Busy):
            start(engine.apply_within, second, [wants]).result(SOON)
        assert time.monotonic() - began >= 1
        first.rollback()
        (answer,) = engine.apply_within(second, [wants])
        assert isinstance(answer, ops.Enqueued)


# Two rows that are too old: the column of their names, and what they are made of.
OLD = {
    "once": ("key", "(key, at) VALUES (%s, 1), (%s, 1)"),
    "records": ("key", "(key, space, value, expires_at) VALUES (%s, '', '', 1), (%s, '', '', 1)"),
    "marks": ("id", "(id, at) VALUES (%s, 'epoch'), (%s, 'epoch')"),
}


@pytest.mark.parametrize("table", OLD)
def test_maintenance_does_not_wait_for_what_another_holds(
    engine: PostgresEngine, schema: str, table: str
) -> None:
    held, free = str(UUID(int=1)), str(UUID(int=2))
    name, values = OLD[table]
    where = f"FROM {schema}.{table} WHERE {name} = %s"
    with psycopg.connect(postgres.shared_url()) as holder:
        holder.execute(f"INSERT INTO {schema}.{table} {values}".encode(), (held, free))
        holder.commit()
        holder.execute(f"SELECT {where} FOR UPDATE".encode(), (held,))
        start(engine.apply, [ops.Maintain()]).result(SOON)
        left = [holder.execute(f"SELECT {where}".encode(), (one,)).rowcount for one in (held, free)]
    assert left == [1, 0]


def test_claims_under_a_key_do_not_wait_for_other_queues(
    engine: PostgresEngine, schema: str
) -> None:
    engine.apply([ops.Enqueue(tuple(spec(name, queue=name) for name in "qrs"))])
    claims = [ops.Claim((name,), "w", 60_000, 1) for name in "qr"]
    with psycopg.connect(postgres.shared_url()) as operator:
        operator.execute(f"SELECT FROM {schema}.queues WHERE queue = 's' FOR UPDATE".encode())
        once, other = answered(engine, [ops.Once("k", (claims[0],)), claims[1]])
        assert isinstance(other, ops.Leased)
        assert [job.id for job in other.jobs] == ["r"]
        assert not isinstance(once, tenure.TenureError)
