"""One list is made of the lists of all shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure import Job, NewJob, Queue, StoreError
from tenure.engines.sharded import merged_lists
from tenure.engines.sharded.merging import merged
from tenure.engines.sharded.shard import Shard
from tenure.errors import InvalidInput, TenureError
from tenure.model import ops, queries
from tenure.model.queries import Filter, FindByKey, ListJobs
from tenure.model.record_queries import ListRecords
from tenure.model.records import NewRecord, PutRecords, Record
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.engines.sharded.conftest import Tenants
from tests.support.sizes import let

Single = Callable[[int], Queue]
REPEAT = "other shards have done their part: repeat it when this one is back"


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
    queue.limits.set("q", tenant=tenants.there, concurrency=2)
    queue.limits.set("q", tenant="*", concurrency=1)
    queue.pause("q")
    found = [(one.tenant, one.concurrency) for one in queue.limits.list("q")]
    assert found == [(None, None), ("*", 1), (tenants.there, 2)]


def page_of(queue: Queue, where: Filter, limit: int) -> queries.Page:
    page = store_of(queue).do(ListJobs(where, limit))
    assert isinstance(page, queries.Page)
    return page


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_page_has_the_jobs_that_are_newer_than_what_a_shard_has_not_looked_at(
    url: str, tenants: Tenants, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """One shard looks at many jobs that do not match, and stops between them."""
    let(monkeypatch, jobs_scanned_for_a_page=20)
    let(monkeypatch, jobs_sorted_for_a_page=5)
    clock = ManualClock()
    with tenure.connect(url, clock=clock) as queue:
        common: list[Job] = []
        rare: list[Job] = []
        for n in range(31):
            if n in (3, 29, 30):
                rare.insert(0, queue.enqueue("q", tenant=tenants.there, kind="rare"))
                clock.advance(1)
            common.insert(0, queue.enqueue("q", tenant=tenants.here))
            clock.advance(1)
        page = page_of(queue, Filter("q", kind="rare"), limit)
        assert page.jobs == rare[: min(limit, 2)]
        last = common[19] if limit == 10 else page.jobs[-1]
        assert page.scanned_to == last.created_at
        assert queue.jobs(queue="q", kind="rare").jobs == rare


def test_a_job_that_is_as_old_as_what_a_shard_has_not_looked_at_is_left_to_the_next_page(
    url: str, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_scanned_for_a_page=20)
    let(monkeypatch, jobs_sorted_for_a_page=5)
    with tenure.connect(url, clock=ManualClock()) as queue:
        for tenant in (tenants.here, tenants.there):
            queue.enqueue("q", tenant=tenant, kind="rare")
        queue.enqueue_many(NewJob(queue="q", tenant=tenants.here) for _ in range(30))
        assert page_of(queue, Filter("q", kind="rare"), 10).jobs == []
        found = queue.jobs(queue="q", kind="rare").jobs
        assert [job.tenant for job in found] == [tenants.here, tenants.there]


@pytest.mark.parametrize("failed", [InvalidInput("queue", "too long"), StoreError("disk")])
def test_an_error_after_some_shards_have_done_their_part_keeps_its_kind_and_its_details(
    failed: TenureError,
) -> None:
    pause = ops.Pause("q")
    partly = merged(pause, [(pause, ops.Ok()), (pause, failed)])
    assert isinstance(partly, TenureError)
    assert type(partly) is type(failed)
    assert partly.message == str(partly) == f"{failed.message}; {REPEAT}"
    assert partly.__dict__ == failed.__dict__ | {"message": partly.message}
    assert merged(pause, [(pause, failed), (pause, failed)]) is failed


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_records_of_one_key_are_on_one_page(queue: Queue, single: Single, limit: int) -> None:
    for number in (0, 1):
        records = tuple(NewRecord("error", key, str(number).encode()) for key in ("a", "b"))
        store_of(single(number)).engine.apply([PutRecords(records)])
    found = store_of(queue).engine.read(ListRecords("error", limit=limit))
    assert isinstance(found, list)
    keys = [one.key for one in found if isinstance(one, Record)]
    assert keys == ["a", "a", "b", "b"][: 2 if limit < 3 else 4]


def test_a_search_by_key_goes_on_only_on_shards_that_have_more(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, keys_looked_up_at_once=2)
    queue.enqueue("q", id="c", tenant=tenants.there, unique_key="k")
    for n, job_id in enumerate("ab"):
        queue.enqueue(f"q{n}", id=job_id, tenant=tenants.here, unique_key="k")
    first = store_of(queue).engine.read(FindByKey("k"))
    assert isinstance(first, queries.Ids)
    assert first.ids == ["a", "b", "c"]
    assert first.cursor is not None
    assert [part[0] for part in first.cursor.split("~")] == ["0"]
    assert store_of(queue).engine.read(FindByKey("k", first.cursor)) == queries.Ids([])
    assert queue.find_by_key("k") == ["a", "b", "c"]


def test_each_shard_notes_its_own_part_of_a_change_of_jobs(queue: Queue, tenants: Tenants) -> None:
    for job_id, tenant in zip("abcd", tenants, strict=True):
        queue.enqueue("q", id=job_id, tenant=tenant)
    assert queue.audited(by="ann").cancel(list("abcd")) == 4
    entries = queue.audit().entries
    assert sorted(entry.target for entry in entries) == ["a, b", "c, d"]
    assert {entry.by for entry in entries} == {"ann"}


def test_jobs_of_several_shards_are_exported_in_the_order_of_their_ids(
    queue: Queue, tenants: Tenants
) -> None:
    for job_id, tenant in zip("abcd", tenants, strict=True):
        queue.enqueue("q", id=job_id, tenant=tenant)
    found = store_of(queue).engine.read(queries.Export(10, ids=("d", "a", "missing", "c")))
    assert isinstance(found, queries.Exported)
    assert [entry.job.id for entry in found.entries] == ["d", "a", "c"]
    assert found.cursor is None


CHANGES: dict[str, Callable[[Queue, Tenants], object]] = {
    "the last job leaves": lambda queue, _: queue.cancel("a2"),
    "another job leaves": lambda queue, _: queue.cancel("a3"),
    "all others leave": lambda queue, _: [queue.cancel(job_id) for job_id in ("a3", "a1", "a0")],
    "a job is added": lambda queue, tenants: queue.enqueue("q", tenant=tenants.here),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_a_job_that_matches_all_the_time_is_listed_whatever_changes_meanwhile(
    url: str, tenants: Tenants, monkeypatch: pytest.MonkeyPatch, change: str, times: int
) -> None:
    """The list changes between the two reads of a page: of its jobs, and of its end. If that
    happens in each try, jobs may be listed twice."""
    let(monkeypatch, tries_to_merge_a_page=2)
    page_of = merged_lists._page_of
    changes = [CHANGES[change], CHANGES["a job is added"]][:times]
    clock = ManualClock()
    with tenure.connect(url, clock=clock) as queue, tenure.connect(url, clock=clock) as other:

        def change_first(
            shard: Shard, query: merged_lists.ListQuery, start: str | None, most: int
        ) -> Any:
            if most < query.limit and changes:
                changes.pop(0)(other, tenants)
            return page_of(shard, query, start, most)

        for n in range(4):
            for name, tenant in (("a", tenants.here), ("b", tenants.there)):
                queue.enqueue("q", id=f"{name}{n}", tenant=tenant)
                clock.advance(1)
        before = {job.id for job in queue.jobs(state="pending", limit=100).jobs}
        monkeypatch.setattr(merged_lists, "_page_of", change_first)
        first = queue.jobs(state="pending", limit=4)
        second = queue.jobs(state="pending", limit=100, cursor=first.cursor)
        assert not changes
        assert len(first.jobs) == 4
        listed = [job.id for job in (*first.jobs, *second.jobs)]
        after = {job.id for job in queue.jobs(state="pending", limit=100).jobs}
        assert before & after <= set(listed)
        assert times == 2 or len(listed) == len(set(listed))
