"""Claims ask the shards in turns: those of one batch in the same order, and none for nothing."""

from __future__ import annotations

import pytest

from tenure import NewJob, Queue
from tenure.model import ops
from tenure.queue import store_of
from tests.engines.sharded.conftest import Tenants, shards_of


def test_of_claims_that_come_together_the_first_is_served_first(
    queue: Queue, tenants: Tenants
) -> None:
    claim = ops.Claim(("q",), "w", 60_000, limit=5)
    for tenant in tenants:  # on one shard, then on the other
        queue.enqueue_many(NewJob(queue="q", tenant=tenant) for _ in range(5))
        found = store_of(queue).engine.apply([claim, claim])
        assert [len(one.jobs) for one in found if isinstance(one, ops.Leased)] == [5, 0]


def test_a_claim_that_has_found_enough_asks_no_other_shard(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for shard in shards_of(queue):
        apply = shard.apply

        def noted(*given: object, name: str = shard.name, apply: object = apply) -> object:
            asked.append(name)
            assert callable(apply)
            return apply(*given)

        monkeypatch.setattr(shard, "apply", noted)
    for tenant in (tenants.here, tenants.there):
        queue.enqueue_many(NewJob(queue="q", tenant=tenant) for _ in range(4))
    asked.clear()
    for _ in range(2):
        assert len(queue.claim("q", limit=2)) == 2
    assert sorted(asked) == ["0", "1"]
    asked.clear()
    assert len(queue.claim("q", limit=4)) == 4
    assert sorted(asked) == ["0", "1"]
