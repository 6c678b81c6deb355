"""Jobs without a tenant are on all shards, and keep what can be kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure import Duplicate, InvalidInput, NewJob, Queue
from tests.conformance.state import nothing_changes

Single = Callable[[int], Queue]


def test_jobs_without_a_tenant_are_on_all_shards(queue: Queue, single: Single) -> None:
    for n in range(40):
        queue.enqueue("q", n)
    counts = [single(number).stats().ready for number in (0, 1)]
    assert sum(counts) == 40
    assert min(counts) > 5
    assert len(queue.claim("q", limit=100)) == 40


def test_a_unique_key_is_held_by_one_job(queue: Queue) -> None:
    for n in range(20):
        queue.enqueue("q", unique_key=f"k{n}")
        with nothing_changes(queue), pytest.raises(Duplicate):
            queue.enqueue("q", unique_key=f"k{n}")


def test_a_group_keeps_its_order_and_its_limit(queue: Queue) -> None:
    for n in range(20):
        queue.enqueue("q", n, group="g")
    queue.limits.set("q", tenant="", group="g", concurrency=1)
    order = []
    while jobs := queue.claim("q", limit=5):
        (job,) = jobs
        order.append(job.payload)
        queue.ack(job)
    assert order == list(range(20))


def test_a_key_and_a_group_need_a_tenant(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match="give it a tenant"):
        queue.enqueue("q", unique_key="k", group="g")
    queue.enqueue("q", unique_key="k", group="g", tenant="acme")


def test_a_limit_of_all_jobs_without_a_tenant_is_refused(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match="do not share a count"):
        queue.limits.set("q", tenant="", concurrency=1)


def test_a_job_goes_where_the_jobs_are_that_it_waits_for(queue: Queue) -> None:
    parents = [queue.enqueue("q", n) for n in range(10)]
    children = [queue.enqueue("later", after=[parent]) for parent in parents]
    assert queue.stats().waiting == 10
    for job in queue.claim("q", limit=10):
        queue.ack(job)
    assert len(queue.claim("later", limit=10)) == len(children)


def test_a_job_that_waits_for_jobs_of_two_shards_is_refused(queue: Queue, single: Single) -> None:
    for n in range(20):
        queue.enqueue("q", n)
    parents = [single(number).jobs().jobs[0] for number in (0, 1)]
    with nothing_changes(queue), pytest.raises(InvalidInput, match="on different shards"):
        queue.enqueue("q", after=parents)


def test_jobs_that_are_added_together_are_together(queue: Queue, single: Single) -> None:
    queue.enqueue_many([NewJob(queue="q", id=f"{n}") for n in range(30)])
    assert sorted(single(number).stats().ready for number in (0, 1)) == [0, 30]


def test_counts_of_jobs_without_a_tenant_are_added_up(queue: Queue) -> None:
    for n in range(20):
        queue.enqueue("q", group=f"g{n % 3}")
    (tenant,) = queue.tenants("q")
    assert (tenant.tenant, tenant.ready) == ("", 20)
    assert [(one.group, one.ready) for one in queue.groups("q")] == [
        ("g0", 7),
        ("g1", 7),
        ("g2", 6),
    ]
