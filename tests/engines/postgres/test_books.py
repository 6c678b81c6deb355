"""What claims and acks write to the books of a queue with several lanes, and what they need not."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from tenure import Job, Settings
from tenure.clock import SystemClock
from tenure.core import upkeep
from tenure.engines.postgres import claim as claiming
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tests.support import postgres

LIMIT = ops.SetLimit("q", None, None, 100)


def enqueue(engine: PostgresEngine, ids: str, queue: str = "q", **fields: Any) -> None:
    """A job of the tenant that each letter names."""
    specs = [JobSpec(id, queue, NULL, tenant=id[0], **fields) for id in ids.split()]
    engine.apply([ops.Enqueue(tuple(specs))])


def claim(n: int, queue: str = "q") -> ops.Claim:
    return ops.Claim((queue,), "w", 60_000, n)


def jobs_of(answer: object) -> list[Job]:
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def ids_of(answer: object) -> list[str]:
    return [job.id for job in jobs_of(answer)]


def acks(*answers: object) -> list[ops.Ack]:
    return [ops.Ack(job.id, job.token) for answer in answers for job in jobs_of(answer)]


def rows(engine: PostgresEngine, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute(f"SET search_path TO {engine.address.schema}".encode())
        return connection.execute(query.encode()).fetchall()


def updates(engine: PostgresEngine, query: str) -> dict[str, tuple[int, int]]:
    """How many rows of lanes and tenants a query updates, and how many of these updates add no
    entry to an index."""
    counted = (
        "SELECT c::regclass::text, pg_stat_get_xact_tuples_updated(c), "
        "pg_stat_get_xact_tuples_hot_updated(c) "
        "FROM unnest(ARRAY['lanes'::regclass::oid, 'tenants'::regclass::oid]) c"
    )
    with psycopg.connect(postgres.shared_url()) as connection:
        connection.execute(f"SET search_path TO {engine.address.schema}".encode())
        connection.execute(query.encode())
        found = connection.execute(counted.encode()).fetchall()
    return {name: (updated, hot) for name, updated, hot in found}


def test_acks_and_jobs_that_follow_others_add_no_index_entry_to_the_books(
    engine: PostgresEngine,
) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1 c1 a2 b2 c2")
    engine.apply([ops.Maintain()])
    (held,) = engine.apply([claim(3)])
    engine.apply(acks(held))
    fold = "SELECT fold(id, NULL) FROM queues"
    assert updates(engine, fold) == {"lanes": (3, 3), "tenants": (3, 3)}
    enqueue(engine, "a3 b3 c3")
    assert updates(engine, fold) == {"lanes": (3, 3), "tenants": (3, 3)}


def test_a_claim_in_turns_leaves_no_news(engine: PostgresEngine, statements: list[str]) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1 c1 a2 b2 c2")
    engine.apply([ops.Maintain()])
    statements.clear()
    (first,) = engine.apply([claim(2)])
    assert rows(engine, "SELECT * FROM news") == []
    *_, second = engine.apply([*acks(first), claim(2)])
    assert ids_of(second) == ["c1", "a2"]
    assert "lease" not in statements
    assert rows(engine, "SELECT * FROM news") == []
    assert rows(engine, "SELECT ready, leased, done FROM queues") == [(2, 2, 2)]


def test_acks_of_another_queue_than_that_of_the_claim_are_its_news(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1 a2 b2")
    enqueue(engine, "z1 y1", "other")
    engine.apply([ops.Maintain()])
    mine, others = engine.apply([claim(1), claim(2, "other")])
    statements.clear()
    *_, second = engine.apply([*acks(mine, others), claim(2)])
    assert [name for name in statements if name != "notify"] == ["ack_and_claim"]
    assert ids_of(second) == ["b1", "a2"]
    told = "SELECT q.queue, sum(n.leased), sum(n.done) FROM news n JOIN queues q ON q.id = n.queue"
    assert rows(engine, f"{told} WHERE q.queue = 'q' GROUP BY 1") == []
    ((queue, _, done),) = rows(engine, f"{told} GROUP BY 1")
    assert (queue, done) == ("other", 2)


def test_a_tenant_that_comes_later_is_found_however_far_the_turns_are(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "b1 c1 d1 b2 c2 d2 b3 c3 d3")
    engine.apply([ops.Maintain()])
    for _ in range(2):
        engine.apply([claim(3)])
    ((first,),) = rows(engine, "SELECT first_turn FROM queues")
    assert first > 0
    enqueue(engine, "a1 a2")
    statements.clear()
    (found,) = engine.apply([claim(2)])
    assert ids_of(found) == ["a1", "b3"]
    assert "lease" not in statements
    enqueue(engine, "0")
    (found,) = engine.apply([ops.Claim(("q", "p"), "w", 60_000, 1)])  # takes several statements
    assert ids_of(found) == ["0"]
    assert "lease" in statements


def test_a_tenant_that_may_go_on_is_found_however_far_the_turns_are(
    engine: PostgresEngine,
) -> None:
    engine.apply([LIMIT, ops.SetLimit("q", "a", None, 1)])
    enqueue(engine, "a1 b1 c1 a2 b2 c2 b3 c3 b4 c4")
    engine.apply([ops.Maintain()])
    (first,) = engine.apply([claim(3)])
    assert ids_of(first) == ["a1", "b1", "c1"]
    for _ in range(2):
        engine.apply([claim(2)])
    engine.apply([ops.SetLimit("q", "a", None, 2)])
    (found,) = engine.apply([claim(2)])
    assert ids_of(found) == ["a2", "b4"]


def test_an_ack_lets_a_tenant_go_on_however_far_the_turns_are(engine: PostgresEngine) -> None:
    engine.apply([LIMIT, ops.SetLimit("q", "a", None, 1)])
    enqueue(engine, "a1 b1 c1 a2 b2 c2 b3 c3 b4 c4")
    engine.apply([ops.Maintain()])
    (first,) = engine.apply([claim(3)])
    for _ in range(2):
        engine.apply([claim(2)])
    *_, found = engine.apply([*acks(first), claim(2)])
    assert ids_of(found) == ["a2", "b4"]


def test_a_tenants_lanes_are_served_in_the_order_of_their_first_jobs(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT, ops.SetLimit("q", "a", "closed", 0)])
    for id, group in (("a0", "closed"), ("a1", "g"), ("a2", ""), ("a3", "h"), ("a4", "")):
        enqueue(engine, id, group=group)
    enqueue(engine, "a5", group="h", priority=-1)
    enqueue(engine, "b1 b2 b3 b4 b5")
    engine.apply([ops.Maintain()])
    statements.clear()
    taken = [ids_of(answer) for _ in range(5) for answer in engine.apply([claim(2)])]
    assert taken == [["a5", "b1"], ["a1", "b2"], ["a2", "b3"], ["a3", "b4"], ["a4", "b5"]]
    assert "lease" not in statements


def test_several_statements_serve_a_tenants_lanes_in_the_same_order(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([LIMIT, ops.SetLimit("q", "a", "closed", 0)])
    for id, group in (("a0", "closed"), ("a1", "g"), ("a2", ""), ("a3", "h"), ("a4", "")):
        enqueue(engine, id, group=group)
    enqueue(engine, "a5", group="h", priority=-1)
    statements.clear()
    (found,) = engine.apply([claim(4)])
    assert ids_of(found) == ["a5", "a1", "a2", "a3"]
    assert "lease" in statements


def test_a_claim_may_leave_out_jobs_without_a_group(engine: PostgresEngine) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1")
    enqueue(engine, "a2 b2", group="g")
    (found,) = engine.apply([ops.Claim(("q",), "w", 60_000, 4, not_groups=("",))])
    assert ids_of(found) == ["a2", "b2"]
    (found,) = engine.apply([ops.Claim(("q",), "w", 60_000, 4, not_groups=("g",))])
    assert ids_of(found) == ["a1", "b1"]


def test_a_job_that_comes_with_an_ack_of_its_lane_is_found(engine: PostgresEngine) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1")
    (first,) = engine.apply([claim(2)])
    assert jobs_of(engine.apply([claim(2)])[0]) == []
    engine.apply(acks(first))
    enqueue(engine, "a2 b2")
    (second,) = engine.apply([claim(2)])
    assert ids_of(second) == ["a2", "b2"]


def test_a_lane_without_jobs_is_dropped_and_one_with_a_finished_job_is_not(
    engine: PostgresEngine,
) -> None:
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1")
    (held,) = engine.apply([claim(2)])
    a, b = jobs_of(held)
    engine.apply([ops.Ack(a.id, a.token, keep=False), ops.Ack(b.id, b.token)])
    engine.apply([ops.Maintain()])
    assert rows(engine, "SELECT tenant FROM tenants") == [("b",)]
    assert rows(engine, "SELECT done, empty FROM lanes") == [(1, False)]


def test_workers_that_ack_and_claim_at_once_never_exceed_a_limit(
    engine: PostgresEngine, statements: list[str]
) -> None:
    engine.apply([ops.SetLimit("q", None, None, 8), ops.SetLimit("q", "*", None, 2)])
    tenants = "abcdefghijkl"
    enqueue(engine, " ".join(f"{tenant}{n}" for n in range(20) for tenant in tenants))
    engine.apply([ops.Maintain()])
    statements.clear()
    lock = threading.Lock()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    left = 20 * len(tenants)

    def work(number: int) -> None:
        nonlocal left
        held: list[list[Job]] = [[], []]
        while left:
            ended = held.pop(0)  # a batch runs while the next is claimed
            with lock:  # a job runs at most from the answer to its claim until its ack is sent
                running.subtract(job.tenant for job in ended)
            batch = [ops.Ack(job.id, job.token) for job in ended]
            *acked, found = engine.apply([*batch, claim(3)])
            assert acked == [ops.Ok()] * len(ended)
            held.append(jobs_of(found))
            with lock:
                left -= len(ended)
                running.update(job.tenant for job in held[-1])
                most["all"] = max(most["all"], running.total())
                for tenant, n in running.items():
                    most[tenant] = max(most[tenant], n)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert statements.count("ack_and_claim") > 20
    assert most.pop("all") == 8
    assert max(most.values()) <= 2


def test_a_claim_in_turns_does_not_hide_a_lease_that_was_imported_meanwhile(
    engine: PostgresEngine,
) -> None:
    """The lease has ended long ago, and the import is committed after the claim has looked for
    such leases, but before it holds the books."""
    engine.apply([LIMIT])
    enqueue(engine, "a1 b1 c1")
    (held,) = engine.apply([claim(1)])
    (job,) = jobs_of(held)
    old = replace(job, lease_until=job.updated_at - 60_000)
    engine.apply([ops.Delete((job.id,))])
    engine.apply([ops.Import((ops.Entry(old, False, ()),))])
    found = rows(
        engine,
        "SELECT c.id FROM queues q, claim_in_turns(gen_random_uuid(), NULL, q.id, '{1}', '{w}', "
        "'{60000}', 3::smallint, 1, moment(NULL), '{}') c",
    )
    assert found == [("b1",)]
    (later,) = engine.apply([claim(2)])
    assert ids_of(later) == ["c1", "a1"]


def test_a_claim_that_has_to_sweep_first_does_not_keep_others_from_the_first_job_of_a_lane(
    engine: PostgresEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not hold the books yet, so that the others claim at that time."""
    other = PostgresEngine(postgres.url_of(tmp_path), Settings(), SystemClock())
    engine.apply([LIMIT])
    enqueue(engine, "a1 a2 a3")
    enqueue(engine, "z1", delay_ms=300)
    engine.apply([ops.Maintain()])
    found: list[str] = []

    def sweep(*args: Any) -> Any:
        monkeypatch.undo()
        found.extend(ids_of(*other.apply([claim(2)])))
        return upkeep.sweep(*args)

    monkeypatch.setattr(claiming, "sweep", sweep)
    time.sleep(0.31)
    (mine,) = engine.apply([claim(2)])
    other.close()
    assert found == ["a1", "z1"]
    assert ids_of(mine) == ["a2", "a3"]
