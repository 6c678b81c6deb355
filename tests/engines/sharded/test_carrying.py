"""Carrying jobs from one shard to another: how many at once, and what stops it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from tenure import NewJob, Queue, StoreError
from tenure.core.fencing import Fence
from tenure.engines.sharded import catalog
from tenure.engines.sharded.carrying import Carrier
from tenure.engines.sharded.shard import Shard
from tenure.model import ops, queries
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.support.sizes import let


def test_an_error_of_a_shard_stops_a_move() -> None:
    class Away:
        def read(self, query: Query) -> Found:
            return StoreError("no route to the disk")

    with pytest.raises(StoreError, match="no route"):
        catalog.tenants(cast(Shard, Away()))


@pytest.mark.parametrize(
    ("together", "most_bytes", "parts"),
    [(100, 10_000, [7]), (3, 10_000, [3, 3, 1]), (100, 250, [3, 3, 1])],
)
def test_jobs_are_added_in_parts_by_their_number_and_their_bytes(
    queue: Queue,
    tenants: Tenants,
    monkeypatch: pytest.MonkeyPatch,
    together: int,
    most_bytes: int,
    parts: list[int],
) -> None:
    let(monkeypatch, jobs_carried_together=together)
    let(monkeypatch, bytes_carried_together=most_bytes)
    queue.enqueue_many(NewJob(queue="q", payload="x" * 98, tenant=tenants.here) for _ in range(7))
    source = shards_of(queue)[0]
    page = source.read(queries.Export(100))
    assert isinstance(page, queries.Exported)
    added: list[list[str]] = []

    class Target:
        def apply(self, batch: Sequence[Op], fence: Fence) -> list[Answer]:
            (one,) = batch
            assert isinstance(one, ops.Import)
            added.append([entry.job.id for entry in one.entries])
            return [ops.Enqueued(added[-1], [True] * len(added[-1]), 0)]

    Carrier(source, cast(Shard, Target()), "mark").copy_jobs(page.entries)
    assert [len(part) for part in added] == parts
    assert [job_id for part in added for job_id in part] == [e.job.id for e in page.entries]
