"""A read that takes too long is stopped."""

from __future__ import annotations

import psycopg
import pytest

from tenure import Busy, Queue
from tests.support import postgres
from tests.support.sizes import let


def test_a_read_that_takes_too_long_is_stopped_with_an_error(
    queue: Queue, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("q", id="a")
    let(monkeypatch, seconds_of_a_read_of_postgresql=0.1)
    with psycopg.connect(postgres.shared_url()) as other:
        other.execute(f"LOCK TABLE {schema}.jobs".encode())
        with pytest.raises(Busy, match=r"the query took longer than 0\.1 s"):
            queue.get("a")
    assert queue.get("a").id == "a"
