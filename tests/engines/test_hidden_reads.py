"""The time of a read must not tell whether a job of others exists: nothing large of it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import JobNotFound
from tenure.engines.sql import job_lists, reads
from tenure.engines.sqlite.db import Db
from tenure.features.why.data import Explain
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
        monkeypatch.setattr(job_lists, "job_of", fail)
        acme = Grant(tenants=("acme",))
        for query in (
            queries.GetJob("a", grant=acme),
            queries.ListRelated("a", 20, grant=acme),
            Explain("a", grant=acme),
        ):
            assert isinstance(store_of(queue).do(query), JobNotFound)
        assert store_of(queue).do(queries.GetJobs(("a",), grant=acme)).jobs == []


def test_why_a_job_waits_that_must_not_be_seen_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for may be a long list."""
    ran: list[str] = []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(db: Db, name: str, *params: Any) -> Any:
            ran.append(name)
            return call(db, name, *params)

        return run

    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        parents = [queue.enqueue("q", tenant="other").id for _ in range(100)]
        queue.enqueue("q", id="a", tenant="other", after=parents)
        for name in ("one", "all", "named"):
            monkeypatch.setattr(Db, name, noted(getattr(Db, name)))
        store_of(queue).do(Explain("a", grant=Grant(tenants=("acme",))))
        hidden, ran[:] = list(ran), []
        store_of(queue).do(Explain("a", grant=Grant(tenants=("acme", "other"))))
        assert [name for name in hidden if name in ("read_job", "why_books", "why_parents")] == []
        assert {"owned_by_id", "read_job", "why_books", "why_parents"} <= set(ran)
        assert "owned_by_id" in hidden
