"""Explain: what holds a job back, reason by reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tenure import JobNotFound, LeaseLost, NewJob, Queue
from tenure.features.why import data as why
from tenure.features.why.data import Explain
from tenure.model.job import State
from tenure.model.ops import Grant, Note, Pause
from tenure.model.pause_records import pause_key
from tenure.model.record_queries import ListRecords
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
from tests.support.sizes import let

R = TypeVar("R", bound=why.Reason)


def reason(queue: Queue, id: str, kind: type[R]) -> R:
    """The only reason of this kind."""
    (found,) = (one for one in queue.explain(id).reasons if isinstance(one, kind))
    return found


def codes(queue: Queue, id: str) -> list[str]:
    return [str(type(one).__struct_config__.tag) for one in queue.explain(id).reasons]


def test_a_job_that_does_not_exist_is_not_explained(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        queue.explain("nowhere")


@pytest.mark.over_http
def test_the_first_job_in_line_is_next(queue: Queue) -> None:
    job = queue.enqueue("q")

    found = queue.explain(job.id)

    assert (found.id, found.state, found.claimable) == (job.id, State.PENDING, True)
    assert isinstance(found.reasons[-1], why.Next)


def test_a_later_job_waits_for_those_before_it(queue: Queue) -> None:
    for _ in range(3):
        last = queue.enqueue("q")
    first = queue.enqueue("q", priority=-1)

    found = reason(queue, last.id, why.InLine)

    assert (found.ahead, found.room) == (3, None)
    assert queue.explain(last.id).claimable
    assert "3 jobs" in found.text
    assert isinstance(queue.explain(first.id).reasons[-1], why.Next)


def test_jobs_of_other_groups_of_its_tenant_come_first_too(queue: Queue) -> None:
    queue.enqueue("q", tenant="a", group="g")
    queue.enqueue("q", tenant="a", group="h")
    queue.enqueue("q", tenant="b", group="h")
    last = queue.enqueue("q", tenant="a")

    assert reason(queue, last.id, why.InLine).ahead == 2


def test_jobs_of_other_groups_that_have_expired_do_not_come_first(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", group="g", expires_in=1)
    queue.enqueue("q", id="last", group="h")
    clock.advance(2)

    assert codes(queue, "last")[-1] == "next"


@pytest.mark.parametrize(("running", "ahead"), [(0, 2), (1, 1), (3, 0)])
def test_of_jobs_that_are_due_in_a_limited_group_those_come_first_that_may_start(
    queue: Queue, clock: ManualClock, running: int, ahead: int
) -> None:
    for _ in range(running):
        queue.enqueue("q", group="g")
    assert len(queue.claim("q", limit=5, lease=60)) == running
    for _ in range(3):
        queue.enqueue("q", group="g", delay=1)
    queue.enqueue("q", id="last", group="h")
    queue.limits.set("q", group="g", concurrency=2)
    clock.advance(2)

    if ahead:
        assert reason(queue, "last", why.InLine).ahead == ahead
    else:
        assert codes(queue, "last")[-1] == "next"


@pytest.mark.usefixtures("needs_strict_turns")
def test_tenants_whose_turn_comes_first_are_counted(queue: Queue) -> None:
    for tenant in "abcd":
        last = queue.enqueue("q", tenant=tenant)
    queue.pause("q", tenant="b")

    found = reason(queue, last.id, why.InLine)

    assert (found.ahead, found.tenants_ahead) == (0, 2)


@pytest.mark.over_http
def test_a_running_job_names_its_worker_and_its_lease(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j")
    (job,) = queue.claim("q", worker="w1", lease=30)

    found = reason(queue, "j", why.Running)

    assert (found.worker, found.since, found.lease_until) == ("w1", job.started_at, job.lease_until)
    assert not queue.explain("j").claimable


def test_a_job_whose_lease_expired_is_ready_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j")
    queue.claim("q", worker="w1", lease=30)
    clock.advance(31)

    found = queue.explain("j")

    assert found.state is State.LEASED
    assert found.claimable
    assert not reason(queue, "j", why.LeaseOver).dies
    assert [job.id for job in queue.claim("q", worker="w2")] == ["j"]


def test_a_job_that_used_up_its_attempts_dies_when_its_lease_expires(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="j", max_attempts=1)
    queue.claim("q", worker="w1", lease=30)
    clock.advance(31)

    assert codes(queue, "j") == ["lease_over"]
    assert reason(queue, "j", why.LeaseOver).dies


@pytest.mark.parametrize("end", ["done", "dead", "cancelled"])
def test_a_finished_job_says_since_when(queue: Queue, clock: ManualClock, end: str) -> None:
    queue.enqueue("q", id="j")
    (job,) = queue.claim("q", worker="w")
    clock.advance(5)
    if end == "done":
        queue.ack(job)
    elif end == "dead":
        queue.fail(job, "no", fatal=True)
    else:
        queue.cancel("j")

    assert codes(queue, "j") == ["finished"]
    found = reason(queue, "j", why.Finished)
    assert found.at == clock.now_ms()
    assert end in found.text
    assert ("replay" in found.fix) == (end != "done")


def test_a_job_that_was_cancelled_while_it_ran_says_when_its_worker_heard_of_it(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="j")
    (job,) = queue.claim("q", worker="w1")
    clock.advance(1)
    queue.cancel("j")
    asked = clock.now_ms()
    found = reason(queue, "j", why.Finished)
    assert (found.at, found.worker, found.heard_at) == (asked, "w1", None)
    assert "has not heard of it yet" in found.text
    clock.advance(3)
    for _ in range(2):  # it is told again and again
        with pytest.raises(LeaseLost):
            queue.extend(job)
        clock.advance(1)

    found = reason(queue, "j", why.Finished)

    assert (found.at, found.heard_at) == (asked, asked + 3000)
    moves = [(one.what, one.at) for one in queue.history("j")]
    assert moves[-2:] == [("cancelled", asked), ("cancel_heard", asked + 3000)]


@pytest.mark.parametrize("call", ["ack", "ack_and_delete", "fail", "release", "progress"])
def test_a_worker_hears_of_a_cancel_by_any_call_about_its_job(
    queue: Queue, clock: ManualClock, call: str
) -> None:
    queue.enqueue("q", id="j")
    queue.enqueue("q", id="other")
    job, other = queue.claim("q", worker="w1", limit=2)
    queue.cancel("j")
    clock.advance(2)
    calls: dict[str, Callable[[], object]] = {
        "ack": lambda: queue.ack(job),
        "ack_and_delete": lambda: queue.ack(job, keep=False),
        "fail": lambda: queue.fail(job, "boom"),
        "release": lambda: queue.release(job),
        "progress": lambda: queue.progress(job, 50),
    }
    with pytest.raises(LeaseLost):
        calls[call]()
    assert reason(queue, "j", why.Finished).heard_at == clock.now_ms()
    queue.ack(other)


def test_a_worker_that_lost_its_job_otherwise_hears_of_no_cancel(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="j", max_attempts=5)
    (old,) = queue.claim("q", worker="w1", lease=5)
    clock.advance(6)
    (new,) = queue.claim("q", worker="w2", lease=60)
    queue.cancel("j")
    with pytest.raises(LeaseLost):
        queue.extend(old)
    assert reason(queue, "j", why.Finished).heard_at is None
    queue.replay("j")
    with pytest.raises(LeaseLost):
        queue.extend(new)
    queue.cancel("j")

    found = reason(queue, "j", why.Finished)

    assert (found.worker, found.heard_at) == ("", None)


def test_a_job_that_was_replayed_and_ended_by_itself_says_nothing_of_the_cancel(
    queue: Queue,
) -> None:
    queue.enqueue("q", id="j")
    (job,) = queue.claim("q", worker="w")
    queue.cancel("j")
    with pytest.raises(LeaseLost):
        queue.extend(job)
    assert reason(queue, "j", why.Finished).heard_at is not None
    queue.replay("j")
    (job,) = queue.claim("q", worker="w")
    queue.ack(job)  # in the same millisecond

    found = reason(queue, "j", why.Finished)

    assert (found.worker, found.heard_at) == ("w", None)


def test_an_expired_job_is_not_claimable(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j", expires_in=10)
    clock.advance(11)

    assert codes(queue, "j") == ["expired"]
    assert not queue.explain("j").claimable


def test_a_delayed_job_says_when_it_is_due(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="j", delay=3600)

    found = reason(queue, "j", why.Delayed)

    assert found.due_at == clock.now_ms() + 3_600_000
    assert not queue.explain("j").claimable
    assert found.fix == "tenure run-now j"
    clock.advance(3600)
    assert queue.explain("j").claimable


def test_a_job_that_was_ready_before_the_clock_went_back_is_still_ready(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="j")
    clock.advance(-5)

    found = queue.explain("j")

    assert found.claimable
    assert isinstance(found.reasons[-1], why.Next)
    assert [job.id for job in queue.claim("q", worker="w")] == ["j"]


def test_a_job_that_failed_says_which_attempt_it_waits_for(queue: Queue) -> None:
    queue.enqueue("q", id="j", max_attempts=5)
    (job,) = queue.claim("q", worker="w")
    queue.fail(job, "no", retry_in=60)

    found = reason(queue, "j", why.Delayed)

    assert (found.attempt, found.max_attempts) == (1, 5)
    assert "attempt 2 of 5" in found.text


@pytest.mark.over_http
def test_a_waiting_job_names_its_parents_failed_ones_first(queue: Queue) -> None:
    for id in ("p1", "p2", "p3"):
        queue.enqueue("other", id=id)
    queue.enqueue("q", id="j", after=["p1", "p2", "p3"])
    queue.cancel("p2")

    found = reason(queue, "j", why.WaitsFor)

    assert [(one.id, one.state) for one in found.parents] == [
        ("p2", State.CANCELLED),
        ("p1", State.PENDING),
        ("p3", State.PENDING),
    ]
    assert found.count == 3
    assert "tenure replay p2" in found.fix


def test_of_many_parents_the_first_are_named_and_all_are_counted(queue: Queue) -> None:
    parents = [f"p{n:02}" for n in range(30)]
    for id in parents:
        queue.enqueue("other", id=id)
    queue.enqueue("q", id="j", after=parents)

    found = reason(queue, "j", why.WaitsFor)

    assert [one.id for one in found.parents] == parents[: why.MOST_PARENTS]
    assert found.count == 30


@pytest.mark.parametrize(
    ("scope", "fix"),
    [
        ({}, "tenure resume q"),
        ({"tenant": "a"}, "tenure resume q --tenant a"),
        ({"tenant": "a", "group": "g"}, "tenure resume q --tenant a --group g"),
        ({"group": "g"}, "tenure resume q --group g"),
    ],
)
def test_a_pause_says_how_to_end_it(queue: Queue, scope: dict[str, str], fix: str) -> None:
    queue.enqueue("q", id="j", tenant="a", group="g")
    queue.pause("q", **scope)

    found = reason(queue, "j", why.Paused)

    assert found.scope == ("group" if "group" in scope else "tenant" if scope else "queue")
    assert found.fix == fix
    assert not queue.explain("j").claimable


def test_a_pause_says_since_when_by_whom_and_for_what_reason(
    queue: Queue, clock: ManualClock, apply: Apply
) -> None:
    queue.enqueue("q", id="j", tenant="a")
    apply(Pause("q", note=Note(by="ann", reason="bounces")))
    since = clock.now_ms()
    clock.advance(5)
    apply(Pause("q", note=Note(by="bob")))  # it was paused already
    queue.pause("q", tenant="a")

    of_queue, of_tenant = queue.explain("j").reasons[:2]

    assert isinstance(of_queue, why.Paused)
    assert (of_queue.since, of_queue.by, of_queue.reason) == (since, "ann", "bounces")
    assert of_queue.text.endswith(" by ann: bounces.")
    assert isinstance(of_tenant, why.Paused)
    assert of_tenant.since == clock.now_ms()
    grant = Grant(tenants=("a",))
    shown = store_of(queue).do(Explain("j", grant=grant)).reasons[:2]
    assert [(one.since, one.by, one.reason) for one in shown] == [
        (None, "", ""),
        (clock.now_ms(), "", ""),
    ]
    queue.resume("q")
    clock.advance(5)
    queue.pause("q")
    assert reason_of_queue(queue).since == clock.now_ms()


def test_a_pause_is_remembered_until_it_ends(queue: Queue, apply: Apply) -> None:
    queue.enqueue("q", id="j")
    apply(Pause("q", note=Note(by="ann")))
    queue.limits.clear("q")
    assert reason_of_queue(queue).by == "ann"
    queue.resume("q")
    key = pause_key("q", None, None)
    assert store_of(queue).do(ListRecords("pause", key, key, 1)) == []


def reason_of_queue(queue: Queue) -> why.Paused:
    found = queue.explain("j").reasons[0]
    assert isinstance(found, why.Paused)
    return found


@pytest.mark.over_http
@pytest.mark.parametrize(
    ("scope", "level"),
    [
        pytest.param({}, "queue", marks=pytest.mark.queue_limit),
        ({"tenant": "*"}, "tenant"),
        ({"tenant": "a"}, "tenant"),
        ({"tenant": "a", "group": "g"}, "group"),
        ({"group": "*"}, "group"),
    ],
)
def test_a_full_limit_names_those_who_hold_it(
    queue: Queue, scope: dict[str, Any], level: str
) -> None:
    for id in ("h1", "h2", "j"):
        queue.enqueue("q", id=id, tenant="a", group="g")
    queue.limits.set("q", concurrency=2, **scope)
    queue.claim("q", worker="w", limit=5)

    found = reason(queue, "j", why.Limited)

    assert (found.scope, found.used, found.limit) == (level, 2, 2)
    assert sorted(found.holders) == ["h1", "h2"]
    assert not queue.explain("j").claimable
    assert reason(queue, "j", why.InLine).room == 0


def test_a_limit_of_each_group_does_not_hold_back_a_job_without_a_group(queue: Queue) -> None:
    for id in ("h", "j"):
        queue.enqueue("q", id=id)
    queue.limits.set("q", group="*", concurrency=1)
    queue.claim("q", worker="w")

    assert "limit" not in codes(queue, "j")
    assert queue.explain("j").claimable


def test_a_limit_with_some_room_lets_only_the_first_jobs_start(queue: Queue) -> None:
    for n in range(4):
        queue.enqueue("q", id=f"j{n}", group="g")
    queue.limits.set("q", group="g", concurrency=2)

    assert [queue.explain(f"j{n}").claimable for n in range(4)] == [True, True, False, False]
    assert reason(queue, "j3", why.InLine).room == 2


@pytest.mark.usefixtures("needs_strict_turns")
def test_a_tenant_that_has_nothing_left_takes_no_further_turn(queue: Queue) -> None:
    queue.limits.set("q", concurrency=4)
    for tenant in ("a", "b", "c", "c", "c"):
        queue.enqueue("q", id=f"{tenant}{len(queue.jobs().jobs)}", tenant=tenant)
    assert [queue.explain(id).claimable for id in ("c2", "c3", "c4")] == [True, True, False]
    assert [job.id for job in queue.claim("q", limit=5)] == ["a0", "b1", "c2", "c3"]


@pytest.mark.usefixtures("needs_strict_turns")
def test_with_little_room_in_the_queue_turns_decide(queue: Queue) -> None:
    for tenant in "abc":
        for n in range(2):
            queue.enqueue("q", id=f"{tenant}{n}", tenant=tenant)
    queue.limits.set("q", tenant="a", weight=5)
    queue.limits.set("q", concurrency=4)
    ids = [f"{tenant}{n}" for tenant in "abc" for n in range(2)]

    claimable = {id for id in ids if queue.explain(id).claimable}

    assert claimable == {job.id for job in queue.claim("q", worker="w", limit=10)}
    assert len(claimable) == 4


@pytest.mark.usefixtures("needs_strict_turns")
def test_a_tenant_takes_no_more_turns_than_it_has_jobs(queue: Queue) -> None:
    queue.enqueue("q", tenant="a")
    for n in range(3):
        queue.enqueue("q", id=f"b{n}", tenant="b")
    queue.limits.set("q", concurrency=3)
    queue.maintain()  # so that on PostgreSQL the books are up to date

    assert [queue.explain(f"b{n}").claimable for n in range(3)] == [True, True, False]


@pytest.mark.queue_limit
def test_a_lease_that_expired_does_not_fill_a_limit(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="first", max_attempts=1)
    queue.enqueue("q", id="j")
    queue.limits.set("q", concurrency=1)
    queue.claim("q", worker="w", lease=5)
    assert "limit" in codes(queue, "j")
    clock.advance(6)

    assert queue.explain("j").claimable


@pytest.mark.queue_limit
def test_a_used_up_rate_says_when_the_next_job_may_start(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("q", rate=2, per=10)
    for n in range(4):
        queue.enqueue("q", id=f"j{n}")
    assert [queue.explain(f"j{n}").claimable for n in range(4)] == [True, True, False, False]
    queue.claim("q", worker="w", limit=2)

    found = reason(queue, "j2", why.RateLimited)

    assert found.next_at == clock.now_ms() + 5_000
    clock.advance(4.999)
    assert not queue.explain("j2").claimable
    assert reason(queue, "j2", why.RateLimited).next_at == found.next_at
    clock.advance(0.001)
    assert queue.explain("j2").claimable


def test_a_pause_comes_before_what_else_holds_a_job_back(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    queue.enqueue("q", id="waits", after=["parent"])
    queue.enqueue("q", id="late", delay=60)
    queue.pause("q")

    assert codes(queue, "waits") == ["paused", "waits_for"]
    assert codes(queue, "late") == ["paused", "delayed"]


@pytest.mark.parametrize(("early", "is_over"), [(0, True), (0.001, False)])
def test_a_job_expires_at_its_time_and_not_before(
    queue: Queue, clock: ManualClock, early: float, is_over: bool
) -> None:
    queue.enqueue("q", id="j", expires_in=10)
    clock.advance(10 - early)

    found = queue.explain("j").reasons[0]

    assert isinstance(found, why.Expired) is is_over


# What a caller may see ------------------------------------------------------------------------


def test_a_grant_hides_jobs_of_others(queue: Queue) -> None:
    queue.enqueue("q", id="mine", tenant="a", after=[queue.enqueue("q", id="b1", tenant="b").id])
    grant = Grant(tenants=("a",))

    assert isinstance(store_of(queue).do(Explain("b1", grant=grant)), JobNotFound)
    (found,) = store_of(queue).do(Explain("mine", grant=grant)).reasons

    assert found.parents == [why.Parent("b1", None)]


@pytest.mark.queue_limit
def test_a_grant_hides_who_else_fills_the_queue(queue: Queue) -> None:
    queue.limits.set("q", concurrency=2, rate=2, per=60)
    for id in ("a1", "b1", "a2"):
        queue.enqueue("q", id=id, tenant=id[0])
    queue.claim("q", worker="w", limit=5)

    (waits,) = [id for id in ("a1", "a2", "b1") if queue.get(id).state is State.PENDING]
    found = store_of(queue).do(Explain(waits, grant=Grant(tenants=(waits[0],)))).reasons

    limited = found[0]
    assert (limited.used, limited.limit) == (None, None)
    assert all(id.startswith(waits[0]) for id in limited.holders)
    assert [one.next_at for one in found if isinstance(one, why.RateLimited)] == [None]
    assert (found[-1].tenants_ahead, found[-1].room) == (None, None)


def test_a_grant_shows_how_full_its_own_limits_are(queue: Queue) -> None:
    queue.limits.set("q", tenant="a", concurrency=1)
    for id in ("a1", "a2"):
        queue.enqueue("q", id=id, tenant="a")
    queue.claim("q", worker="w")

    limited, line = store_of(queue).do(Explain("a2", grant=Grant(tenants=("a",)))).reasons

    assert (limited.scope, limited.used, limited.limit) == ("tenant", 1, 1)
    assert line.room == 0


@pytest.mark.parametrize("grant", [Grant(tenants=("a",)), Grant(queues=("q",))])
def test_a_grant_for_some_tenants_hides_that_nobody_works_on_the_queue(
    queue: Queue, grant: Grant
) -> None:
    queue.enqueue("q", id="a1", tenant="a")

    found = [type(one) for one in store_of(queue).do(Explain("a1", grant=grant)).reasons]

    assert (why.NoWorker in found) is (grant.tenants is None)


@pytest.mark.many_jobs
def test_counts_stop_early(open_queue: OpenQueue) -> None:
    queue = open_queue()
    queue.enqueue_many([NewJob(queue="q") for _ in range(why.MOST_AHEAD + 50)])
    last = queue.enqueue("q", id="last")

    assert reason(queue, last.id, why.InLine).ahead == why.MOST_AHEAD
    assert "at least 1,000" in reason(queue, last.id, why.InLine).text


@pytest.mark.queue_limit
def test_a_job_can_start_where_there_is_room_for_all_however_many_are_ahead(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, tenants_counted_ahead=2)
    for n in range(4):
        queue.enqueue("q", id=f"j{n}")
    queue.limits.set("q", concurrency=4)

    assert queue.explain("j3").claimable
