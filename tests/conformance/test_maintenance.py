"""Maintenance: what time asks for, retention, and recounting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure import InvalidInput, Queue, QueueNotFound, State
from tenure.model.ops import Maintain, Maintained
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.conformance.moves import (
    BIG,
    fill,
    ids,
    make_cancelled,
    make_dead,
    make_done,
    state_of,
    take,
)
from tests.conformance.state import all_jobs, nothing_changes

DAY = 86_400


def test_there_is_nothing_to_do_at_first(queue: Queue) -> None:
    assert queue.maintain() == Maintained()
    queue.enqueue("q")
    queue.enqueue("q", delay=60)
    take(queue)
    with nothing_changes(queue):
        assert queue.maintain().total == 0


def test_every_kind_of_work_is_counted(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 1, prefix="old")
    queue.ack(take(queue))
    clock.advance(7 * DAY - 10)
    fill(queue, 2, prefix="lease")
    queue.claim("q", limit=2, lease=10)
    fill(queue, 3, prefix="due", delay=10)
    fill(queue, 4, prefix="late", expires_in=10)
    for n in range(5):
        queue.slots.take("scope", "key", str(n), 10)
    clock.advance(10)
    found = queue.maintain()
    assert found == Maintained(promoted=3, leases=2, expired=4, slots=5, purged=1)
    assert found.total == 15
    assert queue.maintain().total == 0


def test_a_job_whose_time_has_come_is_ready(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", delay=10)
    clock.advance(10)
    queue.maintain()
    assert (queue.stats().ready, queue.stats().delayed) == (1, 0)
    assert queue.tenants("q")[0].ready == 1


def test_a_lease_that_ran_out_is_taken_back(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    queue.enqueue("q", id="b", max_attempts=1)
    queue.claim("q", limit=2, lease=10)
    clock.advance(10)
    assert queue.maintain().leases == 2
    assert state_of(queue, "a") is State.PENDING
    assert state_of(queue, "b") is State.DEAD


def test_every_queue_is_looked_after_paused_or_not(queue: Queue, clock: ManualClock) -> None:
    for name in ("q", "r", "s"):
        queue.enqueue(name, delay=10)
    queue.pause("r")
    clock.advance(10)
    assert queue.maintain().promoted == 3


def test_the_work_of_one_call_is_bounded(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 25, delay=10)
    clock.advance(10)
    assert [queue.maintain(limit=10).promoted for _ in range(4)] == [10, 10, 5, 0]
    queue.claim("q", limit=25, lease=10)
    clock.advance(10)
    assert [queue.maintain(limit=10).leases for _ in range(4)] == [10, 10, 5, 0]


def test_what_is_due_first_is_looked_after_first(queue: Queue, clock: ManualClock) -> None:
    for n in (3, 1, 2):
        queue.enqueue("q", id=str(n), max_attempts=1)
        take(queue, lease=n)
    clock.advance(10)
    for n in (1, 2, 3):
        queue.maintain(limit=1)
        assert sorted(ids(all_jobs(queue, state="dead"))) == [str(m) for m in range(1, n + 1)]


@pytest.mark.parametrize("limit", [0, -1, 100_001, 1.5, True, "10"])
def test_a_bound_that_cannot_be_is_refused(queue: Queue, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        queue.maintain(limit=limit)


# Retention --------------------------------------------------------------------------------------


def test_finished_jobs_are_kept_as_long_as_the_settings_say(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_done=10, keep_cancelled=20, keep_dead=30)
    make_done(queue, "done", payload=BIG)
    make_cancelled(queue, "cancelled")
    make_dead(queue, "dead")
    queue.enqueue("q", id="open")
    left = [["open", "dead", "cancelled"], ["open", "dead"], ["open"]]
    for expected in left:
        clock.advance(9.999)
        assert queue.maintain().purged == 0
        clock.advance(0.001)
        assert queue.maintain().purged == 1
        assert ids(all_jobs(queue)) == expected


def test_done_and_cancelled_jobs_are_kept_a_week_and_dead_ones_a_month(
    queue: Queue, clock: ManualClock
) -> None:
    make_done(queue, "done")
    make_cancelled(queue, "cancelled")
    make_dead(queue, "dead")
    clock.advance(7 * DAY - 1)
    assert queue.maintain().purged == 0
    clock.advance(1)
    assert queue.maintain().purged == 2
    clock.advance(23 * DAY - 1)
    assert queue.maintain().purged == 0
    clock.advance(1)
    assert queue.maintain().purged == 1


def test_finished_jobs_may_be_kept_for_good(open_queue: OpenQueue, clock: ManualClock) -> None:
    queue = open_queue(keep_done=None, keep_cancelled=None, keep_dead=None)
    make_done(queue, "done")
    make_cancelled(queue, "cancelled")
    make_dead(queue, "dead")
    clock.advance(1_000 * DAY)
    assert queue.maintain().purged == 0
    assert len(all_jobs(queue)) == 3


def test_the_oldest_are_purged_first_and_as_many_as_the_bound_says(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_done=1, keep_cancelled=1)
    for n in range(5):
        make_done(queue, str(n))
        make_cancelled(queue, f"x{n}")
        clock.advance(1)
    clock.advance(10)
    assert [queue.maintain(limit=2).purged for _ in range(4)] == [4, 4, 2, 0]


def test_a_job_that_was_purged_may_be_enqueued_again(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_done=0)
    make_done(queue, "a", unique_key="k")
    queue.maintain()
    assert queue.enqueue("q", id="a", unique_key="k").state is State.PENDING


def test_the_children_of_a_purged_job_are_told(open_queue: OpenQueue, clock: ManualClock) -> None:
    queue = open_queue(keep_dead=10)
    make_dead(queue, "parent")
    queue.enqueue("q", id="child", after=["parent"])
    queue.enqueue("q", id="grandchild", after=["child"], if_parent_fails="cancel")
    clock.advance(10)
    assert queue.maintain().purged == 1
    assert state_of(queue, "child") is State.DEAD
    assert state_of(queue, "grandchild") is State.CANCELLED


def test_a_child_hears_of_its_dead_parent_before_it_expires_itself(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="parent", max_attempts=1)
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails="cancel", expires_in=10)
    take(queue, lease=10)
    clock.advance(10)
    assert queue.maintain() == Maintained(leases=1)
    assert state_of(queue, "child") is State.CANCELLED


def test_the_children_of_an_expired_job_are_told_where_nothing_is_purged(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_done=None, keep_cancelled=None, keep_dead=None)
    queue.enqueue("q", id="parent", expires_in=10)
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails="cancel")
    clock.advance(10)
    assert queue.maintain() == Maintained(expired=1)
    assert state_of(queue, "child") is State.CANCELLED


@pytest.mark.parametrize(("parent", "child", "purged"), [("a", "b", 3), ("b", "a", 2)])
@pytest.mark.parametrize("first", ["a", "b"])
def test_queues_are_looked_after_in_the_order_of_their_names(
    open_queue: OpenQueue, first: str, parent: str, child: str, purged: int
) -> None:
    queue = open_queue(keep_dead=0)
    queue.enqueue(first, id="early")
    queue.cancel("early")
    make_dead(queue, "parent", parent)
    make_dead(queue, "other", child)
    queue.enqueue(child, id="child", after=["parent"])
    assert queue.maintain().purged == purged
    assert queue.maintain().purged == 3 - purged


@pytest.mark.parametrize("make", [make_done, make_cancelled, make_dead])
def test_a_queue_that_had_nothing_due_at_first_is_left_to_the_next_call(
    open_queue: OpenQueue, make: Callable[..., object]
) -> None:
    queue = open_queue(keep_done=0, keep_cancelled=0, keep_dead=0)
    make(queue, "old", "a")
    make_dead(queue, "parent", "a")
    queue.enqueue("b", id="child", after=["parent"])
    assert [queue.maintain().purged for _ in range(3)] == [2, 1, 0]


def test_a_tenant_without_jobs_is_forgotten_but_not_its_limit(
    open_queue: OpenQueue,
) -> None:
    queue = open_queue(keep_done=0)
    queue.limits.set("q", tenant="acme", concurrency=1)
    make_done(queue, "a", tenant="acme", group="g")
    queue.maintain()
    assert queue.tenants("q") == []
    assert queue.groups("q", tenant="acme") == []
    fill(queue, 3, tenant="acme", group="g")
    assert len(queue.claim("q", limit=3)) == 1


def test_maintenance_says_what_to_keep_by_itself(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    make_done(queue, "a")
    make_dead(queue, "b")
    (answer,) = apply(Maintain(keep_done_ms=0))
    assert answer == Maintained(purged=1)
    assert ids(all_jobs(queue)) == ["b"]


# Recounting -------------------------------------------------------------------------------------


def test_a_recount_finds_what_was_counted(queue: Queue, clock: ManualClock) -> None:
    for tenant in ("", "acme"):
        for group in ("", "g"):
            fill(queue, 6, prefix=f"{tenant}{group}", tenant=tenant, group=group)
    queue.enqueue("q", after=["acme0"], delay=5, tenant="acme")
    jobs = queue.claim("q", limit=12)
    queue.ack_many(jobs[:3])
    queue.fail_many(jobs[3:5], fatal=True)
    queue.fail_many(jobs[5:7])
    queue.cancel(jobs[7])
    queue.delete(jobs[8])
    with nothing_changes(queue):
        assert queue.reconcile("q") == {}
        assert queue.reconcile("q", tenant="acme") == {}
        assert queue.reconcile("q", tenant="acme", group="g") == {}
        assert queue.reconcile("q", tenant="nobody") == {}


def test_a_queue_without_jobs_can_be_recounted(queue: Queue) -> None:
    queue.limits.set("q", tenant="acme", concurrency=1)
    assert queue.reconcile("q") == {}


def test_an_unknown_queue_cannot_be_recounted(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(QueueNotFound):
        queue.reconcile("nowhere")
