"""A read that takes too long is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

import tenure
from tenure import Busy, NewJob
from tests.support.sizes import let


def test_a_read_that_takes_too_long_is_stopped_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue_many(NewJob(queue="q") for _ in range(500))
        let(monkeypatch, seconds_of_a_read_of_sqlite=0.0)
        let(monkeypatch, steps_between_looks_at_the_time=100)
        with pytest.raises(Busy, match="the query took longer than 0 s"):
            queue.jobs(kind="nothing is of this kind")
        monkeypatch.undo()
        assert queue.jobs(kind="nothing is of this kind").jobs == []
        assert len(queue.claim("q", limit=500)) == 500
