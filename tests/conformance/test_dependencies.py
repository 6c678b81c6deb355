"""Dependencies: a job waits until the jobs it comes after are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from tenure import (
    DependencyCycle,
    DependencyNotFound,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NewJob,
    Queue,
    State,
)
from tenure.model import ops
from tenure.model.fields import MAX_AFTER
from tenure.model.job import NULL, JobSpec
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import (
    drain,
    fill,
    ids,
    make_cancelled,
    make_dead,
    make_done,
    state_of,
    take,
)
from tests.conformance.state import all_jobs, nothing_changes

IfParentFails = Literal["wait", "cancel", "run"]


def die(queue: Queue, job_id: str) -> None:
    """Claim the job, which must be the next of its queue, and fail it for good."""
    job = take(queue, queue.get(job_id).queue)
    assert job.id == job_id
    queue.fail(job, "boom", fatal=True)


def cancel(queue: Queue, job_id: str) -> None:
    queue.cancel(job_id)


def delete(queue: Queue, job_id: str) -> None:
    queue.delete(job_id)


def states_of(queue: Queue, names: str) -> list[str]:
    return [state_of(queue, name).value for name in names]


# Waiting ----------------------------------------------------------------------------------------


def test_a_job_waits_for_its_parent(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="parent")
    child = queue.enqueue("q", id="child", after=["parent"])
    assert (child.state, child.after) == (State.WAITING, ("parent",))
    parent = take(queue)
    assert queue.claim("q") == []
    clock.advance(1)
    queue.ack(parent)
    freed = queue.get("child")
    assert (freed.state, freed.after) == (State.PENDING, ("parent",))
    assert freed.updated_at == clock.now_ms()
    assert take(queue).id == "child"


def test_a_job_waits_for_all_its_parents(queue: Queue) -> None:
    parents = fill(queue, 3, name="parents")
    queue.enqueue("q", id="child", after=parents)
    for _ in parents:
        assert state_of(queue, "child") is State.WAITING
        queue.ack(take(queue, "parents"))
    assert take(queue).id == "child"


def test_a_parent_that_is_not_kept_frees_its_children(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    queue.ack(take(queue), keep=False)
    assert take(queue).id == "child"


def test_a_failed_attempt_of_the_parent_changes_nothing_for_the_child(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails="cancel")
    queue.fail(take(queue), retry_in=0)
    queue.release(take(queue))
    assert state_of(queue, "child") is State.WAITING


def test_a_job_whose_parents_are_done_is_pending_at_once(queue: Queue) -> None:
    make_done(queue, "parent")
    child = queue.enqueue("q", id="child", after=["parent"])
    assert (child.state, child.after) == (State.PENDING, ("parent",))
    assert take(queue).id == "child"


def test_only_those_parents_count_that_are_not_done(queue: Queue) -> None:
    make_done(queue, "done")
    queue.enqueue("q", id="open")
    assert queue.enqueue("q", id="child", after=["done", "open"]).state is State.WAITING
    queue.ack(take(queue))
    assert take(queue).id == "child"


def test_a_parent_may_be_in_another_queue_and_of_another_tenant(queue: Queue) -> None:
    queue.enqueue("parents", id="parent", tenant="acme")
    queue.enqueue("q", id="child", tenant="bolt", group="g", after=["parent"])
    queue.ack(take(queue, "parents"))
    assert take(queue).id == "child"


def test_parents_may_be_given_as_jobs(queue: Queue) -> None:
    parent = queue.enqueue("q", id="parent")
    assert queue.enqueue("q", after=[parent]).after == ("parent",)


def test_a_parent_that_is_named_twice_counts_once(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    assert queue.enqueue("q", id="child", after=["parent", "parent"]).after == ("parent",)
    queue.ack(take(queue))
    assert take(queue).id == "child"


def test_a_child_takes_its_place_by_the_order_of_enqueue(queue: Queue) -> None:
    queue.enqueue("parents", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    queue.enqueue("q", id="later")
    queue.ack(take(queue, "parents"))
    assert drain(queue) == ["child", "later"]


def test_a_child_may_have_a_delay_besides(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], delay=60)
    queue.ack(take(queue))
    assert queue.claim("q") == []
    assert queue.stats().delayed == 1
    clock.advance(60)
    assert take(queue).id == "child"


def test_the_delay_of_a_child_runs_while_it_waits(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], delay=60)
    clock.advance(60)
    queue.ack(take(queue))
    assert queue.stats().ready == 1
    assert take(queue).id == "child"


def test_a_waiting_job_may_be_cancelled(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    queue.cancel("child")
    queue.ack(take(queue))
    assert state_of(queue, "child") is State.CANCELLED
    assert queue.claim("q") == []


def test_a_waiting_job_may_be_deleted(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    queue.delete("child")
    queue.ack(take(queue))
    assert ids(all_jobs(queue)) == ["parent"]


# A parent that is not done ----------------------------------------------------------------------

FATES: dict[tuple[IfParentFails, Callable[[Queue, str], None]], State] = {
    ("wait", die): State.WAITING,
    ("wait", cancel): State.WAITING,
    ("wait", delete): State.DEAD,
    ("cancel", die): State.CANCELLED,
    ("cancel", cancel): State.CANCELLED,
    ("cancel", delete): State.CANCELLED,
    ("run", die): State.PENDING,
    ("run", cancel): State.PENDING,
    ("run", delete): State.PENDING,
}
fates = pytest.mark.parametrize(
    ("rule", "end", "fate"),
    [(rule, end, fate) for (rule, end), fate in FATES.items()],
    ids=[f"{rule}-{end.__name__}" for rule, end in FATES],
)


@fates
def test_a_child_does_what_it_was_told_when_its_parent_is_not_done(
    queue: Queue,
    clock: ManualClock,
    rule: IfParentFails,
    end: Callable[[Queue, str], None],
    fate: State,
) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails=rule)
    clock.advance(1)
    end(queue, "parent")
    child = queue.get("child")
    assert child.state is fate
    assert child.finished_at == (clock.now_ms() if fate in ("dead", "cancelled") else None)
    assert ids(queue.claim("q")) == (["child"] if fate is State.PENDING else [])


@fates
def test_a_leased_parent_that_is_ended_is_no_different(
    queue: Queue, rule: IfParentFails, end: Callable[[Queue, str], None], fate: State
) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails=rule)
    if end is not die:
        take(queue)
    end(queue, "parent")
    assert state_of(queue, "child") is fate


@pytest.mark.parametrize("make", [make_dead, make_cancelled])
@pytest.mark.parametrize(
    ("rule", "fate"),
    [("wait", State.WAITING), ("cancel", State.CANCELLED), ("run", State.PENDING)],
)
def test_a_parent_that_ended_before_is_no_different(
    queue: Queue, make: Callable[[Queue, str], object], rule: IfParentFails, fate: State
) -> None:
    make(queue, "parent")
    child = queue.enqueue("q", id="child", after=["parent"], if_parent_fails=rule)
    assert child.state is fate


def test_a_child_of_a_deleted_parent_says_why_it_died(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    queue.delete("parent")
    assert queue.get("child").error == "a job it waited for was deleted: parent"


def test_a_child_that_waits_goes_on_when_its_parent_is_replayed(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    die(queue, "parent")
    queue.replay("parent")
    queue.ack(take(queue))
    assert take(queue).id == "child"


def test_a_child_that_waits_dies_when_its_dead_parent_is_deleted(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="child", after=["parent"])
    die(queue, "parent")
    queue.delete("parent")
    assert state_of(queue, "child") is State.DEAD


def test_a_done_parent_may_be_deleted(queue: Queue) -> None:
    make_done(queue, "first")
    queue.enqueue("q", id="second")
    queue.enqueue("q", id="child", after=["first", "second"])
    queue.delete("first")
    assert state_of(queue, "child") is State.WAITING
    queue.ack(take(queue))
    assert take(queue).id == "child"


def test_a_child_that_runs_anyway_waits_for_its_other_parents(queue: Queue) -> None:
    queue.enqueue("q", id="first")
    queue.enqueue("q", id="second")
    queue.enqueue("q", id="child", after=["first", "second"], if_parent_fails="run")
    die(queue, "first")
    assert state_of(queue, "child") is State.WAITING
    queue.ack(take(queue))
    assert take(queue).id == "child"


def test_a_child_that_runs_anyway_runs_when_all_its_parents_failed(queue: Queue) -> None:
    queue.enqueue("q", id="first")
    queue.enqueue("q", id="second")
    queue.enqueue("q", id="child", after=["first", "second"], if_parent_fails="run")
    die(queue, "first")
    queue.cancel("second")
    assert take(queue).id == "child"


def test_a_child_that_is_cancelled_waits_for_no_other_parent(queue: Queue) -> None:
    queue.enqueue("q", id="first")
    queue.enqueue("q", id="second")
    queue.enqueue("q", id="child", after=["first", "second"], if_parent_fails="cancel")
    die(queue, "first")
    assert state_of(queue, "child") is State.CANCELLED
    queue.ack(take(queue))
    assert state_of(queue, "child") is State.CANCELLED


def test_a_child_waits_for_the_failed_parent_when_the_other_is_done(queue: Queue) -> None:
    queue.enqueue("q", id="first")
    queue.enqueue("q", id="second")
    queue.enqueue("q", id="child", after=["first", "second"])
    die(queue, "first")
    queue.ack(take(queue))
    assert state_of(queue, "child") is State.WAITING
    queue.replay("first")
    queue.ack(take(queue))
    assert take(queue).id == "child"


def test_a_parent_that_dies_of_its_leases_tells_its_children(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="parent", max_attempts=1)
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails="run")
    take(queue, lease=5)
    clock.advance(5)
    assert take(queue).id == "child"


def test_a_parent_that_is_purged_tells_its_children(queue: Queue, clock: ManualClock) -> None:
    make_dead(queue, "parent")
    queue.enqueue("q", id="child", after=["parent"])
    clock.advance(1)
    assert queue.purge(0, state="dead") == 1
    assert state_of(queue, "child") is State.DEAD


# Families ---------------------------------------------------------------------------------------


def chain(queue: Queue, length: int, rule: IfParentFails) -> list[str]:
    names = [str(n) for n in range(length)]
    queue.enqueue_many(
        NewJob(queue="q", id=name, after=[before] if before else [], if_parent_fails=rule)
        for name, before in zip(names, ["", *names], strict=False)
    )
    return names


def test_a_chain_runs_in_order(queue: Queue) -> None:
    names = chain(queue, 100, "cancel")
    assert drain(queue, limit=5) == names


@pytest.mark.many_jobs
def test_a_chain_of_a_thousand_is_cancelled_with_its_first(queue: Queue) -> None:
    chain(queue, 1_000, "cancel")
    assert queue.cancel("0") == 1
    assert queue.stats().cancelled == 1_000


@pytest.mark.many_jobs
def test_a_chain_of_a_thousand_is_cancelled_when_its_first_dies(queue: Queue) -> None:
    chain(queue, 1_000, "cancel")
    die(queue, "0")
    assert (queue.stats().dead, queue.stats().cancelled) == (1, 999)


def test_a_chain_of_a_thousand_is_cancelled_when_its_first_is_deleted(queue: Queue) -> None:
    chain(queue, 1_000, "cancel")
    queue.delete("0")
    assert queue.stats().cancelled == 999


def test_a_chain_of_a_thousand_may_come_after_a_dead_job(queue: Queue) -> None:
    make_dead(queue, "dead")
    jobs = [NewJob(queue="q", id="0", after=["dead"], if_parent_fails="cancel")]
    jobs += [
        NewJob(queue="q", id=str(n), after=[str(n - 1)], if_parent_fails="cancel")
        for n in range(1, 1_000)
    ]
    queue.enqueue_many(reversed(jobs))
    assert queue.stats().cancelled == 1_000


def test_a_chain_that_runs_anyway_goes_on_from_the_next(queue: Queue) -> None:
    chain(queue, 10, "run")
    queue.cancel("0")
    assert (queue.stats().ready, queue.stats().waiting) == (1, 8)
    queue.cancel("5")
    assert states_of(queue, "156") == ["pending", "cancelled", "pending"]


def test_a_chain_that_waits_is_held_by_its_dead(queue: Queue) -> None:
    chain(queue, 10, "wait")
    die(queue, "0")
    assert queue.stats().waiting == 9
    queue.delete("0")  # the next dies of it, and holds those after it
    assert (queue.stats().dead, queue.stats().waiting) == (1, 8)


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac", "cadb"])
def test_a_diamond_runs_from_its_top_whatever_the_order_of_the_call(
    queue: Queue, order: str
) -> None:
    after: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    queue.enqueue_many(NewJob(queue="q", id=one, after=after[one]) for one in order)
    assert states_of(queue, "abcd") == ["pending", "waiting", "waiting", "waiting"]
    queue.ack(take(queue))
    assert states_of(queue, "bcd") == ["pending", "pending", "waiting"]
    queue.ack(take(queue))
    assert state_of(queue, "d") is State.WAITING
    queue.ack(take(queue))
    assert take(queue).id == "d"


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac"])
def test_a_diamond_is_cancelled_from_its_top(queue: Queue, order: str) -> None:
    after: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    queue.enqueue_many(
        NewJob(queue="q", id=one, after=after[one], if_parent_fails="cancel") for one in order
    )
    queue.cancel("a")
    assert queue.stats().cancelled == 4


@pytest.mark.many_jobs
def test_one_parent_may_have_a_thousand_children(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    children = fill(queue, 1_000, after=["parent"])
    queue.ack(take(queue))
    assert ids(queue.claim("q", limit=1_000)) == children


@pytest.mark.many_jobs
def test_one_child_may_have_thousands_of_parents(queue: Queue) -> None:
    parents = fill(queue, 2_500)
    queue.enqueue("q", id="child", after=parents)
    for _ in range(2):
        queue.ack_many(queue.claim("q", limit=1_000))
    *jobs, last = queue.claim("q", limit=1_000)
    queue.ack_many(jobs)
    assert state_of(queue, "child") is State.WAITING
    queue.ack(last)
    child = take(queue)
    assert (child.id, list(child.after)) == ("child", parents)


def test_one_child_may_not_have_more_than_ten_thousand_parents(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(InvalidInput, match=r"^after: "):
        queue.enqueue("q", after=[str(n) for n in range(MAX_AFTER + 1)])


# What cannot be ---------------------------------------------------------------------------------


def test_a_parent_must_exist(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    with nothing_changes(queue), pytest.raises(DependencyNotFound) as caught:
        queue.enqueue("q", after=["parent", "nobody"])
    assert caught.value.job_id == "nobody"


def test_a_parent_that_was_deleted_does_not_exist(queue: Queue) -> None:
    make_done(queue, "parent")
    queue.delete("parent")
    with nothing_changes(queue), pytest.raises(DependencyNotFound):
        queue.enqueue("q", after=["parent"])


def test_a_missing_parent_is_no_missing_job(queue: Queue) -> None:
    with pytest.raises(DependencyNotFound) as caught:
        queue.enqueue("q", after=["nobody"])
    assert not isinstance(caught.value, JobNotFound)


@pytest.mark.parametrize(
    ("after", "cycle"),
    [
        ({"a": "a"}, "aa"),
        ({"a": "b", "b": "a"}, "aba"),
        ({"a": "b", "b": "c", "c": "a"}, "abca"),
        ({"tail": "a", "a": "b", "b": "a"}, "aba"),
        ({"x": "", "a": "xb", "b": "xc", "c": "xa"}, "abca"),
    ],
    ids=["itself", "two", "three", "with a tail", "with a parent that could run"],
)
def test_jobs_that_wait_for_each_other_are_refused(
    queue: Queue, after: dict[str, str], cycle: str
) -> None:
    queue.enqueue("q", id="before")
    jobs = [NewJob(queue="q", id=one, after=list(names)) for one, names in after.items()]
    with nothing_changes(queue), pytest.raises(DependencyCycle) as caught:
        queue.enqueue_many(jobs)
    assert caught.value.ids[0] == caught.value.ids[-1]
    assert set(caught.value.ids) == set(cycle)
    assert len(caught.value.ids) == len(cycle)


def test_a_job_that_waits_for_itself_is_refused(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(DependencyCycle):
        queue.enqueue("q", id="a", after=["a"])


def test_a_cycle_of_ten_thousand_is_found(queue: Queue) -> None:
    jobs = [NewJob(queue="q", id=str(n), after=[str((n + 1) % 10_000)]) for n in range(10_000)]
    with nothing_changes(queue), pytest.raises(DependencyCycle):
        queue.enqueue_many(jobs)


def test_a_job_that_was_refused_is_no_parent(queue: Queue) -> None:
    queue.enqueue("q", unique_key="k")
    jobs = [NewJob(queue="q", id="a", unique_key="k"), NewJob(queue="q", id="b", after=["a"])]
    with nothing_changes(queue), pytest.raises(DependencyNotFound):
        queue.enqueue_many(jobs, if_exists="skip")


def test_a_child_that_a_claim_sets_free_in_a_queue_it_has_looked_at_is_not_lost(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("second", id="parent", expires_in=1)
    queue.enqueue("first", id="child", after=["parent"], if_parent_fails="run")
    queue.enqueue("first", id="other")
    clock.advance(2)
    claimed = [job for _ in range(3) for job in queue.claim(["first", "second"], limit=5)]
    assert sorted(job.id for job in claimed) == ["child", "other"]


def test_a_job_whose_id_is_made_up_waits_like_any_other(queue: Queue) -> None:
    parent = queue.enqueue("q")
    child = queue.enqueue("q", after=[parent.id])
    assert queue.get(child.id).state is State.WAITING
    (leased,) = queue.claim("q", limit=2)
    assert leased.id == parent.id
    queue.ack(leased)
    assert [job.id for job in queue.claim("q", limit=2)] == [child.id]


def test_a_job_that_is_deleted_and_enqueued_again_waits_only_for_its_new_parents(
    queue: Queue, apply: Apply
) -> None:
    """All in one batch, with the end of the former parent after it."""
    queue.enqueue("q", id="former")
    parent = take(queue)
    queue.enqueue("q", id="new")
    queue.enqueue("q", id="child", after=["former"], if_parent_fails="cancel")
    again = JobSpec("child", "q", NULL, after=("new",), if_parent_fails="cancel")
    apply(
        ops.Delete(("child",)),
        ops.Enqueue((again,)),
        ops.Fail(parent.id, parent.token, fatal=True),
    )
    assert state_of(queue, "former") is State.DEAD
    assert state_of(queue, "child") is State.WAITING
    queue.ack(take(queue))
    assert state_of(queue, "child") is State.PENDING


@pytest.mark.parametrize("how", [ops.Fail, ops.Release])
def test_an_error_names_the_state_of_a_child_after_its_parent_has_failed_in_the_batch(
    queue: Queue, apply: Apply, how: type[ops.Fail] | type[ops.Release]
) -> None:
    queue.enqueue("q", id="parent")
    parent = take(queue)
    queue.enqueue("q", id="child", after=["parent"], if_parent_fails="cancel")
    fails, late = ops.Fail(parent.id, parent.token, fatal=True), how("child", 1)
    assert apply(fails, late)[1] == LeaseLost("child", "cancelled")
