"""Many queue names: maintenance visits only what is due, in bounded steps, and forgets the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tenure import Queue, QueueNotFound
from tenure.core import upkeep
from tenure.model.ops import FORGET_MS, Maintain, Maintained
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.conformance.moves import make_done, take
from tests.conformance.state import all_jobs
from tests.support.sizes import let

HOUR = FORGET_MS / 1000
FOREVER: dict[str, Any] = {"keep_done": None, "keep_cancelled": None, "keep_dead": None}


@pytest.fixture
def visited(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """The queues that maintenance sweeps, in order."""
    if request.node.callspec.params["backend"] == "memory":
        pytest.skip("the model looks through everything")
    names: list[str] = []
    sweep: Callable[..., upkeep.Swept] = upkeep.sweep

    def counted(tx: Any, queue: str, most: upkeep.Swept) -> upkeep.Swept:
        names.append(queue)
        return sweep(tx, queue, most)

    monkeypatch.setattr(upkeep, "sweep", counted)
    return names


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, queues_of_a_step_of_upkeep=2)


def test_only_queues_with_something_due_are_visited(
    queue: Queue, clock: ManualClock, visited: list[str]
) -> None:
    for n in range(20):
        queue.enqueue(f"ready-{n:02}")
        queue.enqueue(f"later-{n:02}", delay=1_000, expires_in=2_000)
    queue.enqueue("done", id="done")
    queue.ack(take(queue, "done"))
    queue.enqueue("leased", id="leased")
    take(queue, "leased", lease=10)
    queue.enqueue("delayed", delay=10)
    queue.enqueue("expiring", expires_in=10)
    assert queue.maintain() == Maintained()
    assert visited == []
    clock.advance(10)
    assert queue.maintain() == Maintained(promoted=1, leases=1, expired=1)
    assert set(visited) == {"delayed", "expiring", "leased"}
    visited.clear()
    clock.advance(7 * 86_400 - 10)
    queue.delete("leased")
    assert queue.maintain().purged == 1
    assert "done" in visited
    assert not any(name.startswith("ready") for name in visited)


def test_a_step_looks_at_a_bounded_number_of_queues(
    queue: Queue, apply: Apply, clock: ManualClock, two_at_a_time: None
) -> None:
    for name in "abcde":
        queue.enqueue(name, delay=10)
    clock.advance(10)
    after: str | None = ""
    steps = []
    while after is not None:
        (found,) = apply(Maintain(after=after))
        assert isinstance(found, Maintained)
        steps.append((found.promoted, found.after))
        after = found.after
    assert steps == [(2, "b"), (2, "d"), (1, None)]


def test_a_step_ends_after_as_many_jobs_as_its_limit(
    queue: Queue, apply: Apply, clock: ManualClock
) -> None:
    for name in "abc":
        for _ in range(3):
            queue.enqueue(name, delay=10)
    clock.advance(10)
    assert apply(Maintain(2)) == [Maintained(promoted=2, after="a")]
    assert apply(Maintain(4, after="a")) == [Maintained(promoted=6, after="c")]
    assert apply(Maintain(4, after="c")) == [Maintained()]
    assert apply(Maintain(4)) == [Maintained(promoted=1)]


def test_a_call_takes_as_many_steps_as_it_needs(
    queue: Queue, clock: ManualClock, two_at_a_time: None
) -> None:
    for name in "abcde":
        queue.enqueue(name, delay=10)
        queue.enqueue(name, expires_in=10)
    clock.advance(10)
    assert queue.maintain(limit=3) == Maintained(promoted=5, expired=5)
    assert queue.maintain(limit=3) == Maintained()


# Forgetting -------------------------------------------------------------------------------------


def names_of(queue: Queue) -> list[str]:
    return sorted(queue.stats().queues)


def test_an_empty_queue_is_forgotten_after_an_hour(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", tenant="acme", group="g")
    queue.ack(take(queue), keep=False)
    queue.enqueue("kept")
    queue.maintain()
    clock.advance(HOUR - 0.001)
    queue.maintain()
    assert names_of(queue) == ["kept", "q"]
    clock.advance(0.001)
    queue.maintain()
    assert names_of(queue) == ["kept"]
    with pytest.raises(QueueNotFound):
        queue.stats("q")


def test_a_forgotten_queue_may_be_used_again(queue: Queue, clock: ManualClock) -> None:
    for _ in range(3):
        queue.enqueue("q", id="a", tenant="acme", group="g", unique_key="k")
        assert take(queue).tenant == "acme"
        assert queue.stats("q").queues["q"].leased == 1
        queue.delete("a")
        queue.maintain()
        clock.advance(HOUR)
        queue.maintain()
        assert names_of(queue) == []
        assert queue.claim("q") == []


def test_the_hour_begins_when_the_last_job_is_gone(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(keep_done=HOUR)
    queue.enqueue("other", delay=1e6)
    make_done(queue, "a")
    queue.maintain()
    clock.advance(HOUR)
    assert queue.maintain().purged == 1
    clock.advance(HOUR - 1)
    queue.maintain()
    assert names_of(queue) == ["other", "q"]
    queue.enqueue("q", id="a")  # used in between
    queue.delete("a")
    clock.advance(1)
    queue.maintain()
    clock.advance(HOUR - 1)
    queue.maintain()
    assert names_of(queue) == ["other", "q"]
    clock.advance(1)
    queue.maintain()
    assert names_of(queue) == ["other"]


@pytest.mark.parametrize("state", ["waiting", "delayed", "ready", "leased", "done", "dead"])
def test_a_queue_with_a_job_in_any_state_is_kept(
    open_queue: OpenQueue, clock: ManualClock, state: str
) -> None:
    queue = open_queue(**FOREVER)
    queue.enqueue("other", id="parent", delay=1e6)
    if state == "waiting":
        queue.enqueue("q", after=["parent"])
    elif state == "delayed":
        queue.enqueue("q", delay=1e6)
    else:
        queue.enqueue("q")
    if state in ("leased", "done", "dead"):
        job = take(queue, lease=1e6)
        if state == "done":
            queue.ack(job)
        elif state == "dead":
            queue.fail(job, fatal=True)
    for _ in range(3):
        queue.maintain()
        clock.advance(HOUR)
    assert names_of(queue) == ["other", "q"]
    assert [job.queue for job in all_jobs(queue)] == ["q", "other"]


@pytest.mark.queue_limit
def test_a_queue_with_a_limit_or_a_pause_is_kept(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("limited", concurrency=3)
    queue.limits.set("shared", tenant="acme", weight=3)
    queue.pause("paused")
    queue.pause("resumed")
    queue.maintain()
    clock.advance(HOUR / 2)
    queue.resume("resumed")
    for _ in range(3):
        queue.maintain()
        clock.advance(HOUR / 2)
    queue.maintain()
    assert names_of(queue) == ["limited", "paused", "shared"]
    queue.limits.clear("limited")
    queue.maintain()
    clock.advance(HOUR)
    queue.maintain()
    assert names_of(queue) == ["paused", "shared"]
    assert [limit.queue for limit in queue.limits.list()] == ["paused", "shared"]


def test_a_pause_in_between_counts_as_use(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    queue.delete("a")
    queue.maintain()
    clock.advance(HOUR / 2)
    queue.pause("q")
    queue.resume("q")
    queue.maintain()
    clock.advance(HOUR / 2)
    queue.maintain()
    assert names_of(queue) == ["q"]
    clock.advance(HOUR / 2)
    queue.maintain()
    assert names_of(queue) == []


def test_many_empty_queues_are_forgotten_in_steps(
    queue: Queue, clock: ManualClock, two_at_a_time: None
) -> None:
    for name in "abcde":
        for tenant in ("", "acme"):
            queue.enqueue(name, id=f"{name}{tenant}", tenant=tenant)
    queue.delete([job.id for job in all_jobs(queue)])
    queue.maintain(limit=1)
    assert names_of(queue) == list("abcde")
    clock.advance(HOUR)
    queue.maintain(limit=1)
    assert names_of(queue) == []
    queue.enqueue("c")
    assert names_of(queue) == ["c"]
