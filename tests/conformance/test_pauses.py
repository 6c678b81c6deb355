"""Pauses: a queue, a tenant or a group that gives out nothing for a while."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from tenure import InvalidInput, Queue, QueueNotFound, State
from tenure.testing import ManualClock
from tests.conformance.moves import fill, grab, ids
from tests.conformance.state import nothing_changes

PAUSES: list[dict[str, Any]] = [
    {},
    {"tenant": "acme"},
    {"tenant": "acme", "group": "g"},
    {"group": "g"},
]
pauses = pytest.mark.parametrize("scope", PAUSES, ids=str)


@pauses
def test_what_is_paused_gives_nothing(queue: Queue, scope: dict[str, Any]) -> None:
    fill(queue, 3, tenant="acme", group="g")
    queue.pause("q", **scope)
    assert grab(queue) == []
    assert queue.claim("q", tenant="acme") == []
    fill(queue, 3, prefix="more", tenant="acme", group="g")
    assert grab(queue) == []
    queue.resume("q", **scope)
    assert len(grab(queue)) == 6
    assert queue.limits.list() == []


@pauses
def test_a_pause_may_come_before_the_first_job(queue: Queue, scope: dict[str, Any]) -> None:
    queue.pause("q", **scope)
    fill(queue, 3, tenant="acme", group="g")
    assert grab(queue) == []


@pauses
def test_a_leased_job_may_be_finished_in_a_pause(queue: Queue, scope: dict[str, Any]) -> None:
    fill(queue, 2, tenant="acme", group="g")
    first, second = grab(queue)
    queue.pause("q", **scope)
    queue.extend(first)
    queue.ack(first)
    queue.release(second)
    assert grab(queue) == []
    assert queue.get(first.id).state is State.DONE


@pauses
def test_a_delayed_job_stays_in_a_pause(
    queue: Queue, clock: ManualClock, scope: dict[str, Any]
) -> None:
    queue.enqueue("q", tenant="acme", group="g", delay=5)
    queue.pause("q", **scope)
    clock.advance(5)
    assert grab(queue) == []
    queue.maintain()
    assert grab(queue) == []
    queue.resume("q", **scope)
    assert len(grab(queue)) == 1


def test_a_paused_queue_holds_no_other_back(queue: Queue) -> None:
    fill(queue, 2)
    fill(queue, 2, name="r", prefix="r")
    queue.pause("q")
    assert ids(queue.claim(["q", "r"], limit=5)) == ["r0", "r1"]


def test_a_paused_tenant_holds_no_other_back(queue: Queue) -> None:
    for tenant in ("acme", "bolt"):
        fill(queue, 2, prefix=tenant, tenant=tenant)
    queue.pause("q", tenant="acme")
    assert ids(grab(queue)) == ["bolt0", "bolt1"]


def test_a_paused_group_holds_no_other_back(queue: Queue) -> None:
    for tenant in ("acme", "bolt"):
        for group in ("", "g", "h"):
            queue.enqueue("q", id=f"{tenant}.{group}", tenant=tenant, group=group)
    queue.pause("q", tenant="acme", group="g")
    queue.pause("q", group="h")
    assert sorted(ids(grab(queue))) == ["acme.", "bolt.", "bolt.g"]
    queue.resume("q", group="h")
    assert sorted(ids(grab(queue))) == ["acme.h", "bolt.h"]


def test_a_pause_comes_before_the_limit_of_its_own(queue: Queue) -> None:
    fill(queue, 5, tenant="acme", group="g")
    queue.limits.set("q", tenant="acme", group="g", concurrency=2)
    queue.pause("q", group="g")
    assert grab(queue) == []
    queue.resume("q", group="g")
    assert len(grab(queue)) == 2


@pytest.mark.parametrize(
    "scope", [pytest.param({}, marks=pytest.mark.queue_limit), *PAUSES[1:]], ids=str
)
def test_a_limit_outlives_a_pause_and_a_pause_a_limit(queue: Queue, scope: dict[str, Any]) -> None:
    fill(queue, 5, tenant="acme", group="g")
    queue.limits.set("q", **scope, concurrency=2)
    queue.pause("q", **scope)
    (limit,) = queue.limits.list()
    assert (limit.concurrency, limit.paused) == (2, True)
    queue.resume("q", **scope)
    assert len(grab(queue)) == 2
    queue.pause("q", **scope)
    queue.limits.clear("q", **scope)
    assert grab(queue) == []
    queue.resume("q", **scope)
    assert len(grab(queue)) == 3


@pauses
def test_pausing_and_resuming_twice_is_once(queue: Queue, scope: dict[str, Any]) -> None:
    fill(queue, 2, tenant="acme", group="g")
    queue.pause("q", **scope)
    queue.pause("q", **scope)
    queue.resume("q", **scope)
    assert len(queue.claim("q")) == 1
    queue.resume("q", **scope)
    assert len(queue.claim("q")) == 1


def test_stats_say_that_a_queue_is_paused(queue: Queue) -> None:
    queue.enqueue("r")
    queue.pause("q")
    assert {name: one.paused for name, one in queue.stats().queues.items()} == {
        "q": True,
        "r": False,
    }


@pytest.mark.parametrize("scope", [{"tenant": "*"}, {"group": "*"}, {"tenant": "a", "group": "*"}])
@pytest.mark.parametrize("act", ["pause", "resume"])
def test_a_default_cannot_be_paused(queue: Queue, act: str, scope: dict[str, Any]) -> None:
    queue.enqueue("q")
    with nothing_changes(queue), pytest.raises(InvalidInput):
        getattr(queue, act)("q", **scope)


@pauses
def test_an_unknown_queue_cannot_be_resumed(queue: Queue, scope: dict[str, Any]) -> None:
    with nothing_changes(queue), pytest.raises(QueueNotFound) as caught:
        queue.resume("nowhere", **scope)
    assert caught.value.queue == "nowhere"


@pytest.mark.parametrize("act", ["resume", "limits.clear"])
def test_a_tenant_without_jobs_can_be_resumed_and_its_limit_cleared(queue: Queue, act: str) -> None:
    """Wherever the jobs of the queue are stored."""
    queue.enqueue("q", tenant="acme")
    for tenant in (f"t{n}" for n in range(6)):
        attrgetter(act)(queue)("q", tenant=tenant)
        attrgetter(act)(queue)("q", tenant=tenant, group="g")
