"""Several threads and processes on one PostgreSQL: the decisions of one are seen by the others."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from click.testing import CliRunner

import tenure
from tenure.cli import main
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.postgres.session import Db, Sent
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tests.crash.crowd import together
from tests.crash.watched import start, until
from tests.support import audit_postgres, postgres

PATIENCE = 60.0
Connection = psycopg.Connection[tuple[Any, ...]]


_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database for this test, so that its statistics contain nothing of other tests."""
    shared, name = postgres.shared_url(), f"d_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(shared, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        with monkeypatch.context() as patch:
            own = urlunsplit(urlsplit(shared)._replace(path=f"/{name}"))
            patch.setattr(postgres, "shared_url", lambda: own)
            yield
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A store for this test. In the end it must be sound, and must have seen no deadlock."""
    before = deadlocks()
    yield postgres.url_of(tmp_path)
    assert audit_postgres.audit(postgres.shared_url(), postgres.schema_of(tmp_path)) == []
    postgres.drop(tmp_path)
    assert deadlocks() == before


def deadlocks() -> int:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        (row,) = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(row[0])


@pytest.fixture
def engine(url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(url, tenure.Settings(), SystemClock())
    yield engine
    engine.close()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls, each made by its own thread at the same moment."""
    start = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(n: int, call: Callable[[], Any]) -> None:
        start.wait(PATIENCE)
        try:
            answers[n] = call()
        except BaseException as error:
            answers[n] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a call does not end"
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def spec(id: str, **fields: Any) -> JobSpec:
    return JobSpec(**{"id": id, "queue": "q", "payload": NULL} | fields)


def apply(engine: PostgresEngine, *batch: Op) -> list[Answer]:
    return engine.apply(batch)


def claimed(engine: PostgresEngine, limit: int = 1, queue: str = "q") -> list[tenure.Job]:
    (answer,) = apply(engine, ops.Claim((queue,), "w", 60_000, limit))
    assert isinstance(answer, ops.Leased)
    return answer.jobs


def state(engine: PostgresEngine, id: str) -> str:
    found = engine.read(queries.GetJob(id))
    assert isinstance(found, tenure.Job)
    return found.state.value


# Two at the same time ---------------------------------------------------------------------------


def test_of_two_that_send_one_key_at_once_one_is_done_and_both_are_answered_alike(
    engine: PostgresEngine,
) -> None:
    for n in range(40):
        jobs = [ops.Enqueue((spec(f"{n}{side}"),)) for side in "abcd"]
        sent = [ops.Once(f"k{n}", (job,), fingerprint="the same") for job in jobs]
        found = at_once(*[partial(apply, engine, op) for op in sent])
        assert found[1:] == found[:1] * 3
        (answers,) = found[0]
        assert [answer.ids for answer in answers.answers] in [[[f"{n}{side}"]] for side in "abcd"]
    assert len(claimed(engine, 100)) == 40


def test_the_second_with_a_key_waits_for_the_first(engine: PostgresEngine) -> None:
    """Whether the first commits or not."""
    once = [ops.Once("k", (ops.Enqueue((spec("a"),)),))]
    for commits in (False, True):
        with psycopg.connect(postgres.shared_url()) as connection:
            first = engine.apply_within(connection, once)
            second = start(engine.apply, once)
            time.sleep(0.2)
            assert not second.done()
            if commits:
                connection.commit()
            else:
                connection.rollback()
        if commits:
            assert second.result(PATIENCE) == first
        else:
            (answers,) = second.result(PATIENCE)
            assert isinstance(answers, ops.Answers)
            assert isinstance(answers.answers[0], ops.Enqueued)
            once = [ops.Once("l", (ops.Enqueue((spec("b"),)),))]
    assert [job.id for job in claimed(engine, 5)] == ["a", "b"]


def test_keys_that_are_sent_in_any_order_keep_nobody_waiting_for_ever(
    engine: PostgresEngine,
) -> None:
    """The store of this test must have seen no deadlock in the end."""
    for n in range(20):
        sent = [ops.Once(f"{n}{key}", (ops.Enqueue((spec(f"{n}{key}"),)),)) for key in "abcdef"]
        one, other = at_once(partial(apply, engine, *sent), partial(apply, engine, *sent[::-1]))
        assert one == other[::-1]
    assert len(claimed(engine, 500)) == 120


