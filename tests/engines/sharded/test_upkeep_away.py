"""Maintenance and schedules while a shard is away: those of the other shards go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

import tenure
from tenure import NewJob, Queue, StoreError, StoreFull
from tenure.engines.sharded import shard
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.testing import ManualClock
from tenure.worker.scheduler import SLOT, UPKEEP_INTERVAL, Janitor, Scheduler
from tests.crash.watched import PATIENCE, start
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_away import away
from tests.engines.sharded.test_slow import hanging
from tests.engines.sharded.test_slow_parts import held
from tests.support.sizes import let


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    let(monkeypatch, seconds_between_tries_of_a_shard=600.0)
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


HANGS = (ops.TakeSlot, ops.Maintain, ops.Fire, ops.Pause)


@pytest.mark.parametrize("kind", HANGS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("number", [0, 1])
def test_a_shard_that_hangs_keeps_no_other_from_its_schedules_and_its_upkeep(
    queue: Queue,
    tenants: Tenants,
    clock: ManualClock,
    number: int,
    kind: type[Op],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It can be read. A pause is of a user, who has to wait."""
    let(monkeypatch, seconds_until_a_shard_is_away=0.3)
    monkeypatch.setattr(shard.Shard, "may_hang", True)
    for tenant in tenants:
        queue.schedules.put(f"of {tenant}", "* * * * *", NewJob(queue="tick", tenant=tenant))
        queue.enqueue("q", tenant=tenant, expires_in=1)
    there = tenants[2:] if number == 0 else tenants[:2]
    scheduler, held_up = Scheduler(queue, "s"), list[Op]()

    def hangs(batch: Sequence[Op]) -> bool:
        mine = [op for op in batch if isinstance(op, kind)]
        held_up.extend(mine)
        return mine != []

    def step() -> None:
        clock.advance(61)
        with suppress(StoreError):  # which is logged, and tried again
            start(scheduler.step).result(PATIENCE)

    with held(queue, number, hangs) as called:
        if kind is ops.Pause:
            start(queue.pause, "other")
            called()
        for _ in range(4):
            step()
        assert {job.tenant for job in queue.jobs(queue="tick").jobs} >= set(there)
        assert {job.tenant for job in queue.jobs(queue="q", state="dead").jobs} >= set(there)
        assert len(held_up) == 1  # the next step waits until it has ended
        assert not store_of(queue).away()  # it may only have much to do
    scheduler.stop()
    for _ in range(2):
        step()
    assert {job.tenant for job in queue.jobs(queue="tick").jobs} == set(tenants)
    assert {job.tenant for job in queue.jobs(queue="q", state="dead").jobs} == set(tenants)


def test_a_schedule_is_found_without_a_shard_that_hangs(
    queue: Queue, tenants: Tenants, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_until_a_shard_is_away=0.3)
    monkeypatch.setattr(shard.Shard, "may_hang", True)
    for tenant in (tenants.here, tenants.there):
        queue.schedules.put(f"of {tenant}", "* * * * *", NewJob(queue="tick", tenant=tenant))
    clock.advance(61)
    mine, other = sorted(
        queue.schedules.timetable().schedules, key=lambda one: one.job.tenant != tenants.here
    )
    with hanging(queue, 0, "read"):
        with pytest.raises(StoreError):
            start(queue.schedules.fire, mine).result(PATIENCE)
        assert start(queue.schedules.fire, other).result(PATIENCE)
    assert queue.schedules.fire(mine)
