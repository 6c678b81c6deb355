"""Maintenance and schedules while a shard is away: those of the other shards go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tenure
from tenure import NewJob, Queue, StoreFull
from tenure.engines.sharded import shard
from tenure.model.ops import Answer
from tenure.testing import ManualClock
from tenure.worker.scheduler import SLOT, UPKEEP_INTERVAL, Janitor, Scheduler
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_away import away


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setattr(shard, "TRY_SECONDS", 600.0)
    with tenure.connect(url, clock=clock) as queue:
        yield queue


@pytest.mark.parametrize("absent", [0, 1])
def test_every_shard_that_is_there_is_maintained(
    queue: Queue, tenants: Tenants, clock: ManualClock, absent: int
) -> None:
    for tenant in tenants:
        queue.enqueue("q", tenant=tenant, expires_in=1)
    clock.advance(2)
    first, second = Janitor(queue, "first"), Janitor(queue, "second")
    with away(queue, absent):
        assert [first.step(), second.step()] == [2, 0]
        assert [slot.holder[:5] for slot in queue.slots.list(*SLOT)] == ["first"]
    clock.advance(UPKEEP_INTERVAL)
    assert first.step() == 2  # the other one is back
    first.release_slot()
    assert queue.slots.list(*SLOT) == []


@pytest.mark.parametrize("absent", [0, 1])
def test_a_shard_whose_disk_is_full_keeps_no_other_from_its_schedules_and_its_upkeep(
    queue: Queue, tenants: Tenants, clock: ManualClock, absent: int
) -> None:
    """It can be read, so its schedules are known to be due."""
    for tenant in tenants:
        queue.schedules.put(f"of {tenant}", "* * * * *", NewJob(queue="tick", tenant=tenant))
        queue.enqueue("q", tenant=tenant, expires_in=1)
    store = shards_of(queue)[absent].store
    assert store is not None
    works = store.apply

    def full(*given: object) -> list[Answer]:
        raise StoreFull("the disk is full")

    clock.advance(61)
    scheduler = Scheduler(queue, "s")
    store.apply = full  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreFull):  # which is logged, and tried again
        scheduler.step()
    store.apply = works  # type: ignore[method-assign]
    there = tenants[2:] if absent == 0 else tenants[:2]
    assert {job.tenant for job in queue.jobs(queue="tick").jobs} == set(there)
    assert {job.tenant for job in queue.jobs(queue="q", state="dead").jobs} == set(there)
    scheduler.step()
    assert queue.stats("tick").ready == 4