def test_two_parents_that_finish_at_once_wake_their_child(engine: PostgresEngine) -> None:
    for n in range(40):
        parents = (f"{n}a", f"{n}b")
        apply(engine, ops.Enqueue((*map(spec, parents), spec(f"{n}c", after=parents, queue="r"))))
        jobs = claimed(engine, 2)
        at_once(*[partial(apply, engine, ops.Ack(job.id, job.token)) for job in jobs])
        assert state(engine, f"{n}c") == "pending"


def test_a_child_that_comes_while_its_parent_ends_does_not_wait_for_ever(
    engine: PostgresEngine,
) -> None:
    for n in range(40):
        apply(engine, ops.Enqueue((spec(f"{n}a"),)))
        (job,) = claimed(engine)
        at_once(
            partial(apply, engine, ops.Ack(job.id, job.token)),
            partial(apply, engine, ops.Enqueue((spec(f"{n}c", after=(f"{n}a",), queue="r"),))),
        )
        assert state(engine, f"{n}c") == "pending"


def test_a_child_that_comes_while_its_parent_is_deleted_hears_of_it(
    engine: PostgresEngine,
) -> None:
    for n in range(20):
        apply(engine, ops.Enqueue((spec(f"{n}a"),)))
        child = spec(f"{n}c", after=(f"{n}a",), if_parent_fails="cancel")
        _, (answer,) = at_once(
            partial(apply, engine, ops.Delete((f"{n}a",))),
            partial(apply, engine, ops.Enqueue((child,))),
        )
        if isinstance(answer, tenure.TenureError):
            assert isinstance(answer, tenure.DependencyNotFound)
        else:
            assert state(engine, f"{n}c") == "cancelled"


def test_of_two_who_enqueue_the_same_ids_in_opposite_order_one_does(
    engine: PostgresEngine,
) -> None:
    for n in range(20):
        ids = [f"{n}-{m}" for m in range(30)]
        answers = at_once(
            partial(apply, engine, ops.Enqueue(tuple(map(spec, ids)))),
            partial(apply, engine, ops.Enqueue(tuple(map(spec, reversed(ids))))),
        )
        kinds = sorted(type(answer).__name__ for (answer,) in answers)
        assert kinds == ["Duplicate", "Enqueued"]


def test_of_two_who_want_a_unique_key_one_gets_it(engine: PostgresEngine) -> None:
    for n in range(20):
        (first,), (second,) = at_once(
            partial(apply, engine, ops.Enqueue((spec(f"{n}a", unique_key=f"k{n}"),))),
            partial(apply, engine, ops.Enqueue((spec(f"{n}b", unique_key=f"k{n}"),), "skip")),
        )
        if isinstance(first, tenure.Duplicate):
            assert first.job_id == f"{n}b"
        else:
            assert second.ids == [f"{n}a"]


def test_a_job_is_not_cancelled_and_claimed_at_once(engine: PostgresEngine) -> None:
    for n in range(20):
        apply(engine, ops.Enqueue((spec(str(n)),)))
        (changed,), jobs = at_once(
            partial(apply, engine, ops.Cancel((str(n),))), partial(claimed, engine)
        )
        assert changed.count == 1  # before or after the claim
        assert state(engine, str(n)) == "cancelled"
        for job in jobs:
            assert isinstance(apply(engine, ops.Ack(job.id, job.token))[0], tenure.LeaseLost)


def test_claims_of_several_queues_in_any_order_do_not_wait_for_each_other_in_a_ring(
    engine: PostgresEngine,
) -> None:
    apply(engine, *[ops.Enqueue((spec(f"{q}{n}", queue=q),)) for q in "ab" for n in range(200)])

    def drain(*queues: str) -> int:
        taken = 0
        while jobs := apply(engine, ops.Claim(queues, "w", 60_000, 3))[0].jobs:  # type: ignore[union-attr]
            taken += len(jobs)
            apply(engine, *[ops.Ack(job.id, job.token) for job in jobs])
        return taken

    assert sum(at_once(*[partial(drain, *q) for q in ("ab", "ba", "ab", "ba")])) == 400


