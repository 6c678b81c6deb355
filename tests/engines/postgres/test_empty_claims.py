"""A claim that a rate or a pause leaves nothing for writes nothing, and locks no books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import tenure
from tests.support import postgres

TABLES = ("queues", "tenants", "lanes", "states", "marks", "news")


def versions(schema: str) -> list[Any]:
    """The versions of all rows. A row that was only locked has a new one, too."""
    with psycopg.connect(postgres.shared_url()) as connection:
        rows = "array_agg((ctid, xmin, xmax)::text ORDER BY ctid)"
        asked = [f"SELECT {rows} FROM {schema}.{table}".encode() for table in TABLES]
        return [connection.execute(one).fetchone() for one in asked]


def hold_by_rate(queue: tenure.Queue) -> None:
    queue.limits.set("q", rate=2, per=3600)
    assert len(queue.claim("q", limit=9, lease=3600)) == 2


def hold_by_pause(queue: tenure.Queue) -> None:
    queue.pause("q")


@pytest.mark.parametrize("hold", [hold_by_rate, hold_by_pause])
def test_a_claim_that_finds_nothing_writes_nothing(
    queue: tenure.Queue, schema: str, hold: Callable[[tenure.Queue], None]
) -> None:
    for n in range(5):
        queue.enqueue("q", tenant=f"t{n % 2}", group=f"g{n}")
    hold(queue)
    before = versions(schema)
    for options in ({}, {"tenant": "t0"}, {"not_groups": ["g0"]}, {"limit": 9}) * 3:
        assert queue.claim(["q", "r"], **options) == queue.claim("q", **options) == []
    assert versions(schema) == before


def test_maintenance_folds_the_news_of_a_queue_that_is_held_back(
    queue: tenure.Queue, schema: str
) -> None:
    queue.pause("q")
    for _ in range(3):
        queue.enqueue("q")
    queue.maintain()
    with psycopg.connect(postgres.shared_url()) as connection:
        found = connection.execute(f"SELECT count(*) FROM {schema}.news".encode()).fetchone()
    assert found == (0,)
