"""Who listens hears, soon after the commit of another, that something changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure import Settings
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.listen import QUIET_SECONDS
from tenure.engines.postgres.notify import Teller
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tests.support import postgres
from tests.support.postgres import Server

PATIENCE = 30.0
SILENCE = 0.3  # seconds without a call, from which a test concludes that none will come


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres.url_of(tmp_path), Settings(), SystemClock())
    yield engine
    engine.close()
    postgres.drop(tmp_path)


@pytest.fixture
def other(engine: PostgresEngine, tmp_path: Path) -> Iterator[PostgresEngine]:
    """Whose commits the first hears of."""
    other = PostgresEngine(postgres.url_of(tmp_path), Settings(), SystemClock())
    yield other
    other.close()


class Ear:
    """Counts the calls; the first is that it listens."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._calls = threading.Semaphore(0)
        self.stop = engine.listen(self._calls.release)
        self.hear()

    def hear(self) -> None:
        assert self._calls.acquire(timeout=PATIENCE), "nothing was heard"

    @property
    def silent(self) -> bool:
        return not self._calls.acquire(timeout=SILENCE)

    def count(self) -> int:
        """The calls until there is silence."""
        count = 0
        while not self.silent:
            count += 1
        return count


def spec(id: str, queue: str = "q", **fields: object) -> JobSpec:
    return JobSpec(id, queue, NULL, **fields)  # type: ignore[arg-type]


def enqueue(engine: PostgresEngine, *ids: str, delay_ms: int = 0) -> None:
    engine.apply([ops.Enqueue(tuple(spec(id, delay_ms=delay_ms) for id in ids))])
    engine._teller.close()  # until the others are told
    engine._teller = Teller(engine._notify)


def token(engine: PostgresEngine) -> int:
    """Of the next job, claimed."""
    (leased,) = engine.apply([ops.Claim(("q",), "w", 60_000)])
    assert isinstance(leased, ops.Leased)
    return leased.jobs[0].token


def test_a_transaction_is_one_call(engine: PostgresEngine, other: PostgresEngine) -> None:
    ear = Ear(engine)
    other.apply([ops.Enqueue((spec("a"), spec("b", "r"))), ops.Enqueue((spec("c"),))])
    ear.hear()
    assert ear.silent
    ear.stop()


def test_what_a_process_does_itself_it_need_not_be_told(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    ear = Ear(engine)
    enqueue(engine, "a")
    engine.apply([ops.Pause("q"), ops.Resume("q")])
    assert ear.silent
    enqueue(other, "b")
    ear.hear()
    ear.stop()


def test_what_concerns_nobody_else_is_not_told(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    enqueue(other, "a")
    ear = Ear(engine)
    held = token(other)
    other.apply([ops.Extend("a", held, 1000), ops.Progress("a", held, 50)])
    other.apply([ops.TakeSlot("s", "k", "h", 1000)])
    assert ear.silent
    other.apply([ops.Release("a", held)])
    ear.hear()
    ear.stop()


@pytest.mark.parametrize(
    "end", [ops.Ack, ops.Fail, ops.Release], ids=lambda kind: str(kind.__name__)
)
def test_the_end_of_a_lease_is_told(
    engine: PostgresEngine, other: PostgresEngine, end: type[ops.Ack | ops.Fail | ops.Release]
) -> None:
    """Others may wait for the job, or for its place."""
    enqueue(other, "a")
    ear = Ear(engine)
    other.apply([end("a", token(other))])
    ear.hear()
    ear.stop()


def test_what_time_did_is_told_by_who_noticed(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    enqueue(other, "a", delay_ms=1)
    enqueue(other, "b", delay_ms=1)
    ear = Ear(engine)
    time.sleep(0.01)
    other.apply([ops.Claim(("q",), "w", 60_000)])  # and leaves the second, which is ready now
    ear.hear()
    ear.stop()


def test_operations_that_are_done_once_are_told(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    ear = Ear(engine)
    other.apply([ops.Once("k", (ops.Enqueue((spec("a"),)),))])
    ear.hear()
    assert ear.silent
    ear.stop()


def test_a_job_in_a_callers_transaction_is_told_with_the_commit(engine: PostgresEngine) -> None:
    """Also to the process itself: nobody else tells it of the commit."""
    ear = Ear(engine)
    with psycopg.connect(postgres.shared_url()) as connection:
        engine.apply_within(connection, [ops.Enqueue((spec("a"),))])
        connection.rollback()
        assert ear.silent
        engine.apply_within(connection, [ops.Enqueue((spec("a"),))])
        assert ear.silent
    ear.hear()
    ear.stop()


def test_who_commits_often_does_not_wake_others_as_often(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    ear = Ear(engine)
    start = time.monotonic()
    for n in range(100):
        enqueue(other, f"{n}")
    most = (time.monotonic() - start) / QUIET_SECONDS + 2
    assert 1 <= ear.count() <= most
    ear.stop()


def test_several_may_listen_and_each_may_stop(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    one, two = Ear(engine), threading.Semaphore(0)
    stop = engine.listen(two.release)
    enqueue(other, "a")
    one.hear()
    assert two.acquire(timeout=PATIENCE)
    one.stop()
    one.stop()
    enqueue(other, "b")
    assert two.acquire(timeout=PATIENCE)
    assert one.silent
    stop()
    stop()
    again = Ear(engine)
    enqueue(other, "c")
    again.hear()


def test_a_listener_whose_connection_was_lost_looks_at_everything(
    engine: PostgresEngine, other: PostgresEngine
) -> None:
    ear = Ear(engine)
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        query = f"LISTEN {engine.address.schema}"
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s", (query,)
        )
    ear.hear()
    enqueue(other, "a")
    ear.hear()
    ear.stop()


def test_a_listener_outlives_a_restart_of_the_server() -> None:
    server = Server()
    try:
        engine, other = (PostgresEngine(server.url, Settings(), SystemClock()) for _ in range(2))
        ear = Ear(engine)
        server.kill()
        time.sleep(0.1)  # it tries to connect in vain
        server.start()
        ear.hear()
        enqueue(other, "a")
        ear.hear()
        engine.close()
        other.close()
    finally:
        server.stop()


def test_to_stop_does_not_wait_for_a_server_that_is_away() -> None:
    server = Server(**postgres.CARELESS)
    engine = PostgresEngine(server.url, Settings(), SystemClock())
    ear = Ear(engine)
    server.stop()
    start = time.monotonic()
    ear.stop()
    engine.close()
    assert time.monotonic() - start < 5


def test_a_fork_listens_for_itself(engine: PostgresEngine, other: PostgresEngine) -> None:
    ear = Ear(engine)
    enqueue(engine, "a")
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            own = Ear(engine)
            enqueue(other, "b")
            own.hear()
            enqueue(engine, "c")  # which its parent hears
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    ear.hear()
    ear.stop()
