"""Fairness: tenants of a queue take turns, by their weights; nobody starves, nobody saves up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tenure import NewJob, Queue
from tenure.model.ops import TURN, Claim, Leased, Maintain, stride
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import fill, ids, make_done

pytestmark = pytest.mark.usefixtures("needs_strict_turns")


def serve(queue: Queue, count: int, *, limit: int = 1) -> str:
    """Claim `count` jobs, `limit` at a time; the tenants in the order in which they came."""
    served = ""
    while len(served) < count:
        jobs = queue.claim("q", limit=min(limit, count - len(served)))
        assert jobs, f"only {served} came"
        served += "".join(job.tenant for job in jobs)
    return served


def stock(queue: Queue, tenants: str, count: int = 100, prefix: str = "") -> None:
    """Give each of the tenants (a letter each) so many jobs."""
    for tenant in tenants:
        fill(queue, count, prefix=f"{prefix}{tenant}", tenant=tenant)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 30])
def test_tenants_take_turns(queue: Queue, limit: int) -> None:
    stock(queue, "abc")
    assert serve(queue, 30, limit=limit) == "abc" * 10


def test_a_tenant_with_one_job_is_served_within_one_turn(queue: Queue) -> None:
    fill(queue, 10_000, prefix="a", tenant="a")
    assert serve(queue, 5) == "aaaaa"
    queue.enqueue("q", tenant="b")
    assert "b" in serve(queue, 2)


@pytest.mark.parametrize("limit", [2, 10])
def test_a_tenant_with_one_job_is_served_within_one_claim(queue: Queue, limit: int) -> None:
    fill(queue, 10_000, prefix="a", tenant="a")
    serve(queue, 20, limit=limit)
    queue.enqueue("q", tenant="b")
    assert serve(queue, limit, limit=limit).count("b") == 1


def test_a_hundred_tenants_with_one_job_each_are_served_once_each(queue: Queue) -> None:
    stock(queue, "a", 1_000)
    serve(queue, 50, limit=10)
    tenants = [f"t{n}" for n in range(100)]
    queue.enqueue_many(NewJob(queue="q", id=one, tenant=one) for one in tenants)
    jobs = queue.claim("q", limit=101) + queue.claim("q", limit=1)
    counts = Counter(job.tenant for job in jobs)
    assert [counts[tenant] for tenant in tenants] == [1] * 100
    assert counts["a"] == 2


def test_jobs_without_a_tenant_are_a_tenant_like_others(queue: Queue) -> None:
    fill(queue, 5)
    stock(queue, "a", 5)
    assert [job.tenant for job in queue.claim("q", limit=10)] == ["", "a"] * 5


def test_priority_orders_the_jobs_of_a_tenant_and_not_the_tenants(queue: Queue) -> None:
    for n in range(4):
        queue.enqueue("q", id=f"a{n}", tenant="a", priority=100 - n)
        queue.enqueue("q", id=f"b{n}", tenant="b", priority=n - 100)
    assert ids(queue.claim("q", limit=8)) == ["a3", "b0", "a2", "b1", "a1", "b2", "a0", "b3"]


# Weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 4, 40])
def test_a_tenant_of_weight_three_gets_three_turns(queue: Queue, limit: int) -> None:
    queue.limits.set("q", tenant="b", weight=3)
    stock(queue, "ab")
    served = serve(queue, 40, limit=limit)
    assert served == "abbb" * 10


def test_turns_are_shared_by_weight(queue: Queue) -> None:
    weights = {"a": 1, "b": 2, "c": 5}
    for tenant, weight in weights.items():
        queue.limits.set("q", tenant=tenant, weight=weight)
    stock(queue, "abc", 200)
    assert Counter(serve(queue, 160, limit=16)) == {"a": 20, "b": 40, "c": 100}


def test_a_weight_may_be_the_default(queue: Queue) -> None:
    queue.limits.set("q", tenant="*", weight=3)
    queue.limits.set("q", tenant="a", weight=1)
    stock(queue, "abc")
    assert Counter(serve(queue, 70)) == {"a": 10, "b": 30, "c": 30}


def test_a_weight_that_is_changed_counts_from_the_next_turn(queue: Queue) -> None:
    stock(queue, "ab", 200)
    serve(queue, 20)
    queue.limits.set("q", tenant="a", weight=4)
    serve(queue, 10)
    assert Counter(serve(queue, 50)) == {"a": 40, "b": 10}
    queue.limits.clear("q", tenant="a")
    serve(queue, 10)
    assert Counter(serve(queue, 50)) == {"a": 25, "b": 25}


@pytest.mark.parametrize("weight", [1, 2, 3, 7, 999, 1000])
def test_a_stride_gives_a_tenant_no_more_than_its_weight(weight: int) -> None:
    assert weight * stride(weight) >= TURN
    assert (weight - 1) * stride(weight) < TURN


@pytest.mark.parametrize("seed", range(5))
def test_between_two_claims_of_a_tenant_each_other_gets_at_most_its_weight(
    queue: Queue, seed: int
) -> None:
    draw = random.Random(seed)
    weights = {tenant: draw.randint(1, 5) for tenant in "abcdef"}
    for tenant, weight in weights.items():
        queue.limits.set("q", tenant=tenant, weight=weight)
    stock(queue, "abc", 150)
    served = serve(queue, 60, limit=draw.randint(1, 9))
    stock(queue, "def", 150)  # some come late
    while len(served) < 300:
        served += serve(queue, draw.randint(1, 20), limit=draw.randint(1, 20))
    for tenant in weights:
        for between in served.split(tenant)[1:-1]:
            for other, count in Counter(between).items():
                assert count <= weights[other], f"{other} came {count} times in {between!r}"


def test_claims_that_come_together_take_turns_too(queue: Queue, apply: Apply) -> None:
    stock(queue, "abc", 10)
    answers = apply(*[Claim(("q",), f"w{n}", 1000, limit=2) for n in range(6)])
    served = [job.tenant for one in answers if isinstance(one, Leased) for job in one.jobs]
    assert "".join(served) == "abc" * 4


# Nobody saves up --------------------------------------------------------------------------------


def test_a_tenant_that_was_idle_has_no_burst(queue: Queue) -> None:
    stock(queue, "ab", 1)
    serve(queue, 2)
    stock(queue, "a", 100, "more")
    serve(queue, 50)
    stock(queue, "b", 50, "more")
    assert serve(queue, 20) in ("ba" * 10, "ab" * 10)


def test_a_new_tenant_has_no_burst(queue: Queue) -> None:
    stock(queue, "b", 100)
    serve(queue, 50)
    stock(queue, "ac", 50)
    served = serve(queue, 30)
    assert Counter(served) == {"a": 10, "b": 10, "c": 10}
    assert Counter(served[:3]) == {"a": 1, "b": 1, "c": 1}


def test_a_tenant_that_was_paused_has_no_burst(queue: Queue) -> None:
    stock(queue, "ab")
    queue.pause("q", tenant="b")
    assert serve(queue, 30) == "a" * 30
    queue.resume("q", tenant="b")
    assert serve(queue, 20) == "ba" * 10


def test_a_tenant_that_was_at_its_limit_has_no_burst(queue: Queue) -> None:
    stock(queue, "ab")
    queue.limits.set("q", tenant="b", concurrency=1)
    assert serve(queue, 31) == "ab" + "a" * 29
    queue.limits.clear("q", tenant="b")
    assert serve(queue, 20) == "ba" * 10


def test_a_tenant_whose_groups_were_left_out_has_no_burst(queue: Queue) -> None:
    fill(queue, 100, prefix="a", tenant="a")
    fill(queue, 100, prefix="b", tenant="b", group="g")
    for _ in range(30):
        (job,) = queue.claim("q", not_groups=["g"])
        assert job.tenant == "a"
    assert serve(queue, 20) == "ba" * 10


def test_a_tenant_that_was_delayed_has_no_burst(queue: Queue, clock: ManualClock) -> None:
    stock(queue, "a")
    fill(queue, 50, prefix="b", tenant="b", delay=60)
    serve(queue, 30)
    clock.advance(60)
    queue.maintain()
    assert serve(queue, 20) == "ba" * 10


def test_a_tenant_that_was_forgotten_has_no_burst(queue: Queue, clock: ManualClock) -> None:
    make_done(queue, "once", tenant="b")
    stock(queue, "a")
    serve(queue, 20)
    clock.advance(1)
    queue.purge(0)
    queue.maintain()
    assert [one.tenant for one in queue.tenants("q")] == ["a"]
    serve(queue, 10)
    stock(queue, "b", 50)
    assert serve(queue, 20) == "ba" * 10


def test_a_claim_of_one_tenant_takes_nobodys_turn(queue: Queue) -> None:
    stock(queue, "ab")
    for _ in range(20):
        (job,) = queue.claim("q", tenant="a")
        assert job.tenant == "a"
    assert serve(queue, 20) == "ab" * 10


def test_the_turns_of_one_queue_are_not_those_of_another(queue: Queue) -> None:
    stock(queue, "ab")
    fill(queue, 50, name="r", prefix="r", tenant="a")
    assert len(queue.claim("r", limit=30)) == 30
    assert serve(queue, 10) == "ab" * 5


def test_a_tenant_that_runs_dry_leaves_its_turns_to_the_others(queue: Queue) -> None:
    stock(queue, "a", 2)
    stock(queue, "bc", 5)
    assert serve(queue, 12, limit=4) == "abcabc" + "bcbcbc"
    assert queue.claim("q") == []


def test_a_retried_job_waits_for_its_tenants_turn(queue: Queue) -> None:
    stock(queue, "abc", 10)
    (job,) = queue.claim("q")
    queue.fail(job, retry_in=0)
    assert serve(queue, 6) == "bcabca"


def test_turns_are_taken_without_end(queue: Queue) -> None:
    """A place in the order of turns is a large number before long."""
    for n in range(5):
        fill(queue, 1000, prefix=f"{n}", tenant="ab"[n % 2])
    for _ in range(5):
        assert len(queue.claim("q", limit=1000)) == 1000
    assert queue.claim("q") == []


@pytest.mark.parametrize(("after", "served"), [("", "ab"), ("p", "ab"), ("q", "ba")])
def test_maintenance_forgets_the_turns_of_tenants_without_jobs_where_it_looks(
    queue: Queue, apply: Apply, after: str, served: str
) -> None:
    """A step looks at the queues after a name, and leaves others as they are."""
    for tenant in "ba":  # so that b comes first as long as its turn is known
        queue.enqueue("q", tenant=tenant)
        (job,) = queue.claim("q")
        queue.ack(job, keep=False)
    apply(Maintain(after=after))
    stock(queue, "ab")
    assert serve(queue, 2) == served


@pytest.mark.parametrize(("heavy", "light", "served"), [("a", "b", "aa"), ("b", "a", "ba")])
@pytest.mark.parametrize("together", [True, False])
def test_a_tie_of_turns_is_decided_by_the_names(
    queue: Queue, heavy: str, light: str, served: str, together: bool
) -> None:
    """A tenant that is served now has its next turn exactly when another has its turn."""
    weight = next(weight for weight in range(2, 1_000) if weight * stride(weight) == TURN + 1)
    queue.limits.set("q", tenant=heavy, weight=weight)
    stock(queue, heavy, weight + 2)
    assert serve(queue, 1) == heavy  # at 1
    stock(queue, light, 2)
    assert serve(queue, 1) == light  # at 2; next at 2 + TURN
    queue.maintain()  # so that PostgreSQL has folded its news
    assert set(serve(queue, weight - 2, limit=weight)) == {heavy}
    assert serve(queue, 2, limit=2 if together else 1) == served
