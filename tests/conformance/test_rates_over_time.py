"""Rates over time, added up from what each process has counted. (Rate limits: test_rates.py.)"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from tenure import NewJob, Queue, RatePoint
from tenure.features.rates.counter import FLUSH_SECONDS
from tenure.features.rates.data import bucket_of, quantile, time_of
from tenure.testing import ManualClock
from tests.conformance.conftest import OpenQueue
from tests.support.sizes import let

MINUTE, HOUR = 60_000, 3_600_000


def work(queue: Queue, clock: ManualClock, name: str = "mail") -> None:
    """Three jobs: one done, one failed, one dead. They wait for 1 s and run for 2 s."""
    queue.enqueue_many([NewJob(queue=name) for _ in range(2)])
    queue.enqueue(name)
    clock.advance(1)
    one, two, three = queue.claim(name, limit=3)
    clock.advance(2)
    queue.ack(one)
    queue.fail(two, "no", retry_in=1_000_000)
    queue.fail(three, "no", fatal=True)


def flush(queue: Queue, clock: ManualClock) -> None:
    """Counts are stored with the first commit after some seconds, on shards in a thread."""
    clock.advance(FLUSH_SECONDS)
    queue.maintain()
    for thread in threading.enumerate():
        if thread.name == "tenure-rates":
            thread.join()


def about(ms: int | None, expected: int) -> bool:
    return ms is not None and expected / 1.5 <= ms <= expected * 1.5


def test_what_happened_is_counted_by_queue_and_minute(queue: Queue, clock: ManualClock) -> None:
    start = clock.now_ms() - clock.now_ms() % MINUTE
    clock.advance((start + MINUTE - clock.now_ms()) / 1000)  # the beginning of a minute
    work(queue, clock)
    flush(queue, clock)
    clock.advance(60)
    work(queue, clock)
    work(queue, clock, "other")
    flush(queue, clock)
    found = queue.rates()
    assert (found.per_ms, found.now) == (MINUTE, clock.now_ms())
    assert list(found.queues) == ["mail", "other"]
    first, second = found.queues["mail"].points
    assert (first.at, second.at) == (start + MINUTE, start + 2 * MINUTE)
    for point in (first, second):
        counts = (point.enqueued, point.claimed, point.done, point.failed, point.dead)
        assert counts == (3, 3, 1, 2, 1)
        assert about(point.wait_p50, 1_000)
        assert about(point.wait_p99, 1_000)
        assert about(point.run_p50, 2_000)
    assert [point.at for point in queue.rates("other").queues["other"].points] == [second.at]
    assert queue.rates("unknown").queues == {}


def test_hours_are_the_sums_of_their_minutes(queue: Queue, clock: ManualClock) -> None:
    for _ in range(4):
        work(queue, clock)
        flush(queue, clock)
        clock.advance(1_700)
    points = queue.rates(per="hour").queues["mail"].points
    assert all(point.at % HOUR == 0 for point in points)
    assert len(points) in (2, 3)
    assert sum(point.done for point in points) == 4
    assert sum(point.enqueued for point in points) == 12


def test_a_list_begins_where_it_is_asked_to(queue: Queue, clock: ManualClock) -> None:
    work(queue, clock)
    flush(queue, clock)
    clock.advance(2 * 3600)
    assert queue.rates().queues == {}
    since = datetime.fromtimestamp(clock.now_ms() / 1000 - 3 * 3600, UTC)
    assert len(queue.rates(since=since).queues["mail"].points) == 1


def test_minutes_are_kept_for_a_day_and_hours_for_90(queue: Queue, clock: ManualClock) -> None:
    work(queue, clock)
    flush(queue, clock)
    since = datetime.fromtimestamp(clock.now_ms() / 1000 - 3600, UTC)
    clock.advance(26 * 3600)
    queue.maintain()
    assert queue.rates(since=since).queues == {}
    assert queue.rates(since=since, per="hour").queues["mail"].points[0].done == 1
    clock.advance(90 * 86_400)
    queue.maintain()
    assert queue.rates(since=since, per="hour").queues == {}


def test_all_handles_count_together_and_closing_stores_the_rest(
    open_queue: OpenQueue, clock: ManualClock, needs_durability: None
) -> None:
    one, other = open_queue(), open_queue()
    work(one, clock)
    reader = open_queue()
    assert reader.rates().queues == {}  # nothing is stored yet
    work(other, clock)
    one.close()
    other.close()
    assert sum(point.done for point in reader.rates().queues["mail"].points) == 2


def test_a_job_is_counted_where_it_ends_wherever_it_was_claimed(
    open_queue: OpenQueue, clock: ManualClock, needs_durability: None
) -> None:
    one, other = open_queue(), open_queue()
    one.enqueue_many([NewJob(queue=name) for name in ("mail", "mail", "mail", "mail", "web")])
    first, second, third, fourth = one.claim("mail", limit=4)
    (fifth,) = one.claim("web")
    clock.advance(2)
    other.ack_many([first, fifth])
    other.ack(second)
    other.fail(third, "no", fatal=True)
    one.ack(fourth)
    flush(one, clock)
    flush(other, clock)
    (mail,) = one.rates().queues["mail"].points
    assert (mail.enqueued, mail.claimed, mail.done, mail.failed, mail.dead) == (4, 4, 3, 1, 1)
    assert about(mail.run_p50, 2_000)
    (web,) = one.rates().queues["web"].points
    assert (web.claimed, web.done) == (1, 1)


def test_a_part_of_very_many_jobs_that_were_claimed_elsewhere_stands_for_all(
    open_queue: OpenQueue,
    clock: ManualClock,
    needs_durability: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let(monkeypatch, jobs_looked_up_for_rates=10)
    one, other = open_queue(), open_queue()
    one.enqueue_many([NewJob(queue="mail") for _ in range(40)])
    other.ack_many(one.claim("mail", limit=40))
    flush(other, clock)
    flush(other, clock)  # they are counted once
    assert sum(point.done for point in one.rates().queues["mail"].points) == 40


def test_a_job_that_existed_is_not_counted(queue: Queue, clock: ManualClock) -> None:
    for _ in range(2):
        queue.enqueue_many([NewJob(queue="mail", id="a"), NewJob(queue="mail")], if_exists="skip")
    flush(queue, clock)
    (point,) = queue.rates().queues["mail"].points
    assert point == RatePoint(point.at, enqueued=3)


def test_a_histogram_has_two_buckets_for_each_power_of_two() -> None:
    for ms in range(5_000):
        middle = time_of(bucket_of(ms))
        assert bucket_of(middle) == bucket_of(ms)
        assert ms / 1.5 <= middle <= ms * 1.5
    assert bucket_of(-5) == 0
    assert quantile({}, 0.5) is None
    assert quantile({2: 98, 20: 2}, 0.5) == time_of(2)
    assert quantile({2: 98, 20: 2}, 0.99) == time_of(20)
