"""Who listens hears, once for each transaction, that jobs became ready."""

from __future__ import annotations

import queue as queues
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure import Settings, ops
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.job import NULL, JobSpec
from tests import postgres

PATIENCE = 30.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres.url_of(tmp_path), Settings(), SystemClock())
    yield engine
    engine.close()
    postgres.drop(tmp_path)


class Ear:
    """Keeps what was heard; the first thing is that it listens."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._heard: queues.SimpleQueue[list[str]] = queues.SimpleQueue()
        self.stop = engine.listen(self._heard.put)
        assert self.next() == []

    def next(self) -> list[str]:
        return self._heard.get(timeout=PATIENCE)

    @property
    def silent(self) -> bool:
        return self._heard.empty()


def spec(id: str, queue: str = "q", **fields: object) -> JobSpec:
    return JobSpec(id, queue, NULL, **fields)  # type: ignore[arg-type]


def test_one_call_tells_all_queues_of_a_transaction(engine: PostgresEngine) -> None:
    ear = Ear(engine)
    engine.apply([ops.Enqueue((spec("a"), spec("b", "r"))), ops.Enqueue((spec("c"),))])
    assert ear.next() == ["q", "r"]
    ear.stop()


def test_what_makes_nothing_ready_is_not_told(engine: PostgresEngine) -> None:
    ear = Ear(engine)
    engine.apply([ops.Enqueue((spec("a"),))])
    assert ear.next() == ["q"]
    (leased,) = engine.apply([ops.Claim(("q",), "w", 1000)])
    assert isinstance(leased, ops.Leased)
    engine.apply([ops.Extend("a", leased.jobs[0].token, 1000)])
    engine.apply([ops.Release("a", leased.jobs[0].token)])  # which is told
    assert ear.next() == ["q"]
    assert ear.silent
    ear.stop()


def test_what_is_rolled_back_is_not_told(engine: PostgresEngine) -> None:
    ear = Ear(engine)
    with psycopg.connect(postgres.shared_url()) as connection:
        engine.apply_within(connection, [ops.Enqueue((spec("a", "never"),))])
        connection.rollback()
        engine.apply_within(connection, [ops.Enqueue((spec("a", "committed"),))])
    assert ear.next() == ["committed"]
    ear.stop()


def test_several_may_listen_and_each_may_stop(engine: PostgresEngine) -> None:
    one = Ear(engine)
    heard: queues.SimpleQueue[list[str]] = queues.SimpleQueue()
    stop = engine.listen(heard.put)
    engine.apply([ops.Enqueue((spec("a"),))])
    assert (one.next(), heard.get(timeout=PATIENCE)) == (["q"], ["q"])
    one.stop()
    one.stop()
    engine.apply([ops.Enqueue((spec("b"),))])
    assert heard.get(timeout=PATIENCE) == ["q"]
    assert one.silent
    stop()
    again = Ear(engine)
    engine.apply([ops.Enqueue((spec("c"),))])
    assert again.next() == ["q"]


def test_a_listener_whose_connection_was_lost_looks_at_everything(engine: PostgresEngine) -> None:
    ear = Ear(engine)
    with psycopg.connect(postgres.shared_url(), autocommit=True) as connection:
        query = f"LISTEN {engine.address.schema}"
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s", (query,)
        )
    assert ear.next() == []
    engine.apply([ops.Enqueue((spec("a"),))])
    assert ear.next() == ["q"]
    ear.stop()
