"""One list is made of the lists of all shards."""

from __future__ import annotations

from collections.abc import Callable

import tenure
from tenure import Queue
from tenure.testing import ManualClock
from tests.engines.sharded.conftest import Tenants

Single = Callable[[int], Queue]


def test_counts_of_one_tenant_on_several_shards_are_added_up(queue: Queue, single: Single) -> None:
    for n in range(40):
        queue.enqueue("q", n)
    queue.claim("q", limit=10)
    assert all(single(number).stats().ready for number in (0, 1))
    (unnamed,) = queue.tenants("q")
    assert (unnamed.tenant, unnamed.ready, unnamed.leased) == ("", 30, 10)


def test_totals_of_a_group_are_added_up_and_sorted(queue: Queue, tenants: Tenants) -> None:
    for group, tenant in [("a", tenants.here), ("c", tenants.here), ("d", tenants.here)]:
        queue.enqueue("q", tenant=tenant, group=group)
    for group, tenant in [("b", tenants.there), ("c", tenants.there), ("e", tenants.there)]:
        queue.enqueue("q", tenant=tenant, group=group)
    first = queue.group_totals("q", limit=3)
    assert [(one.group, one.unfinished) for one in first] == [("a", 1), ("b", 1), ("c", 2)]
    rest = queue.group_totals("q", limit=3, after="c")
    assert [(one.group, one.unfinished) for one in rest] == [("d", 1), ("e", 1)]


def test_the_longest_wait_is_of_the_shard_where_it_is_longest(url: str) -> None:
    clock = ManualClock()
    with tenure.connect(url, clock=clock) as queue:
        queue.enqueue("q")
        clock.advance(1)
        for _ in range(20):
            queue.enqueue("q")
        clock.advance(1)
        assert queue.longest_waits("q", [""]) == {"": 2000}


def test_a_queue_is_paused_if_it_is_on_all_shards(queue: Queue, single: Single) -> None:
    for n in range(20):
        queue.enqueue("q", n)
    single(0).pause("q")
    assert not queue.stats().queues["q"].paused
    single(1).pause("q")
    assert queue.stats().queues["q"].paused


def test_a_limit_of_all_shards_is_listed_once_and_the_whole_comes_first(
    queue: Queue, tenants: Tenants
) -> None:
    queue.enqueue("q", tenant=tenants.here)
    queue.set_limit("q", tenant=tenants.there, concurrency=2)
    queue.set_limit("q", tenant="*", concurrency=1)
    queue.pause("q")
    found = [(one.tenant, one.concurrency) for one in queue.limits("q")]
    assert found == [(None, None), ("*", 1), (tenants.there, 2)]
