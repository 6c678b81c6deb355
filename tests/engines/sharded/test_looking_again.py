"""A job that is not found while tenants are moved may have been missed: it is looked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

import tenure
from tenure import Queue
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.locating import Place
from tenure.model.ops import Grant
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.engines.sharded.conftest import Tenants


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with tenure.connect(url, clock=ManualClock()) as queue:
        yield queue


@pytest.fixture
def looks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids that were looked for. The first time, nothing is found, and tenants are moved."""
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    cluster = engine._cluster
    search = cluster.locator.search
    looks: list[str] = []

    def misses_once(
        ids: Sequence[str], grant: Grant | None = None, *, brief: bool = False
    ) -> dict[str, Place]:
        looks.extend(ids)
        return search(ids, grant) if len(looks) > 1 else dict.fromkeys(ids)

    monkeypatch.setattr(cluster.locator, "search", misses_once)
    monkeypatch.setattr(cluster, "is_settled", lambda view: len(looks) > 1)
    return looks


CALLS: dict[str, Callable[[Queue, str], object]] = {
    "get": lambda queue, job_id: queue.get(job_id),
    "explain": lambda queue, job_id: queue.explain(job_id),
    "cancel": lambda queue, job_id: queue.cancel(job_id),
    "update": lambda queue, job_id: queue.update(job_id, priority=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_job_that_was_missed_is_found(
    queue: Queue, tenants: Tenants, looks: list[str], call: str
) -> None:
    job = queue.enqueue("q", tenant=tenants.there)
    CALLS[call](queue, job.id)
    assert looks[:2] == [job.id, job.id]
    found = queue.get(job.id)
    assert (found.state == "cancelled") == (call == "cancel")
    assert (found.priority == 1) == (call == "update")


def test_a_job_that_is_no_longer_where_it_was_seen_is_found_when_it_is_acknowledged(
    queue: Queue, tenants: Tenants, looks: list[str]
) -> None:
    queue.enqueue("q", tenant=tenants.there)
    (job,) = queue.claim("q")
    engine = store_of(queue).engine
    assert isinstance(engine, ShardedEngine)
    hints = engine._cluster.locator.hints
    hints.drop(job.id)
    hints.note([job.id], 0, hints.generation)
    queue.ack(job)
    assert looks == [job.id, job.id]
    assert queue.get(job.id).state == "done"
