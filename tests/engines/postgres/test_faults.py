"""The connection is lost at the worst moments: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.postgres_statements import statements
from tenure.engines.postgres.session import Db, Sent
from tenure.model import ops, queries
from tenure.queue import store_of
from tests.crash.watched import PATIENCE, start, until
from tests.support import postgres
from tests.support.wire import Cut, Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    (folder,) = parse_qs(urlsplit(postgres.shared_url()).query)["host"]
    wire = Wire(Path(folder) / ".s.PGSQL.5432")
    yield wire
    wire.close()


@pytest.fixture
def behind(wire: Wire, schema: str) -> Iterator[tenure.Queue]:
    """A handle whose connections go through the `Wire`."""
    url = f"postgresql://postgres@127.0.0.1:{wire.port}/postgres?schema={schema}"
    with tenure.connect(url) as queue:
        yield queue


CUTS: list[Cut] = ["before", "after"]


@pytest.mark.parametrize("cut", CUTS)
def test_an_enqueue_whose_commit_was_cut_off_happens_once(
    behind: tenure.Queue, wire: Wire, cut: Cut
) -> None:
    behind.enqueue("q", id="before")
    wire.cut = cut
    assert behind.enqueue("q", id="a", unique_key="k").id == "a"
    assert wire.cuts == 1
    assert [job.id for job in behind.jobs().jobs] == ["a", "before"]


@pytest.mark.parametrize("cut", CUTS)
def test_jobs_that_are_made_up_are_not_made_twice(
    behind: tenure.Queue, wire: Wire, cut: Cut
) -> None:
    wire.cut = cut
    ids = behind.enqueue_many([tenure.NewJob(queue="q") for _ in range(10)])
    assert wire.cuts == 1
    assert [job.id for job in reversed(behind.jobs().jobs)] == ids


@pytest.mark.parametrize("last", CUTS)
@pytest.mark.parametrize("first", CUTS)
def test_who_is_cut_off_while_it_asks_whether_it_was_committed_asks_again(
    behind: tenure.Queue, wire: Wire, first: Cut, last: Cut
) -> None:
    def twice_cut() -> None:
        wire.then = [last]
        wire.cut = first

    twice_cut()
    job = behind.enqueue("q")
    twice_cut()
    named = behind.enqueue("q", id="named")
    twice_cut()
    jobs = behind.claim("q", limit=5)
    twice_cut()
    assert behind.ack_many(jobs[:1]) == [None]
    assert wire.cuts == 8
    assert [one.id for one in jobs] == [job.id, named.id]
    assert [one.state for one in map(behind.get, (job.id, "named"))] == ["done", "leased"]


def test_several_batches_under_way_that_are_cut_off_happen_once_each(
    behind: tenure.Queue, wire: Wire
) -> None:
    """Each thread enqueues, claims and acknowledges while connections are cut: one at the worst
    moment, then all."""
    each, threads = 15, 5

    def act(name: str) -> list[str]:
        ids = []
        for n in range(each):
            ids.append(behind.enqueue(name, n).id)
            (job,) = behind.claim(name)
            assert (job.id, job.attempts) == (ids[-1], 1)
            behind.ack(job)
        return ids

    acting = [start(act, f"q{n}") for n in range(threads)]
    for n in range(12):
        wire.cut = CUTS[n % 2]
        until(lambda: not wire.cut or all(one.done() for one in acting))
        if n % 4 == 3:
            wire.cut_all()
        time.sleep(0.02)
    ids = [job_id for one in acting for job_id in one.result(PATIENCE)]
    assert wire.cuts > 2
    stats = behind.stats()
    assert (stats.done, stats.unfinished) == (each * threads, 0)
    assert len(set(ids)) == each * threads


@pytest.mark.parametrize("cut", CUTS)
def test_a_claim_whose_commit_was_cut_off_is_answered_with_what_it_leased(
    behind: tenure.Queue, wire: Wire, cut: Cut
) -> None:
    behind.enqueue_many([tenure.NewJob(queue="q") for _ in range(4)])
    wire.cut = cut
    jobs = behind.claim("q", limit=2)
    assert (len(jobs), wire.cuts, behind.stats("q").leased) == (2, 1, 2)
    assert behind.ack_many(jobs) == [None, None]


@pytest.mark.parametrize("cut", CUTS)
def test_an_ack_whose_commit_was_cut_off_is_not_told_that_its_lease_is_lost(
    behind: tenure.Queue, wire: Wire, cut: Cut
) -> None:
    behind.enqueue("q", id="a")
    (job,) = behind.claim("q")
    wire.cut = cut
    behind.ack(job, "result")
    assert (behind.get("a").result, wire.cuts) == ("result", 1)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("left", [0, 3])
def test_acks_and_a_claim_whose_commit_was_cut_off_happen_once(
    behind: tenure.Queue, wire: Wire, cut: Cut, left: int
) -> None:
    behind.enqueue_many([tenure.NewJob(queue="q") for _ in range(2 + left)])
    held = behind.claim("q", limit=2)
    wire.cut = cut
    claim = ops.Claim(("q",), "w", 60_000, 2)
    *acked, leased = store_of(behind).do([*(ops.Ack(job.id, job.token) for job in held), claim])
    assert acked == [ops.Ok(), ops.Ok()]
    assert isinstance(leased, ops.Leased)
    assert (len(leased.jobs), wire.cuts) == (min(left, 2), 1)
    stats = behind.stats("q")
    assert (stats.done, stats.leased) == (2, len(leased.jobs))
    assert behind.ack_many(leased.jobs) == [None] * len(leased.jobs)


def test_a_transaction_that_is_asked_about_cannot_commit_any_more(
    queue: tenure.Queue, schema: str
) -> None:
    """Its commit may still be on its way. The query about it takes its mark, so that the commit
    fails."""
    sql = statements(schema).sql
    with psycopg.connect(postgres.shared_url(), autocommit=True) as asks:
        mark = "01a1e17c-a2c7-766b-aeb2-53cc596a1feb"
        assert Db(asks, sql).send("mark_unless_marked", mark).rowcount == 1
        with (
            psycopg.connect(postgres.shared_url()) as late,
            pytest.raises(psycopg.errors.UniqueViolation),
        ):
            Db(late, sql).send("mark", mark)


def test_a_backend_that_is_killed_before_the_commit_costs_a_second_attempt(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("q", id="first")
    send, killed = Db.send, list[object]()

    def kill_then_send(self: Db, name: str, *params: object) -> Sent:
        if name == "mark" and not killed:
            pid = self._connection.info.backend_pid
            with psycopg.connect(postgres.shared_url(), autocommit=True) as other:
                killed.append(other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,)))
        return send(self, name, *params)

    monkeypatch.setattr(Db, "send", kill_then_send)
    assert queue.enqueue("q", id="a").id == "a"
    assert len(killed) == 1
    assert queue.stats("q").ready == 2


def test_a_server_that_shuts_down_during_a_statement_costs_a_second_attempt(
    queue: tenure.Queue, schema: str
) -> None:
    """It says so before it closes the connection."""
    queue.enqueue("q", id="a")
    (job,) = queue.claim("q")
    shut_down = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND query LIKE %s"""
    with (
        psycopg.connect(postgres.shared_url()) as holder,
        psycopg.connect(postgres.shared_url(), autocommit=True) as operator,
    ):
        holder.execute(f"SELECT FROM {schema}.states FOR UPDATE".encode())
        acked = start(queue.ack, job)
        until(lambda: bool(operator.execute(shut_down, (f"%{schema}.%",)).fetchall()))
        holder.rollback()
        acked.result(PATIENCE)
    assert queue.get("a").state is tenure.State.DONE


