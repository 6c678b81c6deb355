"""Which leases are renewed when the keeper looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import tenure
from tenure import Queue
from tenure.model.job import Lease
from tenure.testing import ManualClock
from tenure.worker.handler import HandlerSpec
from tenure.worker.lease_keeper import OVERDUE_SECONDS, Keeper
from tenure.worker.run import Run
from tests.crash.watched import PATIENCE, until
from tests.support.sizes import let

LEASE = 9.0  # seconds: a third of it lies between two looks


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Iterator[Queue]:
    with tenure.connect("memory://", clock=clock) as queue:
        yield queue


def claimed(queue: Queue, id: str, lease: float = LEASE) -> Run:
    queue.enqueue("q", id=id)
    (job,) = queue.claim("q", lease=lease)
    return Run(
        job,
        HandlerSpec(lambda job: None, "loop", "h"),
        queue,
        cast(Any, None),
        queue.clock.monotonic(),
    )


def kept(
    queue: Queue, runs: list[Run], overdue: Callable[[Run], None] = lambda run: None
) -> Keeper:
    return Keeper(queue, LEASE, lambda: runs, overdue, lambda: ())


def ms_left(queue: Queue, run: Run) -> int:
    """What is left of a lease."""
    lease_until = queue.get(run.job.id).lease_until
    assert lease_until is not None
    return lease_until - queue.clock.now_ms()


def test_a_lease_is_renewed_once_it_is_half_an_interval_old(
    queue: Queue, clock: ManualClock
) -> None:
    runs = [claimed(queue, "old")]
    keeper = kept(queue, runs)
    clock.advance(1)
    runs.append(claimed(queue, "half"))
    clock.advance(0.001)
    runs.append(claimed(queue, "young"))
    clock.advance(1.499)
    keeper.look()
    assert [ms_left(queue, run) for run in runs] == [9_000, 9_000, 7_501]
    clock.advance(1.499)
    keeper.look()
    assert [ms_left(queue, run) for run in runs] == [7_501, 7_501, 9_000]


def test_all_leases_are_renewed_after_the_process_slept_for_longer_than_a_lease(
    queue: Queue, clock: ManualClock
) -> None:
    runs: list[Run] = []
    keeper = kept(queue, runs)
    clock.advance(LEASE + 0.001)
    runs.append(claimed(queue, "a", lease=1))
    assert keeper.was_suspended
    keeper.look()
    assert ms_left(queue, runs[0]) == 9_000
    assert not keeper.was_suspended


def test_a_process_counts_as_suspended_before_a_lease_ends_that_was_too_young_to_be_renewed(
    queue: Queue, clock: ManualClock
) -> None:
    young = claimed(queue, "young")
    keeper = kept(queue, [young])
    clock.advance(1.499)
    keeper.look()
    clock.advance(6)
    assert not keeper.was_suspended
    clock.advance(0.001)
    assert keeper.was_suspended
    assert ms_left(queue, young) == 1_500


def test_a_process_counts_as_suspended_until_its_leases_are_renewed(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a claim that is sent meanwhile takes over our own jobs."""
    keeper = kept(queue, [claimed(queue, "a")])
    clock.advance(LEASE + 0.001)
    suspended: list[bool] = []
    extend_many = queue.extend_many

    def noted(*given: Any) -> Any:
        suspended.append(keeper.was_suspended)
        return extend_many(*given)

    monkeypatch.setattr(queue, "extend_many", noted)
    keeper.look()
    assert suspended == [True]
    assert not keeper.was_suspended


def test_a_renewal_that_hangs_does_not_keep_the_next_from_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what cannot be renewed is tried apart from the others."""
    go_on, calls = threading.Event(), list[list[str]]()
    with tenure.connect("memory://") as queue:
        runs = [claimed(queue, "a", 60), claimed(queue, "b", 60)]

        def extend_many(leases: list[Any], lease: float) -> list[tenure.TenureError | None]:
            calls.append([one.id for one in leases])
            if len(calls) == 1:
                assert go_on.wait(PATIENCE)
            return [tenure.StoreError("away") if one.id == "b" else None for one in leases]

        monkeypatch.setattr(queue, "extend_many", extend_many)
        keeper = Keeper(queue, 0.1, lambda: runs, lambda run: None, lambda: ())
        keeper.start()
        try:
            until(lambda: len(calls) >= 6)
        finally:
            go_on.set()
            keeper.stop()
    assert calls[:2] == [["a", "b"]] * 2
    assert ["a"] in calls[2:]
    assert ["b"] in calls[2:]


def test_many_leases_are_renewed_in_parts_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, leases_renewed_at_once=2)
    together = threading.Barrier(3)
    extend_many = queue.extend_many
    sizes: list[int] = []

    def noted(leases: list[Lease], lease: float) -> Any:
        sizes.append(len(leases))
        together.wait(PATIENCE)
        return extend_many(leases, lease)

    runs = [claimed(queue, f"{n}", lease=1) for n in range(4)]
    kept_one = claimed(queue, "its outcome is not stored", lease=1)
    leases = [Lease(kept_one.job.id, kept_one.token)]
    monkeypatch.setattr(queue, "extend_many", noted)
    queue.clock.advance(0.9)  # type: ignore[attr-defined]
    keeper = Keeper(queue, LEASE, lambda: runs, lambda run: None, lambda: leases)
    keeper._interval = 0
    keeper.look()
    assert sorted(sizes) == [1, 2, 2]
    assert [ms_left(queue, run) for run in [*runs, kept_one]] == [9_000] * 5


def test_a_lost_job_is_said_to_be_lost_once(
    queue: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    run = claimed(queue, "a")
    keeper = kept(queue, [run])
    queue.delete("a")
    for _ in range(3):  # its handler takes its time to end
        clock.advance(2)
        keeper.look()
    assert run.reason == "lost"
    assert caplog.text.count("was lost") == 1


def test_a_handler_is_overdue_some_time_after_its_deadline(
    queue: Queue, clock: ManualClock
) -> None:
    run = claimed(queue, "a")
    run.deadline = clock.monotonic() + 1
    overdue: list[Run] = []
    keeper = kept(queue, [run, claimed(queue, "without a deadline")], overdue.append)
    clock.advance(1 + OVERDUE_SECONDS)
    keeper.give_up_overdue()
    assert overdue == []
    clock.advance(0.001)
    keeper.give_up_overdue()
    assert overdue == [run]
