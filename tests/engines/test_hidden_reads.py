"""The time of a read must not tell whether a job of others exists: nothing large of it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import JobNotFound
from tenure.engines.sql import lists, reads
from tenure.model import queries
from tenure.model.ops import Grant
from tenure.queue import store_of


def test_a_job_that_must_not_be_seen_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise AssertionError("the job is read")

    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.enqueue("q", "x" * 100_000, id="a", tenant="other")
        monkeypatch.setattr(reads, "job_of", fail)
        monkeypatch.setattr(lists, "job_of", fail)
        acme = Grant(tenants=("acme",))
        for query in (queries.GetJob("a", grant=acme), queries.ListRelated("a", 20, grant=acme)):
            assert isinstance(store_of(queue).do(query), JobNotFound)
        assert store_of(queue).do(queries.GetJobs(("a",), grant=acme)).jobs == []
