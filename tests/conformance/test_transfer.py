"""Jobs that are taken out of one store and put into another are the same jobs there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tenure import (
    DependencyNotFound,
    Duplicate,
    InvalidInput,
    Lease,
    LeaseLost,
    NewJob,
    Queue,
    Settings,
    State,
)
from tenure.engines.memory import MemoryEngine
from tenure.model import ops, queries
from tenure.model.job import IfParentFails
from tenure.model.ops import Entry
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import BIG, drain, ids, make_cancelled, make_dead, make_done, take
from tests.conformance.state import as_dict, dump

pytestmark = pytest.mark.usefixtures("needs_transfer")


@pytest.fixture
def other(clock: ManualClock) -> Iterator[Queue]:
    """Another store, in memory: the model."""
    with Queue(MemoryEngine(clock), Settings(), clock) as queue:
        yield queue


def exported(queue: Queue, limit: int = 1000) -> list[Entry]:
    """Every job of a store, page by page."""
    entries: list[Entry] = []
    cursor = None
    while True:
        page = store_of(queue).do(queries.Export(limit, cursor))
        entries += page.entries
        cursor = page.cursor
        if len(page.entries) < limit:
            return entries


def put(queue: Queue, *entries: Entry) -> ops.Answer:
    (answer,) = store_of(queue).do([ops.Import(entries)])
    return answer  # type: ignore[no-any-return]


def fill(queue: Queue, clock: ManualClock) -> None:
    """Jobs in every state, with everything that a job can have."""
    make_done(queue, "done", tenant="acme")
    make_dead(queue, "dead", group="g", max_attempts=7)
    make_cancelled(queue, "cancelled", kind="mail")
    queue.enqueue("q", BIG, id="failed", max_attempts=5, timeout=3)
    queue.fail(take(queue), ValueError("once"), retry_in=60)
    queue.enqueue("q", id="leased", unique_key="k")
    queue.progress(take(queue, lease=30, worker="w"), 40, "nearly")
    queue.enqueue("q", id="due soon", delay=0.5)
    queue.enqueue("q", id="ready", priority=-3, expires_in=300, unique_key="k2")
    queue.enqueue("web", id="ready too", tenant="acme", group="g")
    queue.enqueue("q", id="waits", after=["ready", "done", "dead"], if_parent_fails="run")
    queue.enqueue("q", id="waits long", after=["dead", "ready"])
    queue.enqueue_many(
        [NewJob(queue="q", id="child first", after=["parent"]), NewJob(queue="q", id="parent")]
    )
    clock.advance(1)  # past a delay that nobody has looked at yet


def test_every_state_comes_out_of_a_store_as_it_is(
    queue: Queue, other: Queue, clock: ManualClock
) -> None:
    fill(queue, clock)
    fill(other, clock)
    for pages in (1, 3, 1000):
        entries = exported(queue, pages)
        assert [entry.job.id for entry in entries] == [job.id for job in queue.jobs().jobs[::-1]]
        assert [as_dict(entry.job) for entry in entries] == [
            as_dict(queue.get(entry.job.id)) for entry in entries
        ]
        theirs = exported(other)
        assert [(e.ready, e.waits_for) for e in entries] == [(e.ready, e.waits_for) for e in theirs]


def test_every_state_goes_into_a_store_as_it_is(
    queue: Queue, other: Queue, clock: ManualClock
) -> None:
    fill(other, clock)
    entries = exported(other)
    answer = put(queue, *entries)
    assert answer == ops.Enqueued(
        [entry.job.id for entry in entries], [True] * len(entries), clock.now_ms()
    )
    assert exported(queue) == entries
    assert dump(queue) == dump(other)


def test_what_was_put_in_goes_on_as_if_it_had_always_been_there(
    queue: Queue, other: Queue, clock: ManualClock
) -> None:
    fill(other, clock)
    put(queue, *exported(other))
    for one in (queue, other):
        assert drain(one) == ["ready", "due soon", "waits", "parent", "child first"]
    clock.advance(60)
    assert sorted(drain(queue)) == ["failed", "leased"]
    assert queue.get("leased").errors[-1].message == "the lease ran out"
    assert queue.get("waits long").state is State.WAITING
    queue.replay("dead")
    assert drain(queue) == ["dead", "waits long"]


def test_a_lease_goes_on_under_its_token(queue: Queue, other: Queue) -> None:
    other.enqueue("q", id="a")
    job = take(other)
    put(queue, *exported(other))
    queue.ack(job, "result")
    assert queue.get("a").result == "result"


def test_later_tokens_are_greater(queue: Queue, other: Queue) -> None:
    other.enqueue("q", id="a")
    for _ in range(5):
        stale = take(other)
        other.release(stale)
    put(queue, *exported(other))
    assert take(queue).token > stale.token
    with pytest.raises(LeaseLost):
        queue.ack(stale)


def test_a_lease_that_was_over_is_found_by_the_first_claim(
    queue: Queue, other: Queue, clock: ManualClock
) -> None:
    """Also where leases of that time were looked for long ago."""
    other.enqueue("q", id="old", max_attempts=3)
    other.claim("q", lease=10)
    entries = exported(other)
    clock.advance(3600)
    for n in range(3):
        queue.enqueue("q", id=str(n))
        clock.advance(60)
        queue.ack(queue.claim("q")[0])
    put(queue, *entries)
    assert queue.get("old").state is State.LEASED
    due = queue.next_due("q")
    assert due is not None
    assert due <= clock.now_ms()
    (job,) = queue.claim("q")
    assert (job.id, job.attempts) == ("old", 2)


def test_the_end_of_a_lease_that_was_put_in_is_not_waited_for_when_it_was_extended(
    queue: Queue, other: Queue, clock: ManualClock
) -> None:
    other.enqueue("q", id="a")
    job = take(other, lease=30)
    put(queue, *exported(other))
    assert queue.next_due("q") == clock.now_ms() + 30_000
    queue.extend(job, 60)
    assert queue.next_due("q") == clock.now_ms() + 60_000
    queue.ack(job)
    assert queue.next_due("q") is None


def test_of_two_jobs_that_came_with_one_token_each_has_its_own_lease(
    queue: Queue, other: Queue, clock: ManualClock
) -> None:
    """As they may, from two stores."""
    for id in "ab":
        other.enqueue("q", id=id)
    other.claim("q", limit=2, lease=30)
    put(queue, *(replace(one, job=replace(one.job, token=7)) for one in exported(other)))
    until = queue.get("b").lease_until
    queue.extend(Lease("a", 7), 90)
    assert queue.get("b").lease_until == until
    assert queue.get("a").lease_until == clock.now_ms() + 90_000
    queue.ack(Lease("a", 7))
    assert [queue.get(id).state for id in "ab"] == [State.DONE, State.LEASED]


def test_tokens_go_on_after_one_that_is_far_ahead(queue: Queue, other: Queue) -> None:
    """As those of FoundationDB are, which count microseconds."""
    other.enqueue("q", id="a")
    other.enqueue("q", id="b")
    other.claim("q", limit=2)
    far = 5 * 10**12
    before: dict[str, int] = {}
    for n, entry in enumerate(exported(other)):
        before[entry.job.id] = far + n
        put(queue, replace(entry, job=replace(entry.job, token=far + n)))
        store_of(queue).do([ops.Release(entry.job.id, far + n)])
    claimed = queue.claim("q", limit=2)
    assert len(claimed) == 2
    assert all(job.token > before[job.id] for job in claimed)


def test_jobs_that_are_there_are_passed_over(queue: Queue, other: Queue) -> None:
    other.enqueue("q", "theirs", id="a", unique_key="k")
    other.enqueue("q", "theirs", id="b")
    a, b = exported(other)
    queue.enqueue("q", "ours", id="a", unique_key="k")
    answer = put(queue, a, b, b)
    assert isinstance(answer, ops.Enqueued)
    assert answer.created == [False, True, False]
    assert put(queue, a, b) == ops.Enqueued(["a", "b"], [False, False], answer.at)
    assert [queue.get(id).payload for id in ("a", "b")] == ["ours", "theirs"]
    assert queue.stats("q").ready == 2


def test_none_is_put_in_if_a_key_of_one_is_held(queue: Queue, other: Queue) -> None:
    other.enqueue("q", id="free")
    other.enqueue("q", id="a", unique_key="k")
    queue.enqueue("q", id="holder", unique_key="k")
    assert put(queue, *exported(other)) == Duplicate("unique_key", "k", "holder")
    assert ids(queue.jobs().jobs) == ["holder"]
    twice = [replace(entry, job=replace(entry.job, unique_key="l")) for entry in exported(other)]
    assert put(queue, *twice) == Duplicate("unique_key", "l", "free")


def test_a_key_is_held_by_what_has_not_ended(queue: Queue, other: Queue) -> None:
    make_done(other, "ended", unique_key="k")
    other.enqueue("q", id="goes on", unique_key="k")
    put(queue, *exported(other))
    with pytest.raises(Duplicate, match="goes on"):
        queue.enqueue("q", unique_key="k")


def test_none_is_put_in_if_one_waits_for_a_job_that_is_not_there(
    queue: Queue, other: Queue
) -> None:
    other.enqueue("q", id="parent")
    other.enqueue("q", id="child", after=["parent"])
    parent, child = exported(other)
    assert put(queue, child) == DependencyNotFound("parent")
    assert queue.stats().queues == {}
    assert isinstance(put(queue, child, parent), ops.Enqueued)
    assert drain(queue) == ["parent", "child"]


@pytest.mark.parametrize(
    ("if_parent_fails", "fatal", "state"),
    [
        ("wait", False, State.PENDING),
        ("wait", True, State.WAITING),
        ("cancel", True, State.CANCELLED),
        ("run", True, State.PENDING),
    ],
)
def test_a_child_hears_of_a_parent_that_has_ended_here_meanwhile(
    queue: Queue, other: Queue, if_parent_fails: IfParentFails, fatal: bool, state: State
) -> None:
    other.enqueue("q", id="parent")
    other.enqueue("q", id="child", after=["parent"], if_parent_fails=if_parent_fails)
    other.enqueue("q", id="grandchild", after=["child"], if_parent_fails="cancel")
    parent, *children = exported(other)
    put(queue, parent)
    if fatal:
        queue.fail(take(queue), "boom", fatal=True)
    else:
        queue.ack(take(queue))
    put(queue, *children)
    assert queue.get("child").state is state
    cancelled = state is State.CANCELLED
    assert queue.get("grandchild").state is (State.CANCELLED if cancelled else State.WAITING)


def test_a_waiting_job_whose_parents_are_gone_is_released(queue: Queue, other: Queue) -> None:
    """They were done and removed, and it had not learned of that yet."""
    other.enqueue("q", id="parent")
    other.enqueue("q", id="child", after=["parent"])
    (child,) = (entry for entry in exported(other) if entry.job.id == "child")
    store_of(queue).do([ops.Import((replace(child, waits_for=()),))])
    assert queue.get("child").state is State.PENDING
    assert take(queue).id == "child"


def test_an_export_of_nothing_is_empty(queue: Queue, apply: Apply) -> None:
    assert store_of(queue).do(queries.Export()) == queries.Exported([], None)
    (answer,) = apply(ops.Import(()))
    assert isinstance(answer, ops.Enqueued)
    assert answer.ids == []
    assert isinstance(store_of(queue).do(queries.Export(cursor="x")), InvalidInput)


def test_an_export_goes_on_where_it_ended(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    end = store_of(queue).do(queries.Export()).cursor
    assert store_of(queue).do(queries.Export(cursor=end)) == queries.Exported([], end)
    queue.enqueue("q", id="b")
    assert [entry.job.id for entry in store_of(queue).do(queries.Export(cursor=end)).entries] == [
        "b"
    ]


def test_an_export_of_ids_has_these_jobs_in_this_order(queue: Queue) -> None:
    for name in ("a", "b", "c"):
        queue.enqueue("q", id=name)
    queue.enqueue("q", id="child", after=["a", "b"])
    queue.ack(take(queue))
    every = {entry.job.id: entry for entry in store_of(queue).do(queries.Export()).entries}
    assert every["child"].waits_for == ("b",)
    found = store_of(queue).do(queries.Export(ids=("child", "nobody", "a", "c")))
    assert found == queries.Exported([every[one] for one in ("child", "a", "c")], None)
    assert store_of(queue).do(queries.Export(ids=())) == queries.Exported([], None)
