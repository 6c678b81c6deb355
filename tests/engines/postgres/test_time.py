"""The time in answers of PostgreSQL is the server's, whatever it took to make them."""

from __future__ import annotations

from pathlib import Path

from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.settings import Settings
from tests.support import postgres


def test_an_enqueue_that_adds_nothing_says_when_it_was_made(tmp_path: Path) -> None:
    clock = SystemClock()
    engine = PostgresEngine(postgres.url_of(tmp_path), Settings(), clock)
    before = clock.now_ms()
    for _ in range(2):
        (answer,) = engine.apply([ops.Enqueue((JobSpec("a", "mail", NULL),), "skip")])
        assert isinstance(answer, ops.Enqueued)
        assert answer.at >= before
    engine.close()
    postgres.give_back(tmp_path)
