"""Schedules and upkeep: each tick at most once, whoever runs; one janitor at a time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tenure
from tenure import InvalidInput, NewJob, Queue, Settings, Tenure
from tenure.testing import ManualClock, Sandbox
from tenure.worker import scheduler
from tenure.worker.scheduler import SLOT, SLOT_SECONDS, Janitor, Scheduler
from tests.support.sizes import let

COPENHAGEN = ZoneInfo("Europe/Copenhagen")


def ms(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    """A time in Copenhagen."""
    return round(datetime(year, month, day, hour, minute, tzinfo=COPENHAGEN).timestamp() * 1000)


def local(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).astimezone(COPENHAGEN).strftime("%d. %H:%M %z")


class Crowd:
    """Several schedulers on one store, each with a handle of its own."""

    def __init__(self, folder: Path, start_ms: int, count: int = 3) -> None:
        self.clock = ManualClock(start_ms)
        url = f"sqlite:///{folder}/jobs.db"
        self.handles = [
            tenure.connect(url, settings=Settings(keep_done=None), clock=self.clock)
            for _ in range(count)
        ]
        self.schedulers = [Scheduler(handle, f"s{n}") for n, handle in enumerate(self.handles)]

    @property
    def queue(self) -> Queue:
        return self.handles[0]

    def at_once(self) -> None:
        """All of them look at the same moment."""
        start = threading.Barrier(len(self.schedulers))
        errors: list[BaseException] = []

        def step(scheduler: Scheduler) -> None:
            try:
                start.wait(30)
                scheduler.step()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=step, args=(one,)) for one in self.schedulers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def run_until(self, end_ms: int, step_seconds: float) -> None:
        while self.clock.now_ms() < end_ms:
            self.clock.advance(step_seconds)
            self.at_once()

    def fired(self) -> list[int]:
        """The times for which jobs were made."""
        found, cursor = [], None
        while True:
            page = self.queue.jobs(limit=1000, cursor=cursor)
            found += [job.run_at for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return sorted(found)

    def close(self) -> None:
        for handle in self.handles:
            handle.close()


@pytest.fixture
def crowd_at(tmp_path: Path) -> Iterator[Any]:
    made: list[Crowd] = []

    def make(start_ms: int, count: int = 3) -> Crowd:
        made.append(Crowd(tmp_path, start_ms, count))
        return made[-1]

    yield make
    for crowd in made:
        crowd.close()


def test_three_schedulers_fire_each_tick_once(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 11, 15))
    crowd.queue.schedules.put("a", "*/10 * * * *", NewJob(queue="q"))
    crowd.run_until(ms(2026, 11, 15, 2), 60)
    start = ms(2026, 11, 15)
    assert crowd.fired() == [start + n * 600_000 for n in range(1, 13)]


def test_an_hour_that_is_left_out_loses_no_day(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 3, 28))  # the clocks go from 2 to 3 on the 29th
    job = NewJob(queue="q")
    crowd.queue.schedules.put("a", "30 2 * * *", job, tz="Europe/Copenhagen")
    crowd.run_until(ms(2026, 3, 31), 600)
    assert [local(at) for at in crowd.fired()] == [
        "28. 02:30 +0100",
        "29. 03:00 +0200",  # half past two does not exist: as soon as it is over
        "30. 02:30 +0200",
    ]


def test_an_hour_that_comes_twice_fires_a_daily_job_once(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 10, 24))  # the clocks go from 3 to 2 on the 25th
    crowd.queue.schedules.put("a", "30 2 * * *", NewJob(queue="q"), tz="Europe/Copenhagen")
    crowd.run_until(ms(2026, 10, 27), 600)
    assert [local(at)[:9] for at in crowd.fired()] == ["24. 02:30", "25. 02:30", "26. 02:30"]


def test_an_hourly_job_fires_in_both_of_the_hours(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 10, 25))
    crowd.queue.schedules.put("a", "0 * * * *", NewJob(queue="q"), tz="Europe/Copenhagen")
    crowd.run_until(ms(2026, 10, 25, 4), 300)
    assert [local(at) for at in crowd.fired()] == [
        "25. 01:00 +0200",
        "25. 02:00 +0200",
        "25. 02:00 +0100",
        "25. 03:00 +0100",
        "25. 04:00 +0100",
    ]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("last", ["05:00"]), ("all", ["01:00", "02:00", "03:00", "04:00", "05:00"]), ("none", [])],
)
def test_ticks_that_were_missed_are_caught_up_with_as_asked(
    crowd_at: Any, catch_up: Any, expected: list[str]
) -> None:
    crowd = crowd_at(ms(2026, 11, 15))
    crowd.queue.schedules.put(
        "a", "0 * * * *", NewJob(queue="q"), tz="Europe/Copenhagen", catch_up=catch_up
    )
    crowd.clock.advance(5.5 * 3600)  # nobody was there
    for _ in range(8):
        crowd.at_once()
    assert [local(at)[4:9] for at in crowd.fired()] == expected
    crowd.run_until(ms(2026, 11, 15, 6), 60)
    assert [local(at)[4:9] for at in crowd.fired()] == [*expected, "06:00"]


def test_each_tick_at_most_once_whatever_the_clock_does(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 11, 15))
    chance = random.Random(3)
    for name, catch_up in (("a", "all"), ("b", "last"), ("c", "none")):
        crowd.queue.schedules.put(name, "* * * * *", NewJob(queue=name), catch_up=catch_up)
    for _ in range(60):
        crowd.clock.advance(chance.choice([1, 20, 61, 200, 400, -30, -100]))
        crowd.at_once()
    fired = Counter((job.queue, job.run_at) for job in crowd.queue.jobs(limit=10_000).jobs)
    assert set(fired.values()) == {1}
    assert len(fired) > 20


def test_a_store_that_was_a_year_ahead_for_a_moment_goes_on(crowd_at: Any) -> None:
    """The schedulers know the times that it had then."""
    crowd = crowd_at(ms(2026, 11, 15))
    start, year = crowd.clock.now_ms(), 365 * 86_400
    crowd.queue.schedules.put("a", "0 * * * *", NewJob(queue="q"))
    crowd.run_until(start + 90 * 60_000, 600)
    crowd.clock.advance(year)
    crowd.at_once()
    crowd.at_once()
    crowd.clock.advance(-year)
    crowd.run_until(start + 4 * 3_600_000, 600)
    in_time = [at for at in crowd.fired() if at < start + year * 1000]
    assert in_time == [start + n * 3_600_000 for n in range(1, 5)]
    assert len(crowd.fired()) == 5


def test_a_schedule_that_cannot_fire_does_not_hold_up_the_others(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 11, 15), 1)
    parent = crowd.queue.enqueue("q", id="parent")
    crowd.queue.schedules.put("a", "* * * * *", NewJob(queue="q", after=[parent.id]))
    crowd.queue.schedules.put("b", "* * * * *", NewJob(queue="r"))
    crowd.queue.delete("parent")
    crowd.clock.advance(61)
    crowd.at_once()
    assert crowd.queue.stats().queues["r"].ready == 1


# The janitor ------------------------------------------------------------------------------------


def test_one_of_many_does_the_upkeep(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 11, 15))
    janitors = [Janitor(handle, f"j{n}") for n, handle in enumerate(crowd.handles)]
    crowd.queue.enqueue_many([NewJob(queue="q", expires_in=1) for _ in range(2500)])
    crowd.clock.advance(2)
    assert [janitor.step() for janitor in janitors] == [2500, 0, 0]
    assert [slot.holder[:2] for slot in crowd.queue.slots.list(*SLOT)] == ["j0"]


def test_a_round_that_did_not_come_to_an_end_is_continued_at_once(
    crowd_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, steps_of_upkeep_of_a_scheduler=2)
    let(monkeypatch, schedules_fired_at_once=10)
    crowd = crowd_at(ms(2026, 11, 15))
    janitor = Janitor(crowd.queue, "j")
    crowd.queue.enqueue_many([NewJob(queue="q", expires_in=1) for _ in range(25)])
    crowd.clock.advance(2)
    assert [janitor.step() for _ in range(3)] == [20, 5, 0]
    crowd.queue.enqueue("q", expires_in=1)
    crowd.clock.advance(scheduler.UPKEEP_INTERVAL - 1)
    assert janitor.step() == 0  # the next round has not begun
    crowd.clock.advance(1)
    assert janitor.step() == 1


def test_long_upkeep_leaves_time_to_other_writers(
    crowd_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, schedules_fired_at_once=10)
    crowd = crowd_at(ms(2026, 11, 15))
    spent: list[float] = []
    paused: list[float] = []
    maintain = crowd.queue.maintain

    def slow(*, limit: int) -> Any:
        spent.append(0.03 * (len(spent) + 1))
        crowd.clock.advance(spent[-1])
        return maintain(limit=limit)

    monkeypatch.setattr(crowd.queue, "maintain", slow)
    janitor = Janitor(crowd.queue, "j", paused.append)
    crowd.queue.enqueue_many([NewJob(queue="q", expires_in=1) for _ in range(25)])
    crowd.clock.advance(2)
    assert janitor.step() == 25
    assert spent == pytest.approx([0.03, 0.06, 0.09])
    assert paused == pytest.approx([0.03, scheduler.LONGEST_PAUSE])  # none after the last


def test_a_scheduler_goes_on_at_once_while_there_is_upkeep_to_do(
    crowd_at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, steps_of_upkeep_of_a_scheduler=2)
    let(monkeypatch, schedules_fired_at_once=10)
    crowd = crowd_at(ms(2026, 11, 15))
    one = Scheduler(crowd.queue, "s")
    crowd.queue.enqueue_many([NewJob(queue="q", expires_in=1) for _ in range(25)])
    crowd.clock.advance(2)
    assert [one.step(), one.step()] == [0, scheduler.LONGEST_SLEEP]


def test_another_takes_over_from_one_that_resigned_or_died(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 11, 15))
    first, second, third = [Janitor(handle, f"j{n}") for n, handle in enumerate(crowd.handles)]
    first.step()
    first.release_slot()
    second.step()
    assert [slot.holder[:2] for slot in crowd.queue.slots.list(*SLOT)] == ["j1"]
    crowd.clock.advance(SLOT_SECONDS - 1)
    third.step()
    assert [slot.holder[:2] for slot in crowd.queue.slots.list(*SLOT)] == ["j1"]
    crowd.clock.advance(30)  # the second was not heard of again
    third.step()
    assert [slot.holder[:2] for slot in crowd.queue.slots.list(*SLOT)] == ["j2"]


def test_one_that_slept_through_its_slot_does_nothing(crowd_at: Any) -> None:
    crowd = crowd_at(ms(2026, 11, 15))
    first, second = [Janitor(handle, f"j{n}") for n, handle in enumerate(crowd.handles[:2])]
    first.step()
    crowd.clock.advance(SLOT_SECONDS + 1)
    second.step()
    crowd.queue.enqueue("q", expires_in=1)
    crowd.clock.advance(6)
    assert first.step() == 0
    assert second.step() == 1


def test_the_upkeep_removes_what_is_kept_no_longer(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = Settings(url=f"sqlite:///{tmp_path}/jobs.db", keep_done=10)
    with tenure.connect(settings=settings, clock=clock) as queue:
        queue.enqueue("q")
        queue.ack(queue.claim("q")[0])
        scheduler = Scheduler(queue, "s")
        scheduler.step()
        assert queue.stats().done == 1
        clock.advance(11)
        scheduler.step()
        assert queue.stats().done == 0


def test_a_scheduler_works_in_a_thread_of_its_own_until_it_is_stopped(tmp_path: Path) -> None:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        told = threading.Event()
        unlisten = queue.changes.listen(lambda queues: told.set())
        queue.enqueue("q", expires_in=0.001)
        scheduler = Scheduler(queue, "s")
        scheduler.start()
        for _ in range(300):
            told.wait(0.1)
            told.clear()
            if queue.stats().dead:
                break
        assert queue.stats().dead == 1
        scheduler.stop()
        assert queue.slots.list(*SLOT) == []
        unlisten()


# @app.cron --------------------------------------------------------------------------------------


def test_a_function_is_run_at_the_times_that_it_declares() -> None:
    app = Tenure("memory://")
    seen: list[int] = []

    @app.cron("*/10 * * * *", tz="Europe/Copenhagen", queue="reports", tenant="acme")
    async def refresh() -> None:
        seen.append(tenure.current_job().job.run_at)

    with Sandbox(app) as box:
        box.drain(forward=3600)
        assert len(seen) == 6
        assert {job.tenant for job in box.jobs(queue="reports")} == {"acme"}
        assert {at % 600_000 for at in seen} == {0}


def test_a_task_is_worked_on_in_the_queue_of_its_schedule() -> None:
    app = Tenure("memory://")

    @app.cron("* * * * *", queue="elsewhere")
    @app.task(queue="here")
    def work() -> None: ...

    with Sandbox(app) as box:
        work.enqueue()
        box.drain(forward=60)
        assert {job.queue for job in box.jobs(state="done")} == {"here", "elsewhere"}


def test_a_task_can_have_several_schedules() -> None:
    app = Tenure("memory://")

    @app.cron("0 3 * * *", name="nightly")
    @app.cron("0 12 * * 1", name="weekly", catch_up="none")
    @app.task(queue="reports", max_attempts=9)
    def report(days: int = 1) -> int:
        return days

    assert set(app.crons) == {"nightly", "weekly"}
    assert app.crons["nightly"].job.max_attempts == 9
    with Sandbox(app) as box:
        names = {one.name: one.catch_up for one in box.queue.schedules.list()}
        assert names == {"nightly": "last", "weekly": "none"}


@pytest.mark.parametrize(
    ("expression", "options"),
    [
        ("* * *", {}),
        ("* * * * *", {"tz": "Mars/Olympus"}),
        ("* * * * *", {"catch_up": "some"}),
        ("* * * * *", {"priority": "x"}),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_where_it_is_declared(
    expression: str, options: Any
) -> None:
    app = Tenure("memory://")
    with pytest.raises(InvalidInput):
        app.cron(expression, **options)(lambda: None)


def test_a_function_that_needs_arguments_cannot_be_scheduled() -> None:
    app = Tenure("memory://")

    def work(n: int) -> None: ...

    with pytest.raises(InvalidInput, match="missing a required argument"):
        app.cron("* * * * *")(work)
