"""Claim: leases ready jobs, in order, to one worker each."""

from __future__ import annotations

import os
import threading
from itertools import pairwise

import pytest

from tenure import Job, NewJob, Queue, State
from tenure.model.fields import MAX_CLAIM, MAX_PRIORITY, MIN_PRIORITY
from tenure.model.ops import Claim, Leased
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply, OpenQueue
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
from tests.conformance.state import as_dict, nothing_changes


def test_a_claimed_job_is_leased_to_the_worker(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    clock.advance(1)
    job = take(queue, worker="w1", lease=30)
    assert (job.id, job.state, job.worker, job.attempts) == ("a", State.LEASED, "w1", 1)
    assert job.token > 0
    assert job.started_at == job.updated_at == clock.now_ms()
    assert job.lease_until == clock.now_ms() + 30_000
    assert job.finished_at is None
    assert as_dict(queue.get("a")) == as_dict(job)


def test_a_leased_job_is_not_given_again(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q")
    take(queue, lease=60)
    clock.advance(59.999)
    with nothing_changes(queue):
        assert queue.claim("q") == []


def test_an_empty_queue_gives_nothing(queue: Queue) -> None:
    make_done(queue, "a")
    with nothing_changes(queue):
        assert queue.claim("q", limit=10) == []


def test_an_unknown_queue_gives_nothing_and_is_not_made(queue: Queue) -> None:
    with nothing_changes(queue):
        assert queue.claim("nowhere", limit=10) == []
    assert queue.stats().queues == {}


def test_a_lease_lasts_as_long_as_the_settings_say(
    open_queue: OpenQueue, clock: ManualClock
) -> None:
    queue = open_queue(lease=7)
    queue.enqueue("q")
    assert take(queue).lease_until == clock.now_ms() + 7_000


def test_a_worker_without_a_name_is_named_after_its_process(queue: Queue) -> None:
    queue.enqueue("q")
    assert take(queue).worker.endswith(f"-{os.getpid()}")


def test_a_claim_gives_up_to_its_limit(queue: Queue) -> None:
    expected = fill(queue, 5)
    assert ids(queue.claim("q")) == expected[:1]
    assert ids(queue.claim("q", limit=3)) == expected[1:4]
    assert ids(queue.claim("q", limit=3)) == expected[4:]


def test_one_claim_gives_up_to_a_thousand(queue: Queue) -> None:
    expected = fill(queue, MAX_CLAIM + 1)
    assert ids(queue.claim("q", limit=MAX_CLAIM)) == expected[:MAX_CLAIM]


@pytest.mark.parametrize("make", [make_done, make_dead, make_cancelled])
def test_a_job_that_ended_is_not_given(queue: Queue, make: object) -> None:
    assert callable(make)
    make(queue, "a")
    assert queue.claim("q") == []


# Order ------------------------------------------------------------------------------------------


def test_jobs_come_in_the_order_they_were_enqueued(queue: Queue, clock: ManualClock) -> None:
    expected = []
    for n in (3, 1, 2):
        expected.append(queue.enqueue("q", id=str(n)).id)
        clock.advance(-1)  # the order of calls counts, whatever the clock says
    assert drain(queue) == expected


def test_the_lowest_priority_comes_first(queue: Queue) -> None:
    priorities = [0, 5, -5, MAX_PRIORITY, MIN_PRIORITY, 1, -1]
    queue.enqueue_many(NewJob(queue="q", id=str(one), priority=one) for one in priorities)
    assert drain(queue) == [str(one) for one in sorted(priorities)]


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_order_is_by_priority_and_then_by_enqueue_across_groups(queue: Queue, limit: int) -> None:
    wanted = []
    for n in range(60):
        priority, group = n * 7 % 3, ["", "g", "h", "i"][n * 5 % 4]
        queue.enqueue("q", id=str(n), priority=priority, group=group)
        wanted.append((priority, n))
    assert drain(queue, limit=limit) == [str(n) for _, n in sorted(wanted)]


def test_an_urgent_job_overtakes_those_that_wait(queue: Queue) -> None:
    queue.enqueue("q", id="first", group="g")
    queue.enqueue("q", id="second", group="g")
    assert take(queue).id == "first"
    queue.enqueue("q", id="urgent", group="h", priority=-1)
    assert drain(queue) == ["urgent", "second"]


# Time -------------------------------------------------------------------------------------------


def test_a_delayed_job_is_given_when_its_time_has_come(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", delay=5)
    assert queue.claim("q") == []
    clock.advance(4.999)
    assert queue.claim("q") == []
    clock.advance(0.001)
    assert take(queue).id == "a"


def test_a_delayed_job_takes_its_place_by_the_order_of_enqueue(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q", id="delayed", delay=5)
    queue.enqueue("q", id="at once")
    clock.advance(5)
    assert drain(queue) == ["delayed", "at once"]


def test_a_lease_that_ran_out_is_given_to_another(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    first = take(queue, worker="w1", lease=10)
    clock.advance(10)
    second = take(queue, worker="w2", lease=10)
    assert (second.id, second.worker, second.attempts) == ("a", "w2", 2)
    assert second.token > first.token
    (failure,) = second.errors
    assert (failure.message, failure.worker, failure.attempt) == ("the lease ran out", "w1", 1)
    assert failure.at == clock.now_ms()


def test_a_clock_that_is_set_back_ends_no_lease(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a")
    job = take(queue, lease=60)
    clock.advance(-3600)
    assert queue.claim("q") == []
    queue.ack(job)
    assert state_of(queue, "a") is State.DONE


def test_the_tokens_of_a_job_only_grow(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", id="a", max_attempts=100)
    tokens = []
    for _ in range(3):
        job = take(queue, lease=1)
        queue.release(job)
        tokens.append(job.token)
        job = take(queue, lease=1)
        queue.fail(job, retry_in=0)
        tokens.append(job.token)
        tokens.append(take(queue, lease=1).token)
        clock.advance(1)
        tokens.append(take(queue, lease=1).token)
        queue.cancel("a")
        queue.replay("a")
    assert tokens == sorted(set(tokens))


def test_tokens_do_not_tell_how_many_claims_there_were(queue: Queue, apply: Apply) -> None:
    """Neither those of claims one after the other, nor those of claims that share a commit."""
    fill(queue, 200)
    tokens = [take(queue).token for _ in range(100)]
    together = apply(*(Claim(("q",), f"w{n}", 60_000, limit=1) for n in range(100)))
    shared = [job.token for leased in together if isinstance(leased, Leased) for job in leased.jobs]
    for given in (tokens, shared):
        assert len(given) == 100
        steps = [after - before for before, after in pairwise(given)]
        assert min(steps) >= 0  # a store may give one token to all that share a commit
        assert len(set(steps)) > 4 or set(steps) == {0}


# Which ------------------------------------------------------------------------------------------


def test_several_queues_are_asked_in_the_order_given(queue: Queue) -> None:
    for name in ("low", "high"):
        fill(queue, 2, name=name, prefix=name)
    assert ids(queue.claim(["high", "low"], limit=3)) == ["high0", "high1", "low0"]
    assert ids(queue.claim(["high", "nowhere", "low"], limit=3)) == ["low1"]


def test_a_queue_that_is_named_twice_is_asked_once(queue: Queue) -> None:
    expected = fill(queue, 3)
    assert ids(queue.claim(["q", "q"], limit=2)) == expected[:2]
    assert ids(queue.claim(["q", "q"], limit=2)) == expected[2:]


def test_a_claim_may_be_of_one_tenant(queue: Queue) -> None:
    for tenant in ("", "acme", "bolt"):
        fill(queue, 2, prefix=tenant, tenant=tenant)
    assert ids(queue.claim("q", tenant="acme", limit=10)) == ["acme0", "acme1"]
    assert queue.claim("q", tenant="nobody") == []
    assert ids(queue.claim("q", tenant="", limit=10)) == ["0", "1"]
    assert ids(queue.claim("q", limit=10)) == ["bolt0", "bolt1"]


def test_a_claim_may_leave_groups_out(queue: Queue) -> None:
    for group in ("", "g", "h"):
        fill(queue, 2, prefix=f"{group}.", group=group)
    assert ids(queue.claim("q", not_groups=["g", "nobody"], limit=3)) == [".0", ".1", "h.0"]
    assert ids(queue.claim("q", not_groups=["", "g"], limit=3)) == ["h.1"]
    assert queue.claim("q", not_groups=["g"]) == []
    assert ids(queue.claim("q", limit=3)) == ["g.0", "g.1"]


@pytest.mark.many_jobs
def test_groups_that_are_left_out_are_passed_over_however_many_jobs_they_have(
    queue: Queue,
) -> None:
    for n in range(10):
        fill(queue, 1_000, prefix=f"{n}.", group=f"blocked-{n}", priority=-1)
    queue.enqueue("q", id="wanted", group="free")
    blocked = [f"blocked-{n}" for n in range(10)]
    assert ids(queue.claim("q", not_groups=blocked, limit=5)) == ["wanted"]
    assert queue.claim("q", not_groups=blocked) == []
    assert ids(queue.claim("q", not_groups=blocked[:9], limit=2)) == ["9.0", "9.1"]


def test_a_tenant_whose_groups_are_left_out_holds_no_other_back(queue: Queue) -> None:
    fill(queue, 3, prefix="a", tenant="acme", group="g")
    fill(queue, 2, prefix="b", tenant="bolt", group="h")
    assert ids(queue.claim("q", not_groups=["g"], limit=5)) == ["b0", "b1"]


def test_a_claim_of_one_tenant_may_leave_groups_out(queue: Queue) -> None:
    for tenant in ("acme", "bolt"):
        for group in ("g", "h"):
            queue.enqueue("q", id=f"{tenant}.{group}", tenant=tenant, group=group)
    assert ids(queue.claim("q", tenant="acme", not_groups=["g"], limit=5)) == ["acme.h"]


# Together ---------------------------------------------------------------------------------------


def test_claims_that_come_together_share_nothing(queue: Queue, apply: Apply) -> None:
    expected = fill(queue, 5)
    claims = [Claim(("q",), f"w{n}", 1000, limit=2) for n in range(4)]
    leased = [one.jobs for one in apply(*claims) if isinstance(one, Leased)]
    assert [ids(jobs) for jobs in leased] == [expected[:2], expected[2:4], expected[4:], []]
    assert [job.worker for jobs in leased for job in jobs] == ["w0", "w0", "w1", "w1", "w2"]


def test_threads_that_claim_at_once_share_nothing(queue: Queue) -> None:
    expected = fill(queue, 200)
    taken: list[list[Job]] = [[] for _ in range(8)]

    def work(n: int) -> None:
        while jobs := queue.claim("q", limit=3, worker=f"w{n}"):
            taken[n] += jobs
            queue.ack_many(jobs)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(taken))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids(job for jobs in taken for job in jobs)) == sorted(expected)
    assert queue.stats().done == 200


@pytest.mark.parametrize("count", [8, 9, 12, 30])
@pytest.mark.parametrize("taken", [1, 7, 8])
def test_a_job_that_comes_later_waits_behind_those_of_a_larger_call(
    queue: Queue, count: int, taken: int
) -> None:
    """However many of a lane's first jobs an engine remembers."""
    fill(queue, count)
    first = [take(queue).id for _ in range(taken)]
    queue.enqueue("q", id="last")
    assert first + drain(queue) == [*(f"{n}" for n in range(count)), "last"]