def test_claims_under_keys_in_any_order_do_not_wait_for_each_other_in_a_ring(
    engine: PostgresEngine,
) -> None:
    """As a service sends them for its clients."""
    apply(engine, *[ops.SetLimit(queue, concurrency=1000) for queue in "abc"])
    apply(engine, *[ops.Enqueue((spec(f"{q}{n}", queue=q),)) for q in "abc" for n in range(100)])

    def drain(name: str, queues: str) -> int:
        taken = 0
        for n in range(25):
            claims = [ops.Claim((queue,), "w", 60_000, 1) for queue in queues]
            batch = [ops.Once(f"{name}{n}{claim.queues}", (claim,)) for claim in claims]
            for answer in apply(engine, *batch):
                assert isinstance(answer, ops.Answers)
                taken += sum(len(one.jobs) for one in answer.answers if isinstance(one, ops.Leased))
        return taken

    orders = {"1": "abc", "2": "cba", "3": "bac", "4": "cab"}
    assert sum(at_once(*[partial(drain, *item) for item in orders.items()])) == 300


def test_a_limit_is_not_passed_by_claims_that_come_at_once(engine: PostgresEngine) -> None:
    apply(engine, ops.SetLimit("q", concurrency=7), ops.SetLimit("q", "*", concurrency=4))
    apply(engine, ops.Enqueue(tuple(spec(str(n), tenant=f"t{n % 3}") for n in range(60))))
    jobs = [job for some in at_once(*[partial(claimed, engine, 3)] * 6) for job in some]
    assert len(jobs) == 7
    assert max(Counter(job.tenant for job in jobs).values()) <= 4


def test_a_limit_that_is_set_while_jobs_are_claimed_holds_from_then_on(
    engine: PostgresEngine,
) -> None:
    for n in range(15):
        queue = f"q{n}"
        apply(engine, ops.Enqueue(tuple(spec(f"{n}-{m}", queue=queue) for m in range(20))))
        jobs, _ = at_once(
            partial(claimed, engine, 5, queue),
            partial(apply, engine, ops.SetLimit(queue, concurrency=6)),
        )
        more = claimed(engine, 20, queue)
        assert len(jobs) + len(more) == 6


def test_lanes_that_are_made_while_a_limit_is_set_are_bound_by_it(engine: PostgresEngine) -> None:
    apply(engine, ops.Pause("q"), ops.Resume("q"))
    for n in range(15):
        at_once(
            partial(apply, engine, ops.Enqueue((spec(f"{n}", tenant=f"t{n}", group="g"),))),
            partial(apply, engine, ops.SetLimit("q", "*", "*", concurrency=n + 1)),
            partial(apply, engine, ops.SetLimit("q", "*", weight=n + 1)),
        )  # the audit compares every lane with the limits


def test_an_empty_lane_is_not_dropped_under_a_job_that_comes(engine: PostgresEngine) -> None:
    for n in range(30):
        at_once(
            partial(apply, engine, ops.Enqueue((spec(f"{n}", tenant="t"),))),
            partial(apply, engine, ops.Maintain(keep_done_ms=0)),
        )
        (job,) = claimed(engine)
        apply(engine, ops.Ack(job.id, job.token))


def test_of_many_who_fire_a_schedule_one_does(engine: PostgresEngine) -> None:
    tick = 1
    apply(engine, ops.PutSchedule(ops.Schedule("s", "* * * * *", spec("job"), tick)))
    fire = ops.Fire("s", tick, "a")
    fired = [answer for (answer,) in at_once(*[partial(apply, engine, fire)] * 5)]
    assert Counter(answer.fired for answer in fired) == {True: 1, False: 4}


def test_slots_that_are_taken_at_once_keep_their_limit(engine: PostgresEngine) -> None:
    take = [ops.TakeSlot("s", "k", str(n), 60_000, 3) for n in range(8)]
    answers = at_once(*[partial(apply, engine, op) for op in take])
    assert sum(answer.held for (answer,) in answers) == 3


