"""Schedules: jobs at the times of a cron expression; of many schedulers one fires."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from tenure import (
    DependencyNotFound,
    InvalidInput,
    NewJob,
    Queue,
    Schedule,
    ScheduleNotFound,
    fixed,
)
from tenure.model.ops import Fire, Fired, PutSchedule
from tenure.model.queries import Timetable
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import BIG, make_done, take
from tests.conformance.state import all_jobs, nothing_changes

START = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
NEXT_MINUTE = START + 40_000
NEXT_HOUR = START + 2_800_000
JOB = NewJob(queue="q", payload={"n": 1})


def only(queue: Queue) -> Schedule:
    (schedule,) = queue.schedules.list()
    return schedule


def test_a_schedule_is_listed_with_its_next_time(queue: Queue) -> None:
    queue.schedules.put("b", "0 0 * * *", JOB)
    queue.schedules.put("a", "* * * * *", JOB, tz="Europe/Copenhagen", catch_up="all")
    a, b = queue.schedules.list()
    assert (a.name, a.cron, a.tz, a.catch_up) == ("a", "* * * * *", "Europe/Copenhagen", "all")
    assert (a.next_at, a.last_at) == (NEXT_MINUTE, None)
    assert (b.name, b.tz, b.catch_up) == ("b", "UTC", "last")
    assert b.next_at == 1_700_006_400_000  # the next midnight


def test_the_times_are_of_the_schedules_zone(queue: Queue) -> None:
    queue.schedules.put("a", "0 0 * * *", JOB, tz="Europe/Copenhagen")
    assert only(queue).next_at == 1_700_006_400_000 - 3_600_000


def test_a_schedule_fires_when_its_time_has_come(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    schedule = only(queue)
    clock.advance(39.999)
    with nothing_changes(queue):
        assert queue.schedules.fire(schedule) is False
    clock.advance(0.001)
    assert queue.schedules.fire(schedule) is True
    fired = only(queue)
    assert (fired.next_at, fired.last_at) == (NEXT_MINUTE + 60_000, NEXT_MINUTE)
    assert take(queue).payload == {"n": 1}


def test_a_time_fires_once(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    schedule = only(queue)
    clock.advance(40)
    assert queue.schedules.fire(schedule) is True
    with nothing_changes(queue):
        assert queue.schedules.fire(schedule) is False


def test_of_many_schedulers_one_fires(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    schedule = only(queue)
    clock.advance(60)
    fired: list[bool] = []
    start = threading.Barrier(8)

    def fire() -> None:
        start.wait()
        fired.append(queue.schedules.fire(schedule))

    threads = [threading.Thread(target=fire) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fired) == [False] * 7 + [True]
    assert len(all_jobs(queue)) == 1


def test_every_firing_makes_a_job_of_its_own(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    for _ in range(3):
        clock.advance(60)
        assert queue.schedules.fire(only(queue)) is True
    assert len({job.id for job in all_jobs(queue)}) == 3


def test_a_firing_makes_the_job_that_was_asked_for(queue: Queue, clock: ManualClock) -> None:
    job = NewJob(
        queue="q",
        payload=BIG,
        kind="report",
        tenant="acme",
        group="g",
        priority=3,
        delay=5,
        unique_key="k",
        max_attempts=7,
        backoff=fixed(9),
        expires_in=60,
        timeout=30,
    )
    queue.schedules.put("a", "* * * * *", job)
    clock.advance(100)
    queue.schedules.fire(only(queue))
    (made,) = all_jobs(queue)
    assert (made.payload, made.kind, made.tenant, made.group) == (BIG, "report", "acme", "g")
    assert (made.priority, made.unique_key, made.max_attempts) == (3, "k", 7)
    assert (made.backoff, made.timeout_ms) == (fixed(9), 30_000)
    # Spans run from the firing, not from when the schedule was made.
    assert made.run_at == clock.now_ms() + 5_000
    assert made.expires_at == clock.now_ms() + 60_000
    assert made.created_at == clock.now_ms()


def test_a_firing_whose_unique_key_is_held_adds_no_job(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", NewJob(queue="q", unique_key="k"))
    for _ in range(3):
        clock.advance(60)
        assert queue.schedules.fire(only(queue)) is True
    assert len(all_jobs(queue)) == 1
    assert only(queue).last_at == NEXT_MINUTE + 120_000


def test_a_firing_that_cannot_be_changes_nothing(queue: Queue, clock: ManualClock) -> None:
    make_done(queue, "parent")
    queue.schedules.put("a", "* * * * *", NewJob(queue="q", after=["parent"]))
    queue.delete("parent")
    clock.advance(60)
    with nothing_changes(queue), pytest.raises(DependencyNotFound):
        queue.schedules.fire(only(queue))


def test_a_schedule_that_is_put_again_goes_on_where_it_was(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    clock.advance(60)
    queue.schedules.fire(only(queue))
    before = only(queue)
    clock.advance(600)
    queue.schedules.put("a", "* * * * *", NewJob(queue="r"), catch_up="none")
    after = only(queue)
    assert (after.next_at, after.last_at) == (before.next_at, before.last_at)
    assert (after.job.queue, after.catch_up) == ("r", "none")


@pytest.mark.parametrize("change", [{"cron": "*/5 * * * *"}, {"tz": "Europe/Copenhagen"}])
def test_a_schedule_with_other_times_begins_anew(
    queue: Queue, clock: ManualClock, change: dict[str, Any]
) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    clock.advance(60)
    stale = only(queue)
    queue.schedules.fire(stale)
    clock.advance(600)
    fields: dict[str, Any] = {"cron": "* * * * *", "job": JOB}
    queue.schedules.put("a", **(fields | change))
    assert only(queue).next_at > clock.now_ms()
    assert only(queue).last_at is None


def test_a_scheduler_with_an_old_copy_does_not_fire(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    old = only(queue)
    queue.schedules.put("a", "0 * * * *", JOB)
    clock.advance(60)
    with nothing_changes(queue):
        assert queue.schedules.fire(old) is False


def test_a_dropped_schedule_is_gone(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    schedule = only(queue)
    queue.schedules.drop("a")
    assert queue.schedules.list() == []
    clock.advance(60)
    with nothing_changes(queue), pytest.raises(ScheduleNotFound) as caught:
        queue.schedules.fire(schedule)
    assert caught.value.name == "a"


def test_a_schedule_that_does_not_exist_cannot_be_dropped(queue: Queue) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    with nothing_changes(queue), pytest.raises(ScheduleNotFound):
        queue.schedules.drop("nobody")


@pytest.mark.parametrize(
    "bad",
    [
        {"cron": ""},
        {"cron": "* * * *"},
        {"cron": "61 * * * *"},
        {"cron": "0 0 30 2 *"},
        {"tz": "Mars/Olympus"},
        {"tz": ""},
        {"name": ""},
        {"name": "n" * 513},
        {"name": "a\0b"},
        {"catch_up": "some"},
        {"job": NewJob(queue="q", id="mine")},
        {"job": NewJob(queue="")},
        {"job": NewJob(queue="q", payload=float("nan"))},
        {"job": NewJob(queue="q", delay=-1)},
    ],
    ids=str,
)
def test_a_schedule_that_cannot_be_is_refused(queue: Queue, bad: dict[str, Any]) -> None:
    good: dict[str, Any] = {"name": "a", "cron": "* * * * *", "job": JOB}
    queue.schedules.put(**good)
    with nothing_changes(queue), pytest.raises(InvalidInput):
        queue.schedules.put(**(good | bad))


def test_a_missed_time_fires_late_and_once(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "0 * * * *", JOB)
    first = only(queue).next_at
    clock.advance(1.5 * 3600)
    assert queue.schedules.fire(only(queue)) is True
    assert only(queue).last_at == first


def fired(queue: Queue) -> list[int]:
    """Fire as long as something is due; the times for which jobs were made, in order."""
    while True:
        before = only(queue)
        queue.schedules.fire(before)
        if only(queue) == before:
            return sorted(job.run_at for job in all_jobs(queue))


def test_of_missed_times_the_last_fires(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    clock.advance(40 + 5 * 60 + 30)
    assert fired(queue) == [NEXT_MINUTE + 5 * 60_000]
    assert only(queue).next_at == NEXT_MINUTE + 6 * 60_000


def test_of_missed_times_all_fire_if_asked_for(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB, catch_up="all")
    clock.advance(40 + 5 * 60 + 30)
    assert fired(queue) == [NEXT_MINUTE + n * 60_000 for n in range(6)]
    assert only(queue).next_at == NEXT_MINUTE + 6 * 60_000


def test_of_missed_times_none_fires_if_asked_for(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "0 * * * *", JOB, catch_up="none")
    clock.advance(86_400)
    assert fired(queue) == []
    assert only(queue).next_at > clock.now_ms()


def test_a_time_that_has_just_come_was_not_missed(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB, catch_up="none")
    clock.advance(40 + 59)
    assert fired(queue) == [NEXT_MINUTE]


def test_a_year_of_missed_minutes_is_caught_up_with_at_once(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    clock.advance(40 + 366 * 86_400)
    assert fired(queue) == [NEXT_MINUTE + 366 * 86_400_000]


# By whose time ------------------------------------------------------------------------------------


def silenced(queue: Queue, ahead: float, cron: str = "0 * * * *") -> Schedule:
    """Put a schedule whose next time is so many seconds too late, as wrong clocks left them behind;
    returns it as it should be."""
    queue.schedules.put("a", cron, JOB)
    right = only(queue)
    queue.schedules.drop("a")
    store_of(queue).do([PutSchedule(replace(right, next_at=right.next_at + round(ahead * 1000)))])
    return right


def test_the_timetable_tells_the_stores_time(queue: Queue, clock: ManualClock) -> None:
    assert queue.schedules.timetable() == Timetable(START, [])
    for name in ("b", "a"):
        queue.schedules.put(name, "* * * * *", JOB)
    clock.advance(5)
    assert queue.schedules.timetable() == Timetable(START + 5_000, queue.schedules.list())
    assert [one.name for one in queue.schedules.timetable().schedules] == ["a", "b"]


def test_a_schedule_that_is_a_year_ahead_is_corrected(
    queue: Queue, clock: ManualClock, needs_transfer: None
) -> None:
    right = silenced(queue, 365 * 86_400)
    assert queue.schedules.fire(only(queue)) is False
    assert only(queue) == right
    assert all_jobs(queue) == []
    clock.advance(3600)
    assert queue.schedules.fire(only(queue)) is True
    assert [job.run_at for job in all_jobs(queue)] == [right.next_at]


def test_a_schedule_of_rare_times_that_is_ahead_by_one_is_corrected(
    queue: Queue, needs_transfer: None
) -> None:
    right = silenced(queue, 366 * 86_400, "0 0 1 1 *")  # 2025 in place of 2024
    assert queue.schedules.fire(only(queue)) is False
    assert only(queue) == right


def test_a_schedule_that_waits_for_its_next_time_stays_as_it_is(queue: Queue) -> None:
    queue.schedules.put("a", "0 0 1 1 *", JOB)
    with nothing_changes(queue):
        assert queue.schedules.fire(only(queue)) is False


@pytest.mark.parametrize("catch_up", ["last", "all", "none"])
def test_nothing_fires_again_when_the_clock_is_set_back_a_little(
    queue: Queue, clock: ManualClock, catch_up: Any
) -> None:
    queue.schedules.put("a", "* * * * *", JOB, catch_up=catch_up)
    clock.advance(40)
    assert queue.schedules.fire(only(queue)) is True
    clock.advance(-599)
    with nothing_changes(queue):
        assert queue.schedules.fire(only(queue)) is False


def test_a_schedule_goes_on_from_the_time_of_a_clock_that_was_set_back(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    clock.advance(40 + 86_400)
    assert queue.schedules.fire(only(queue)) is True
    clock.advance(-86_400)
    assert queue.schedules.fire(only(queue)) is False
    assert only(queue).next_at == NEXT_MINUTE + 60_000


def test_a_copied_schedule_keeps_its_time(queue: Queue, needs_transfer: None) -> None:
    missed = replace(silenced(queue, 0), next_at=START - 3_200_000, last_at=START - 6_800_000)
    queue.schedules.drop("a")
    store_of(queue).do([PutSchedule(missed)])
    assert only(queue) == missed
    assert queue.schedules.fire(only(queue)) is True
    assert only(queue).next_at == NEXT_HOUR


def test_a_schedule_whose_zone_the_store_does_not_know_is_an_error(
    queue: Queue, apply: Apply, needs_transfer: None, clock: ManualClock
) -> None:
    spec = silenced(queue, 0).job
    queue.schedules.drop("a")
    lost = Schedule("a", "* * * * *", spec, tz="Atlantis/Poseidonis")
    (refused,) = apply(PutSchedule(lost))
    assert isinstance(refused, InvalidInput)
    assert queue.schedules.list() == []
    apply(PutSchedule(replace(lost, next_at=NEXT_MINUTE)))
    clock.advance(60)
    with nothing_changes(queue), pytest.raises(InvalidInput):
        queue.schedules.fire(only(queue))


def test_the_delay_of_a_scheduled_job_counts_from_its_time(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedules.put("a", "* * * * *", NewJob(queue="q", delay=10))
    clock.advance(45)
    assert fired(queue) == [NEXT_MINUTE + 10_000]


def test_a_schedule_names_its_owner(queue: Queue) -> None:
    queue.schedules.put("a", "* * * * *", JOB, owner="shop")
    assert only(queue).owner == "shop"
    queue.schedules.put("a", "* * * * *", JOB)
    assert only(queue).owner == ""


def test_a_disabled_schedule_does_not_fire_and_misses_nothing(
    queue: Queue, clock: ManualClock
) -> None:
    queue.schedules.put("a", "* * * * *", JOB, catch_up="all")
    store_of(queue).do([PutSchedule(replace(only(queue), disabled=True))])
    assert (only(queue).disabled, only(queue).next_at) == (True, NEXT_MINUTE)
    clock.advance(600)
    with nothing_changes(queue):
        assert queue.schedules.fire(only(queue)) is False
    queue.schedules.put("a", "* * * * *", JOB, catch_up="all")
    assert (only(queue).disabled, only(queue).next_at) == (False, NEXT_MINUTE + 600_000)
    clock.advance(60)
    assert queue.schedules.fire(only(queue)) is True
    assert len(all_jobs(queue)) == 1


def test_a_schedule_that_stays_disabled_keeps_its_time(queue: Queue, clock: ManualClock) -> None:
    queue.schedules.put("a", "* * * * *", JOB)
    disabled = replace(only(queue), disabled=True)
    store_of(queue).do([PutSchedule(disabled)])
    clock.advance(600)
    store_of(queue).do([PutSchedule(replace(disabled, next_at=0))])
    assert only(queue).next_at == NEXT_MINUTE


def test_a_firing_whose_id_is_taken_adds_no_job(
    queue: Queue, clock: ManualClock, apply: Apply
) -> None:
    queue.enqueue("q", id="taken")
    queue.schedules.put("a", "* * * * *", JOB)
    clock.advance(40)
    assert apply(Fire("a", NEXT_MINUTE, "taken")) == [Fired(True)]
    assert only(queue).last_at == NEXT_MINUTE
    assert [job.id for job in all_jobs(queue)] == ["taken"]
