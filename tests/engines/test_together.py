"""Queries that are asked together are of one snapshot: what is committed meanwhile is not seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.model.queries import GetStats, Query, Together
from tenure.queue import store_of
from tests.support import postgres


@pytest.fixture(params=["sqlite", "postgres"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tenure.Queue]:
    on_postgres = request.param == "postgres"
    url = postgres.url_of(tmp_path) if on_postgres else f"sqlite:///{tmp_path}/jobs.db"
    with tenure.connect(url) as queue:
        yield queue
    if on_postgres:
        postgres.drop(tmp_path)


class Meanwhile:
    """Two queries, between which a job is enqueued."""

    def __init__(self, queue: tenure.Queue) -> None:
        self._queue = queue

    def __iter__(self) -> Iterator[Query]:
        yield GetStats("q")
        self._queue.enqueue("q")
        yield GetStats("q")


def test_queries_that_are_asked_together_are_of_one_snapshot(queue: tenure.Queue) -> None:
    queue.enqueue("q")
    wanted: Any = Meanwhile(queue)
    (before,), (after,) = store_of(queue).do(Together(wanted))
    assert (before.ready, after.ready) == (1, 1)
    assert queue.stats("q").ready == 2