def test_slots_that_are_taken_in_any_order_keep_nobody_waiting_for_ever(
    engine: PostgresEngine,
) -> None:
    """Including the first slot under a key. The store of this test must have seen no deadlock."""
    for n in range(20):
        take = [ops.TakeSlot("s", f"{n}{key}", "h", 60_000, 3) for key in "abcdef"]
        drop = [ops.DropSlot("s", f"{n}{key}", "h") for key in "abcdef"]
        at_once(
            partial(apply, engine, *take, *drop[:3]),
            partial(apply, engine, *take[::-1]),
            partial(apply, engine, *drop[::-1], *take),
        )


def test_what_is_done_to_the_same_jobs_in_any_order_keeps_nobody_waiting_for_ever(
    engine: PostgresEngine,
) -> None:
    """A worker acknowledges some of its jobs and reports progress on others, while all are
    extended. The store of this test must have seen no deadlock."""
    for n in range(20):
        ids = [f"{n}-{m}" for m in range(40)]
        apply(engine, ops.Enqueue(tuple(map(spec, reversed(ids)))))
        jobs = {job.id: job for job in claimed(engine, 40)}
        held = [(job_id, jobs[job_id].token) for job_id in ids]
        acks = [ops.Ack(*one) for one in held[::2]]
        reports = [ops.Progress(*one, 50, None) for one in held[1::2]]
        at_once(
            partial(apply, engine, *acks),
            partial(
                apply,
                engine,
                *reports,
                *[ops.Fail(*one, "x", retry_in_ms=10**7) for one in held[1::4]],
            ),
            partial(apply, engine, *[ops.Extend(*one, 60_000) for one in held]),
            partial(apply, engine, ops.Claim(("q",), "w", 60_000, 1), *acks[::-1]),
        )


def test_a_claim_does_not_wait_for_another_where_nothing_is_bounded(
    engine: PostgresEngine, url: str, tmp_path: Path
) -> None:
    """One holds the books of the queue and the first jobs; the next takes those after them."""
    apply(engine, ops.Enqueue(tuple(spec(str(n), priority=n) for n in range(10))))
    claimed(engine, 1)
    apply(engine, ops.Enqueue((spec("first", priority=-1),)))  # not yet in the books
    schema = postgres.schema_of(tmp_path)
    with psycopg.connect(postgres.shared_url()) as other:
        other.execute(f"SELECT FROM {schema}.queues FOR NO KEY UPDATE".encode())
        other.execute(f"SELECT FROM {schema}.states WHERE priority IN (1, 2) FOR UPDATE".encode())
        jobs = claimed(engine, 4)
        assert [job.id for job in jobs] == ["first", "3", "4", "5"]
        other.rollback()
    apply(engine, *[ops.Ack(job.id, job.token) for job in jobs])
    assert [job.id for job in claimed(engine, 9)] == ["1", "2", "6", "7", "8", "9"]


