"""Handles: opened, shared, closed and opened again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure import Closed, InvalidInput, Lease, NewJob, Queue
from tenure.testing import ManualClock
from tests.conformance.conftest import OpenQueue
from tests.conformance.moves import BIG, fill, ids, make_cancelled, make_dead, make_done, take
from tests.conformance.state import dump

pytestmark = pytest.mark.over_http

CALLS: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda queue: queue.enqueue("q"),
    "enqueue_many": lambda queue: queue.enqueue_many([NewJob(queue="q")]),
    "claim": lambda queue: queue.claim("q"),
    "ack": lambda queue: queue.ack(Lease("a", 1)),
    "get": lambda queue: queue.get("a"),
    "jobs": lambda queue: queue.jobs(),
    "stats": lambda queue: queue.stats(),
    "cancel": lambda queue: queue.cancel(queue="q"),
    "set_limit": lambda queue: queue.limits.set("q", concurrency=1),
    "take_slot": lambda queue: queue.slots.take("scope", "key", "holder", 1),
    "schedules": lambda queue: queue.schedules.list(),
    "maintain": lambda queue: queue.maintain(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_closed_handle_does_nothing(queue: Queue, call: Callable[[Queue], object]) -> None:
    queue.enqueue("q", id="a")
    queue.close()
    with pytest.raises(Closed):
        call(queue)


def test_a_handle_may_be_closed_twice(queue: Queue) -> None:
    queue.close()
    queue.close()


def test_a_handle_that_was_never_used_may_be_closed(open_queue: OpenQueue) -> None:
    open_queue().close()


def test_a_handle_closes_itself_after_a_with(queue: Queue) -> None:
    with queue as same:
        assert same is queue
        queue.enqueue("q")
    with pytest.raises(Closed):
        queue.stats()


def test_a_handle_says_where_it_leads(queue: Queue) -> None:
    assert repr(queue) == f"<tenure.Queue {queue.settings.url}>"
    queue.close()
    assert repr(queue) == f"<tenure.Queue {queue.settings.url} closed>"


@pytest.mark.parametrize("url", ["", "nothing", "mysql://host/db", "jobs.db", "://"])
def test_a_url_of_no_engine_is_refused(url: str, clock: ManualClock) -> None:
    with pytest.raises(InvalidInput, match="url"):
        tenure.connect(url, clock=clock)


# Durability -------------------------------------------------------------------------------------


def everything(queue: Queue, clock: ManualClock) -> None:
    """Some of all there is."""
    make_done(queue, "done", payload=BIG, tenant="acme")
    make_dead(queue, "dead", payload="x" * 2_000, group="g")
    make_cancelled(queue, "cancelled", unique_key="k")
    queue.enqueue("q", BIG, id="leased", unique_key="k", timeout=5, backoff=tenure.fixed(9))
    queue.progress(take(queue, worker="w1", lease=60), 50, "halfway")
    queue.enqueue("q", id="ready", priority=-5, expires_in=3600)
    queue.enqueue("q", id="delayed", delay=60)
    queue.enqueue("q", id="waiting", after=["delayed", "dead"], if_parent_fails="run")
    queue.limits.set("q", concurrency=5, rate=10, per=60)
    queue.limits.set("q", tenant="*", weight=2, concurrency=4)
    queue.pause("q", tenant="bolt")
    queue.schedules.put("nightly", "0 3 * * *", NewJob(queue="q", payload=BIG))
    queue.slots.take("scope", "key", "holder", 600)


@pytest.mark.usefixtures("needs_durability")
@pytest.mark.queue_limit
def test_all_that_was_answered_outlives_the_handle(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue()
    everything(queue, clock)
    before = dump(queue)
    queue.close()
    assert dump(open_queue()) == before


@pytest.mark.usefixtures("needs_durability")
@pytest.mark.queue_limit
def test_all_that_was_answered_is_seen_by_other_handles(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    one, other = open_queue(), open_queue()
    everything(one, clock)
    assert dump(other) == dump(one)
    other.cancel("ready")
    other.limits.set("q", concurrency=2)
    assert dump(other) == dump(one)


@pytest.mark.usefixtures("needs_durability")
def test_a_job_that_was_leased_through_one_handle_is_finished_through_another(
    open_queue: OpenQueue,
) -> None:
    queue = open_queue()
    queue.enqueue("q", id="a")
    job = take(queue)
    queue.close()
    again = open_queue()
    assert again.claim("q") == []
    again.ack(job, "fine")
    assert again.get("a").result == "fine"


@pytest.mark.usefixtures("needs_durability")
def test_handles_that_claim_by_turns_share_nothing(open_queue: OpenQueue) -> None:
    handles = [open_queue() for _ in range(3)]
    expected = fill(handles[0], 12)
    given: list[str] = []
    for n in range(12):
        given += ids(handles[n % 3].claim("q"))
    assert given == expected


@pytest.mark.usefixtures("needs_durability")
def test_a_new_handle_adds_to_several_groups_at_once(open_queue: OpenQueue) -> None:
    jobs = [NewJob(queue="q", group=group) for group in "abc"]
    for _ in range(2):
        assert len(open_queue().enqueue_many(jobs)) == 3
    assert open_queue().stats("q").ready == 6


@pytest.mark.usefixtures("needs_durability")
def test_tokens_go_on_growing_after_a_restart(open_queue: OpenQueue, clock: ManualClock) -> None:
    tokens = []
    for _ in range(4):
        queue = open_queue()
        queue.enqueue("q", id="a", max_attempts=9, if_exists="skip")
        tokens.append(take(queue, lease=1).token)
        clock.advance(1)
        queue.close()
    assert tokens == sorted(set(tokens))


@pytest.mark.usefixtures("needs_durability", "needs_strict_turns")
def test_turns_and_order_go_on_after_a_restart(open_queue: OpenQueue) -> None:
    queue = open_queue()
    for tenant in "abc":
        fill(queue, 3, prefix=tenant, tenant=tenant)
    given = ids(queue.claim("q", limit=4))
    queue.close()
    again = open_queue()
    fill(again, 1, prefix="late", tenant="b")
    given += ids(again.claim("q", limit=10))
    expected: list[Any] = ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2", "late0"]
    assert given == expected
