"""Rates: how many jobs of a queue are claimed in a time, by a bucket that all workers share."""

from __future__ import annotations

import pytest

from tenure import Queue
from tenure.features.why import data as why
from tenure.testing import ManualClock
from tests.conformance.conftest import OpenQueue
from tests.conformance.moves import fill, grab, make_done, take

pytestmark = pytest.mark.queue_limit


def test_a_queue_gives_no_faster_than_its_rate(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 50)
    queue.limits.set("q", rate=10, per=60)
    assert len(grab(queue)) == 10
    clock.advance(5.999)
    assert grab(queue) == []
    clock.advance(0.001)
    assert len(grab(queue)) == 1
    clock.advance(12)
    assert len(grab(queue)) == 2


def test_a_rate_gives_no_more_after_a_rest(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 50)
    queue.limits.set("q", rate=10, per=60)
    grab(queue)
    clock.advance(86_400)
    assert len(grab(queue)) == 10


def test_parts_of_a_claim_add_up(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 50)
    queue.limits.set("q", rate=3, per=1)
    assert len(grab(queue)) == 3
    given = 0
    for _ in range(1_000):
        clock.advance(0.007)
        given += len(queue.claim("q", limit=10))
    assert given == 21


def test_a_claim_that_finds_nothing_costs_nothing(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("q", rate=2, per=60)
    queue.enqueue("q", group="g")
    for _ in range(5):
        assert queue.claim("q", not_groups=["g"]) == []
    fill(queue, 5)
    assert len(grab(queue)) == 2


def test_every_claim_counts_whatever_becomes_of_it(queue: Queue) -> None:
    queue.enqueue("q")
    queue.limits.set("q", rate=3, per=60)
    for _ in range(3):
        queue.release(take(queue))
    assert queue.claim("q") == []


def test_a_rate_is_shared_by_all_tenants(queue: Queue) -> None:
    queue.limits.set("q", rate=4, per=60)
    for tenant in ("acme", "bolt"):
        fill(queue, 5, prefix=tenant, tenant=tenant)
    assert len(queue.claim("q", tenant="acme", limit=3)) == 3
    assert len(grab(queue)) == 1


@pytest.mark.usefixtures("needs_durability")
def test_a_rate_is_shared_by_all_handles(open_queue: OpenQueue) -> None:
    one, other = open_queue(), open_queue()
    one.limits.set("q", rate=4, per=60)
    fill(one, 10)
    assert len(one.claim("q", limit=3)) == 3
    assert len(other.claim("q", limit=3)) == 1
    assert one.claim("q") == []


def test_a_rate_and_a_concurrency_both_count(queue: Queue) -> None:
    fill(queue, 9)
    queue.limits.set("q", rate=3, per=60, concurrency=2)
    jobs = grab(queue)
    assert len(jobs) == 2
    queue.ack_many(jobs)
    assert len(grab(queue)) == 1


def test_a_cleared_rate_is_none(queue: Queue) -> None:
    fill(queue, 9)
    queue.limits.set("q", rate=1, per=60)
    assert len(grab(queue)) == 1
    queue.limits.clear("q")
    assert len(grab(queue)) == 8


def test_a_new_rate_counts_from_now(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 50)
    queue.limits.set("q", rate=1, per=3600)
    grab(queue)
    queue.limits.set("q", rate=5, per=1)
    assert len(grab(queue)) == 5
    queue.limits.set("q", rate=2, per=10)
    assert len(grab(queue)) == 2
    clock.advance(5)
    assert len(grab(queue)) == 1


def test_a_rate_counts_no_time_twice_when_the_clock_is_set_back(
    queue: Queue, clock: ManualClock
) -> None:
    fill(queue, 100)
    queue.limits.set("q", rate=10, per=60)
    assert len(grab(queue)) == 10
    for _ in range(5):
        clock.advance(-600)
        assert grab(queue) == []
        clock.advance(600)
        assert grab(queue) == []
    clock.advance(6)
    assert len(grab(queue)) == 1


def test_what_is_claimed_while_the_clock_is_set_back_makes_no_time_count_twice(
    queue: Queue, clock: ManualClock
) -> None:
    fill(queue, 50)
    queue.limits.set("q", rate=10, per=60)
    assert len(queue.claim("q", limit=5)) == 5
    clock.advance(-600)
    assert len(queue.claim("q", limit=2)) == 2
    clock.advance(600)
    assert len(grab(queue)) == 3


def test_a_rate_goes_on_when_a_clock_that_was_set_back_has_caught_up(
    queue: Queue, clock: ManualClock
) -> None:
    fill(queue, 50)
    queue.limits.set("q", rate=2, per=60)
    assert len(grab(queue, lease=3600)) == 2
    clock.advance(-600)
    reasons = queue.explain("2").reasons
    next_at = clock.now_ms() + 630_000
    assert [one.next_at for one in reasons if isinstance(one, why.RateLimited)] == [next_at]
    assert queue.next_due("q") == next_at
    clock.advance(629.999)
    assert grab(queue) == []
    clock.advance(0.001)
    assert len(grab(queue)) == 1


def test_a_new_rate_counts_from_a_clock_that_was_set_back(queue: Queue, clock: ManualClock) -> None:
    """It is the way out if a clock was far ahead for a moment."""
    fill(queue, 50)
    queue.limits.set("q", rate=2, per=60)
    grab(queue)
    clock.advance(-86_400)
    queue.limits.set("q", rate=3, per=60)
    assert len(grab(queue)) == 3
    clock.advance(20)
    assert len(grab(queue)) == 1


def test_what_is_due_next_includes_a_rate_that_ready_jobs_wait_for(
    queue: Queue, clock: ManualClock
) -> None:
    queue.limits.set("q", rate=2, per=60)
    assert queue.next_due("q") is None
    fill(queue, 3)
    assert queue.next_due("q") is None  # a claim now may take one
    jobs = queue.claim("q", limit=2, lease=3600)
    assert queue.next_due("q") == clock.now_ms() + 30_000
    clock.advance(30)
    assert queue.next_due("q") == jobs[0].lease_until
    queue.claim("q", lease=3600)
    assert queue.next_due("q") == jobs[0].lease_until  # nothing is ready any more


def test_a_rate_of_a_queue_without_jobs_is_kept(queue: Queue, clock: ManualClock) -> None:
    make_done(queue, "old")
    queue.limits.set("q", rate=1, per=60)
    clock.advance(3600)
    fill(queue, 3)
    assert len(grab(queue)) == 1


def test_setting_the_same_rate_again_gives_no_more(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 9)
    for _ in range(3):
        queue.limits.set("q", rate=2, per=3600)
        grab(queue)
    assert queue.stats("q").leased == 2
    queue.limits.set("q", rate=3, per=3600)
    assert len(grab(queue)) == 3