def test_what_was_held_by_another_is_not_picked_twice(
    engine: PostgresEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that has to search again may find jobs that were locked the first time."""
    jobs = [spec(f"a{n}", tenant="a") for n in range(10)]
    apply(engine, ops.Enqueue((*jobs, spec("b", tenant="b"))))
    schema, looks, send = postgres.schema_of(tmp_path), [0], Db.send
    with psycopg.connect(postgres.shared_url()) as other:
        query = f"SELECT FROM {schema}.states s JOIN {schema}.jobs j USING (seq) WHERE id = 'a0'"
        other.execute(f"{query} FOR UPDATE OF s".encode())

        def let_go(self: Db, name: str, *params: object) -> Sent:
            looks[0] += name == "candidates"
            if looks[0] == 2:
                other.rollback()
            return send(self, name, *params)

        monkeypatch.setattr(Db, "send", let_go)
        ids = [job.id for job in claimed(engine, 8)]
    assert looks[0] >= 2
    assert sorted(ids) == ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "b"]


# One waits for the other ------------------------------------------------------------------------


@contextmanager
def in_flight(engine: PostgresEngine, *batch: Op) -> Iterator[Connection]:
    """A transaction that has applied the batch and has not ended yet."""
    with psycopg.connect(postgres.shared_url()) as connection:
        engine.apply_within(connection, batch)
        yield connection


def waiting(engine: PostgresEngine, *batch: Op) -> Future[list[Answer]]:
    """The batch, once it waits for another transaction."""
    schema = engine.address.schema
    future = start(engine.apply, batch)
    query = (
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND position(%s IN query) > 0"
    )
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        until(lambda: bool(connection.execute(query, (f"{schema}.",)).fetchall()))
    return future


@pytest.mark.parametrize("commits", [True, False])
def test_an_ack_that_waits_for_a_cancel_is_judged_by_what_became_of_it(
    engine: PostgresEngine, commits: bool
) -> None:
    apply(engine, ops.Enqueue((spec("a"),)))
    (job,) = claimed(engine)
    with in_flight(engine, ops.Cancel(("a",))) as other:
        acked = waiting(engine, ops.Ack("a", job.token))
        other.commit() if commits else other.rollback()
        (answer,) = acked.result(PATIENCE)
    assert answer == (tenure.LeaseLost("a", "cancelled") if commits else ops.Ok())


@pytest.mark.parametrize("commits", [True, False])
def test_a_release_that_waits_for_an_ack_is_judged_by_what_became_of_it(
    engine: PostgresEngine, commits: bool
) -> None:
    apply(engine, ops.Enqueue((spec("a"),)))
    (job,) = claimed(engine)
    with in_flight(engine, ops.Ack("a", job.token)) as other:
        released = waiting(engine, ops.Release("a", job.token))
        other.commit() if commits else other.rollback()
        (answer,) = released.result(PATIENCE)
    if commits:
        assert answer == tenure.LeaseLost("a", "done")
    else:
        assert isinstance(answer, ops.Moved)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("field", ["id", "unique_key"])
def test_an_enqueue_that_waits_for_a_holder_is_judged_by_what_became_of_it(
    engine: PostgresEngine, field: str, commits: bool
) -> None:
    apply(engine, ops.Enqueue((spec("first"),)))
    mine = {"id": "b", "unique_key": None} | {field: "x"}
    theirs = {"id": "a", "unique_key": None} | {field: "x"}
    with in_flight(engine, ops.Enqueue((spec(**theirs),))) as other:  # type: ignore[arg-type]
        enqueued = waiting(engine, ops.Enqueue((spec(**mine),)))  # type: ignore[arg-type]
        other.commit() if commits else other.rollback()
        (answer,) = enqueued.result(PATIENCE)
    assert isinstance(answer, tenure.Duplicate if commits else ops.Enqueued)


def test_a_claim_passes_over_what_another_is_changing(engine: PostgresEngine) -> None:
    apply(engine, ops.Enqueue(tuple(spec(id) for id in "abc")))
    with in_flight(engine, ops.Cancel(("a",))) as other:
        assert [job.id for job in claimed(engine, 1)] == ["b"]
        other.rollback()
    assert [job.id for job in claimed(engine, 2)] == ["a", "c"]


def test_jobs_that_are_not_committed_hold_nobody_up(engine: PostgresEngine) -> None:
    apply(engine, ops.Enqueue((spec("first"),)))
    with in_flight(engine, ops.Enqueue((spec("later", priority=-1),))) as other:
        apply(engine, ops.Enqueue((spec("second"),)))
        assert [job.id for job in claimed(engine, 1)] == ["first"]
        other.commit()
    assert [job.id for job in claimed(engine, 2)] == ["later", "second"]


# Many processes ---------------------------------------------------------------------------------


def open_and_count(number: int, url: str) -> int:
    with tenure.connect(url) as queue:
        queue.enqueue("q", number)
        return len(queue.stats().queues)


def test_ten_processes_may_make_the_store_at_once(url: str) -> None:
    assert together(10, open_and_count, url) == [1] * 10


def migrate(number: int, url: str) -> int:
    """Run `tenure migrate`. Returns the version before, as it reports it."""
    said = CliRunner().invoke(main, ["--url", url, "migrate", "--json"])
    assert said.exit_code == 0, said.output
    return int(json.loads(said.stdout)["from"])


def test_of_ten_processes_that_migrate_at_once_one_makes_the_schema(
    url: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        name = postgres.schema_of(tmp_path)  # which another test may have used
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
    newest = max(statements("tenure").schema)
    assert sorted(together(10, migrate, url)) == [0] + [newest] * 9


SECONDS = 3.0


def work(number: int, url: str) -> list[tuple[int, int, str]]:
    """Claim and ack without pause. Returns the token, the position in the claim and the tenant of
    each job."""
    seen: list[tuple[int, int, str]] = []
    end = time.monotonic() + SECONDS
    with tenure.connect(url) as queue:
        while time.monotonic() < end:
            for n, job in enumerate(queue.claim("fair", limit=1 + number % 2)):
                seen.append((job.token, n, job.tenant))
                queue.ack(job)
    return seen


def test_tenants_are_served_in_turns_over_all_processes(url: str) -> None:
    with tenure.connect(url) as queue:
        jobs = [tenure.NewJob(queue="fair", tenant=t) for _ in range(3000) for t in "abc"]
        queue.enqueue_many(jobs)
        queue.limits.set("fair", tenant="c", weight=2)
    claims = sorted(claim for seen in together(4, work, url) for claim in seen)
    assert len(claims) > 50
    order = [tenant for _, _, tenant in claims]
    for tenant in "ab":
        places = [n for n, one in enumerate(order) if one == tenant]
        for first, second in pairwise(places):
            between = Counter(order[first + 1 : second])
            assert all(n <= (2 if other == "c" else 1) for other, n in between.items())


def hammer(number: int, url: str) -> int:
    acked = 0
    end = time.monotonic() + SECONDS
    with tenure.connect(url) as queue:
        while time.monotonic() < end:
            queue.enqueue_many([tenure.NewJob(queue="mail", tenant=f"t{number}")] * 3)
            jobs = queue.claim("mail", limit=4)
            assert queue.ack_many(jobs) == [None] * len(jobs)
            acked += len(jobs)
            if acked % 50 == 0:
                queue.maintain()
                assert queue.reconcile("mail") == {}
    return acked


def test_six_processes_hammer_one_queue_and_the_counters_stay_exact(url: str) -> None:
    acked = sum(together(6, hammer, url))
    with tenure.connect(url) as queue:
        stats = queue.stats("mail")
        assert (stats.done, stats.leased) == (acked, 0)
        assert acked > 100


MOST, MOST_OF_A_TENANT = 7, 3


def storm(number: int, url: str) -> int:
    """Several threads with one handle, which has several batches in progress at once."""
    end = time.monotonic() + SECONDS
    with tenure.connect(url) as queue:

        def act(thread: int) -> int:
            acked = 0
            while time.monotonic() < end:
                tenant = f"t{(number + thread) % 4}"
                new = [tenure.NewJob(queue=name, tenant=tenant) for name in ("plain", "bounded")]
                queue.enqueue_many(new * 2)
                queue.slots.take("s", f"{thread % 3}", tenant, ttl=60, limit=2)
                jobs = [*queue.claim("plain", limit=3), *queue.claim(["bounded", "plain"], limit=2)]
                stats = queue.stats("bounded")
                assert stats.leased <= MOST
                assert all(one.leased <= MOST_OF_A_TENANT for one in queue.tenants("bounded"))
                assert queue.extend_many(jobs, 60) == [None] * len(jobs)
                for job in jobs[::3]:
                    queue.progress(job, 50)
                kept, left = jobs[1:], jobs[:1]
                assert queue.ack_many(kept) == [None] * len(kept)
                for job in left:
                    queue.release(job)
                acked += len(kept)
                queue.slots.drop("s", f"{thread % 3}", tenant)
            return acked

        return sum(at_once(*[partial(act, thread) for thread in range(5)]))


def test_threads_of_several_processes_with_several_batches_at_once_keep_every_promise(
    url: str,
) -> None:
    with tenure.connect(url) as queue:
        queue.limits.set("bounded", concurrency=MOST)
        queue.limits.set("bounded", tenant="*", concurrency=MOST_OF_A_TENANT)
    acked = sum(together(3, storm, url))
    with tenure.connect(url) as queue:
        stats = queue.stats()
        assert (stats.done, stats.leased) == (acked, 0)
        assert acked > 50
        assert queue.reconcile("plain") == queue.reconcile("bounded") == {}
