"""Schedulers whose clocks are wrong: the store's time decides what is due and what comes next."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tenure
from tenure import NewJob, Queue, Schedule, Settings
from tenure.clock import SystemClock
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.model import ops
from tenure.model.cron import next_tick
from tenure.queue import store_of
from tenure.testing import ManualClock
from tenure.worker.scheduler import Scheduler
from tests import fdb_sim
from tests.fdb_sim.client import SkewedClock
from tests.server import host
from tests.support import postgres

DAY, YEAR = 86_400, 366 * 86_400
MIDNIGHT = 1_700_006_400_000


class Store:
    """A store and its time, which tests move; handles on it may have clocks of their own."""

    def __init__(
        self,
        open_handle: Callable[[ManualClock, int], Queue],
        inside: Callable[[Queue], Queue] = lambda queue: queue,
    ) -> None:
        self.clock = ManualClock(MIDNIGHT)
        self._open = open_handle
        self.inside = inside  # past a service, which lets nobody say when a schedule fires
        self.handles: list[Queue] = []

    def open(self, ahead: float = 0) -> Queue:
        """A handle whose clock is so many seconds ahead of the store's."""
        self.handles.append(self._open(self.clock, round(ahead * 1000)))
        return self.handles[-1]

    def schedulers(self, *ahead: float) -> list[Scheduler]:
        """One for each clock, which have run for a while."""
        found = [Scheduler(self.open(one), f"s{n}") for n, one in enumerate(ahead)]
        for one in found * 2:
            one.step()
        return found

    def jobs(self) -> list[tenure.Job]:
        """What was made, the oldest first."""
        return list(reversed(self.handles[0].jobs(limit=1000).jobs))

    def fired(self) -> list[tuple[int, int]]:
        """The seconds since the beginning for which jobs were made, and at which."""
        return [
            ((job.run_at - MIDNIGHT) // 1000, (job.created_at - MIDNIGHT) // 1000)
            for job in self.jobs()
        ]


class Skewed:
    """A clock that is ahead of another."""

    def __init__(self, clock: ManualClock, ahead_ms: int) -> None:
        self._clock, self.ahead_ms = clock, ahead_ms
        self.monotonic, self.sleep = clock.monotonic, clock.sleep

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms


def on_http(folder: Path) -> Store:
    return Store(
        lambda clock, ahead_ms: tenure.connect(
            host.serve(folder, clock), settings=Settings(), clock=Skewed(clock, ahead_ms)
        ),
        lambda queue: host._open[folder][1],
    )


def on_foundationdb(folder: Path) -> Store:
    clusters: list[fdb_sim.Cluster] = []
    seeds = itertools.count()

    def open_handle(clock: ManualClock, ahead_ms: int) -> Queue:
        if not clusters:
            clusters.append(fdb_sim.Cluster(clock))
        db = fdb_sim.open(clusters[0], skew_ms=ahead_ms)
        chance = random.Random(next(seeds))
        engine = FoundationDbEngine(fdb_sim, db, Settings(), db.clock, hybrid=True, chance=chance)
        return Queue(engine, Settings(), db.clock)

    return Store(open_handle)


@pytest.fixture(params=[on_http, on_foundationdb])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = request.param(tmp_path)
    yield made
    for handle in made.handles:
        handle.close()
    host.close(tmp_path)


def only(queue: Queue) -> Schedule:
    (schedule,) = queue.schedules.list()
    return schedule


def test_three_schedulers_of_which_two_are_a_day_off_fire_each_time_once_and_in_time(
    store: Store,
) -> None:
    schedulers = store.schedulers(0, DAY, -DAY)
    store.handles[1].schedules.put("a", "*/10 * * * *", NewJob(queue="q"))
    for _ in range(120):
        store.clock.advance(60)
        for one in schedulers:
            one.step()
    assert store.fired() == [(600 * n, 600 * n) for n in range(1, 13)]


@pytest.mark.parametrize("ahead", [DAY, -DAY, YEAR])
def test_of_whichever_clock_the_scheduler_is_that_looks_first(store: Store, ahead: float) -> None:
    right, wrong, other = store.schedulers(0, ahead, 0)
    store.handles[0].schedules.put("a", "0 * * * *", NewJob(queue="q"))
    for _ in range(120):
        store.clock.advance(60)
        for one in (wrong, right, other):
            one.step()
    assert store.fired() == [(3600, 3600), (7200, 7200)]


def test_a_schedule_that_was_put_by_a_wrong_clock_begins_in_time(store: Store) -> None:
    store.schedulers(0, 0, YEAR)
    store.handles[2].schedules.put("a", "0 * * * *", NewJob(queue="q"))
    assert only(store.handles[0]).next_at == MIDNIGHT + 3_600_000


def test_a_wrong_clock_does_not_fire_a_schedule_that_is_not_due(store: Store) -> None:
    store.schedulers(0, 0, DAY)
    store.handles[0].schedules.put("a", "0 * * * *", NewJob(queue="q"))
    fire = ops.Fire("a", only(store.handles[0]).next_at, "early")
    assert store_of(store.inside(store.handles[2])).do([fire]) == [ops.Fired(False)]
    assert store.jobs() == []


def test_one_clock_that_is_behind_is_outvoted_by_two(store: Store) -> None:
    store.schedulers(0, 0, -DAY)
    assert [one.schedules.timetable().now for one in store.handles] == [MIDNIGHT] * 3


def test_a_schedule_that_a_wrong_clock_has_moved_ahead_before_is_corrected(store: Store) -> None:
    """As a release before this one did."""
    (scheduler,) = store.schedulers(0)
    queue = store.handles[0]
    queue.schedules.put("a", "0 * * * *", NewJob(queue="q"))
    year_ahead = MIDNIGHT + YEAR * 1000
    silenced = replace(only(queue), next_at=year_ahead + 3_600_000, last_at=year_ahead)
    queue.schedules.drop("a")
    store_of(store.inside(queue)).do([ops.PutSchedule(silenced)])
    scheduler.step()
    store.clock.advance(3600)
    for _ in range(2):
        scheduler.step()
    assert [created for _, created in store.fired()] == [3600]


@pytest.mark.parametrize("store", [on_http], indirect=True)
def test_a_scheduler_sleeps_until_it_is_time_in_the_store(store: Store) -> None:
    schedulers = store.schedulers(0, 17.25, -17.25)
    store.handles[0].schedules.put("a", "* * * * *", NewJob(queue="q"))
    store.clock.advance(59.75)
    assert [one.step() for one in schedulers] == [0.25] * 3


@pytest.mark.parametrize("store", [on_http], indirect=True)
def test_a_client_of_a_service_cannot_say_when_a_schedule_fires(store: Store) -> None:
    """As clients of releases before this one do."""
    queue = store.open()
    queue.schedules.put("a", "0 * * * *", NewJob(queue="q"))
    right = only(queue)
    queue.schedules.drop("a")
    store_of(queue).do(
        [ops.PutSchedule(replace(right, next_at=MIDNIGHT + YEAR * 1000, last_at=MIDNIGHT))]
    )
    assert only(queue) == right


@pytest.mark.parametrize("store", [on_foundationdb], indirect=True)
def test_on_foundationdb_a_scheduler_that_has_gone_counts_no_longer(store: Store) -> None:
    gone, *_, last = store.schedulers(-DAY, -DAY, 0)
    store.clock.advance(60)
    last.step()
    assert store.handles[2].schedules.timetable().now < MIDNIGHT
    store.clock.advance(300)
    last.step()
    assert store.handles[2].schedules.timetable().now == MIDNIGHT + 360_000
    gone.step()
    assert store.handles[0].schedules.timetable().now == MIDNIGHT + 360_000 - DAY * 1000


@pytest.mark.parametrize("store", [on_foundationdb], indirect=True)
def test_on_foundationdb_the_clock_of_one_who_looks_once_does_not_count(store: Store) -> None:
    store.schedulers(0)
    for _ in range(3):
        store.open(-DAY).schedules.timetable()
    assert store.handles[0].schedules.timetable().now == MIDNIGHT


@pytest.mark.parametrize("store", [on_foundationdb], indirect=True)
@pytest.mark.parametrize(("ahead", "used"), [(2, 2), (-2, -2), (2.001, 0), (-2.001, 0)])
def test_on_foundationdb_a_clock_is_used_as_it_is_if_it_is_off_by_two_seconds_at_most(
    store: Store, ahead: float, used: float
) -> None:
    store.schedulers(0, 0, ahead)
    assert store.handles[2].schedules.timetable().now == MIDNIGHT + used * 1000


@pytest.mark.parametrize("store", [on_foundationdb], indirect=True)
def test_on_foundationdb_a_clock_that_is_set_right_counts_at_once(store: Store) -> None:
    """A note of the time is good for ten seconds, unless the clock was changed since."""
    wrong, _, _ = store.schedulers(-DAY, -DAY, 0)
    assert store.handles[2].schedules.timetable().now == MIDNIGHT - DAY * 1000
    engine = store_of(store.handles[0]).engine
    assert isinstance(engine, FoundationDbEngine)
    clock = engine._transactor._clock
    assert isinstance(clock, SkewedClock)
    clock.skew_ms = 0
    wrong.step()
    assert store.handles[2].schedules.timetable().now == MIDNIGHT


# On PostgreSQL, whose time is that of a real server -----------------------------------------------


@pytest.fixture
def skewed(tmp_path: Path) -> Iterator[Callable[[float], Queue]]:
    """Opens handles on one PostgreSQL whose clocks are wrong by so many seconds."""
    handles: list[Queue] = []

    def open_handle(ahead: float) -> Queue:
        clock: Any = SystemClock()
        clock.now_ms = lambda: time.time_ns() // 10**6 + round(ahead * 1000)
        handles.append(tenure.connect(postgres.url_of(tmp_path), clock=clock))
        return handles[-1]

    yield open_handle
    for handle in handles:
        handle.close()
    postgres.give_back(tmp_path)


def test_on_postgresql_the_servers_time_decides(skewed: Callable[[float], Queue]) -> None:
    crowd = [skewed(ahead) for ahead in (DAY, -DAY, YEAR, 0)]
    schedulers = [Scheduler(queue, f"s{n}", upkeep=False) for n, queue in enumerate(crowd)]
    crowd[2].schedules.put("a", "0 0 1 1 *", NewJob(queue="q"))
    coming = next_tick("0 0 1 1 *", "UTC", crowd[-1].clock.now_ms())
    assert only(crowd[0]).next_at == coming
    for one in schedulers:
        one.step()
    assert crowd[0].jobs().jobs == []
    # The time comes, as far as the store is concerned.
    due = replace(only(crowd[0]), next_at=coming - YEAR * 1000)
    crowd[0].schedules.drop("a")
    store_of(crowd[0]).do([ops.PutSchedule(due)])
    threads = [threading.Thread(target=one.step) for one in schedulers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (job,) = crowd[0].jobs().jobs
    assert job.run_at <= crowd[-1].clock.now_ms()
    assert only(crowd[0]).next_at == coming


def test_on_postgresql_a_schedule_that_was_moved_ahead_is_corrected(
    skewed: Callable[[float], Queue],
) -> None:
    queue = skewed(0)
    queue.schedules.put("a", "0 * * * *", NewJob(queue="q"))
    right = only(queue)
    queue.schedules.drop("a")
    store_of(queue).do([ops.PutSchedule(replace(right, next_at=right.next_at + YEAR * 1000))])
    Scheduler(skewed(DAY), "s", upkeep=False).step()
    assert only(queue).next_at in (right.next_at, right.next_at + 3_600_000)
    assert queue.jobs().jobs == []