def test_a_commit_that_was_sent_before_the_error_came_is_not_made_twice(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement reaches the server before the client notices that the connection is cut."""
    queue.enqueue("q", id="first")
    send, cuts = Db.send, list[str]()

    def send_then_fail(self: Db, name: str, *params: object) -> Sent:
        sent = send(self, name, *params)
        if name == "commit" and not cuts:
            cuts.append(name)
            self._connection.pgconn.pipeline_sync()
            self._connection.pgconn.flush()
            time.sleep(0.5)  # the server commits; nobody reads its reply
            self._connection.close()
            raise psycopg.OperationalError("the connection was lost")
        return sent

    monkeypatch.setattr(Db, "send", send_then_fail)
    assert queue.enqueue("q", id="a").id == "a"
    assert cuts == ["commit"]
    assert queue.stats("q").ready == 2


def test_connections_that_the_server_closed_meanwhile_are_replaced(
    behind: tenure.Queue, wire: Wire
) -> None:
    behind.enqueue("q", id="a")
    behind.stats()
    wire.cut_all()
    assert behind.stats("q").ready == 1
    wire.cut_all()
    assert [job.id for job in behind.claim("q")] == ["a"]


def test_a_server_that_stays_away_is_an_error_after_the_time_given() -> None:
    server = postgres.Server()
    try:
        settings = tenure.Settings(busy_timeout=0.3)
        engine = PostgresEngine(server.url, settings, SystemClock())
        server.kill()
        with pytest.raises(tenure.StoreError):
            engine.apply([ops.Pause("q")])
        with pytest.raises(tenure.StoreError):
            engine.read(queries.GetStats())
        server.start()
        assert engine.apply([ops.Pause("q")]) == [ops.Ok()]
        engine.close()
    finally:
        server.stop()


@pytest.mark.parametrize("cut", CUTS)
def test_what_is_done_once_under_a_key_outlives_a_cut(
    behind: tenure.Queue, wire: Wire, cut: Cut
) -> None:
    behind.enqueue("q", id="a")
    once = ops.Once("k", (ops.Claim(("q",), "w", 60_000), ops.SetLimit("q", concurrency=3)))
    wire.cut = cut
    (first,) = store_of(behind).do([once])
    assert wire.cuts == 1
    assert store_of(behind).do([once]) == [first]
    assert isinstance(first, ops.Answers)
    (leased, _) = first.answers
    assert isinstance(leased, ops.Leased)
    assert [job.id for job in leased.jobs] == ["a"]
    assert behind.get("a").attempts == 1
