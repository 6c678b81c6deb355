"""Limits: how many jobs of a queue, a tenant or a group are leased at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tenure import InvalidInput, Job, Limit, Queue, QueueNotFound
from tenure.model.ops import Claim, Leased
from tenure.testing import ManualClock
from tests.conformance.conftest import Apply
from tests.conformance.moves import fill, grab, ids, take
from tests.conformance.state import nothing_changes


def leased_by(queue: Queue, field: str) -> dict[str, int]:
    """How many jobs are leased now, by tenant or group."""
    jobs = queue.jobs(state="leased", limit=10_000).jobs
    return dict(Counter(getattr(job, field) for job in jobs))


WHOLE = pytest.param({}, marks=pytest.mark.queue_limit)  # the limit of a whole queue


# Concurrency ------------------------------------------------------------------------------------


@pytest.mark.queue_limit
def test_a_queue_gives_no_more_than_its_limit(queue: Queue) -> None:
    fill(queue, 5)
    queue.limits.set("q", concurrency=2)
    assert len(grab(queue)) == 2
    assert queue.claim("q") == []


@pytest.mark.queue_limit
def test_a_limit_is_of_one_queue(queue: Queue) -> None:
    fill(queue, 5)
    fill(queue, 5, name="r", prefix="r")
    queue.limits.set("q", concurrency=2)
    assert len(queue.claim(["q", "r"], limit=10)) == 7


def test_a_tenant_is_given_no_more_than_its_limit(queue: Queue) -> None:
    for tenant in ("", "acme", "bolt"):
        fill(queue, 5, prefix=tenant, tenant=tenant)
    queue.limits.set("q", tenant="acme", concurrency=2)
    grab(queue)
    assert leased_by(queue, "tenant") == {"": 5, "acme": 2, "bolt": 5}


def test_a_group_is_given_no_more_than_its_limit(queue: Queue) -> None:
    for group in ("", "g", "h"):
        fill(queue, 5, prefix=group, group=group)
    queue.limits.set("q", tenant="", group="g", concurrency=2)
    grab(queue)
    assert leased_by(queue, "group") == {"": 5, "g": 2, "h": 5}


def test_the_group_of_one_tenant_is_not_that_of_another(queue: Queue) -> None:
    for tenant in ("acme", "bolt"):
        fill(queue, 5, prefix=tenant, tenant=tenant, group="g")
    queue.limits.set("q", tenant="acme", group="g", concurrency=2)
    grab(queue)
    assert leased_by(queue, "tenant") == {"acme": 2, "bolt": 5}


def test_a_group_without_a_tenant_is_that_group_of_each_tenant(queue: Queue) -> None:
    for tenant in ("", "acme", "bolt"):
        fill(queue, 5, prefix=tenant, tenant=tenant, group="g")
    queue.limits.set("q", group="g", concurrency=2)
    grab(queue)
    assert leased_by(queue, "tenant") == {"": 2, "acme": 2, "bolt": 2}


ENDS: dict[str, Callable[[Queue, Job, ManualClock], object]] = {
    "ack": lambda queue, job, clock: queue.ack(job),
    "ack and remove": lambda queue, job, clock: queue.ack(job, keep=False),
    "fail": lambda queue, job, clock: queue.fail(job),
    "fail fatally": lambda queue, job, clock: queue.fail(job, fatal=True),
    "release": lambda queue, job, clock: queue.release(job, delay=600),
    "cancel": lambda queue, job, clock: queue.cancel(job),
    "delete": lambda queue, job, clock: queue.delete(job),
    "lease runs out": lambda queue, job, clock: clock.advance(10),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize(
    "scope",
    [WHOLE, {"tenant": "acme"}, {"tenant": "acme", "group": "g"}],
    ids=["queue", "tenant", "group"],
)
def test_whatever_ends_a_lease_makes_room(
    queue: Queue,
    clock: ManualClock,
    end: Callable[[Queue, Job, ManualClock], object],
    scope: dict[str, Any],
) -> None:
    fill(queue, 3, tenant="acme", group="g")
    queue.limits.set("q", **scope, concurrency=1)
    job = take(queue, lease=10)
    assert queue.claim("q") == []
    end(queue, job, clock)
    assert len(queue.claim("q", limit=3)) == 1
    assert queue.claim("q") == []


def test_a_limited_group_holds_no_other_job_back(queue: Queue) -> None:
    queue.limits.set("q", tenant="", group="g", concurrency=1)
    fill(queue, 1_000, prefix="g", group="g", priority=-1)
    fill(queue, 2, group="h")
    fill(queue, 2, prefix="none")
    assert ids(queue.claim("q", limit=10)) == ["g0", "0", "1", "none0", "none1"]


def test_a_limited_tenant_holds_no_other_back(queue: Queue) -> None:
    queue.limits.set("q", tenant="acme", concurrency=1)
    fill(queue, 1_000, prefix="acme", tenant="acme")
    fill(queue, 3, prefix="bolt", tenant="bolt")
    assert sorted(ids(queue.claim("q", limit=10))) == ["acme0", "bolt0", "bolt1", "bolt2"]


@pytest.mark.queue_limit
def test_the_tightest_of_several_limits_counts(queue: Queue) -> None:
    queue.limits.set("q", concurrency=6)
    queue.limits.set("q", tenant="acme", concurrency=4)
    queue.limits.set("q", tenant="acme", group="g", concurrency=3)
    for tenant in ("acme", "bolt"):
        for group in ("g", "h"):
            fill(queue, 10, prefix=f"{tenant}{group}", tenant=tenant, group=group)
    assert len(queue.claim("q", tenant="acme", not_groups=["h"], limit=10)) == 3
    assert len(queue.claim("q", tenant="acme", limit=10)) == 1
    assert len(queue.claim("q", limit=10)) == 2
    assert leased_by(queue, "tenant") == {"acme": 4, "bolt": 2}


@pytest.mark.queue_limit
def test_a_claim_of_one_tenant_keeps_to_the_limits(queue: Queue) -> None:
    queue.limits.set("q", tenant="acme", concurrency=2)
    fill(queue, 5, tenant="acme")
    assert len(queue.claim("q", tenant="acme", limit=5)) == 2
    queue.limits.set("q", concurrency=2)
    fill(queue, 5, prefix="bolt", tenant="bolt")
    assert queue.claim("q", tenant="bolt", limit=5) == []


def test_a_claim_of_one_job_of_a_tenant_that_is_full_takes_none(queue: Queue) -> None:
    fill(queue, 3, tenant="a")
    queue.limits.set("q", tenant="a", concurrency=1)
    for expected in (1, 0, 0):
        assert len(queue.claim("q", tenant="a", limit=1)) == expected


@pytest.mark.queue_limit
def test_claims_that_come_together_keep_to_the_limits(queue: Queue, apply: Apply) -> None:
    queue.limits.set("q", concurrency=5)
    queue.limits.set("q", tenant="acme", concurrency=3)
    fill(queue, 10, prefix="acme", tenant="acme")
    fill(queue, 10, prefix="bolt", tenant="bolt")
    answers = apply(*[Claim(("q",), f"w{n}", 1000, limit=2) for n in range(6)])
    assert sum(len(one.jobs) for one in answers if isinstance(one, Leased)) == 5
    assert leased_by(queue, "tenant").get("acme", 0) <= 3


def test_a_limit_may_be_set_before_there_is_a_job(queue: Queue) -> None:
    queue.limits.set("q", tenant="acme", group="g", concurrency=1)
    assert queue.stats("q").unfinished == 0
    fill(queue, 3, tenant="acme", group="g")
    assert len(grab(queue)) == 1


def test_a_delayed_job_and_a_retried_one_keep_to_the_limit(
    queue: Queue, clock: ManualClock
) -> None:
    queue.limits.set("q", tenant="", group="g", concurrency=1)
    queue.enqueue("q", id="later", group="g", delay=5)
    queue.enqueue("q", id="again", group="g")
    queue.fail(take(queue), retry_in=5)
    clock.advance(5)
    assert len(grab(queue)) == 1


# Defaults ---------------------------------------------------------------------------------------


def test_a_default_is_for_each_tenant(queue: Queue) -> None:
    queue.limits.set("q", tenant="*", concurrency=2)
    for tenant in ("", "acme", "bolt"):
        fill(queue, 5, prefix=tenant, tenant=tenant)
    grab(queue)
    assert leased_by(queue, "tenant") == {"": 2, "acme": 2, "bolt": 2}


def test_a_tenants_own_limit_comes_before_the_default(queue: Queue) -> None:
    for tenant in ("acme", "bolt", "cask"):
        fill(queue, 5, prefix=tenant, tenant=tenant)
    queue.limits.set("q", tenant="acme", concurrency=3)
    queue.limits.set("q", tenant="*", concurrency=2)
    queue.limits.set("q", tenant="bolt", concurrency=1)
    grab(queue)
    assert leased_by(queue, "tenant") == {"acme": 3, "bolt": 1, "cask": 2}


def test_a_weight_of_its_own_leaves_a_tenant_under_the_default(queue: Queue) -> None:
    queue.limits.set("q", tenant="*", concurrency=2)
    queue.limits.set("q", tenant="acme", weight=5)
    fill(queue, 5, tenant="acme")
    assert len(grab(queue)) == 2


def test_the_limit_of_a_group_is_the_nearest(queue: Queue) -> None:
    queue.limits.set("q", tenant="*", group="*", concurrency=4)
    queue.limits.set("q", tenant="*", group="g", concurrency=3)
    queue.limits.set("q", tenant="*", group="h", concurrency=5)
    queue.limits.set("q", tenant="acme", group="*", concurrency=2)
    queue.limits.set("q", tenant="acme", group="g", concurrency=1)
    for tenant in ("acme", "bolt"):
        for group in ("", "g", "h", "i"):
            fill(queue, 6, prefix=f"{tenant}{group}", tenant=tenant, group=group)
    grab(queue)
    held = {
        tenant: {one.group: one.leased for one in queue.groups("q", tenant=tenant)}
        for tenant in ("acme", "bolt")
    }
    # The tenant's group, then the tenant's default, then the group's, then the default of all.
    assert held == {"acme": {"g": 1, "h": 2, "i": 2}, "bolt": {"g": 3, "h": 5, "i": 4}}


def test_a_job_without_a_group_is_under_no_groups_limit(queue: Queue) -> None:
    queue.limits.set("q", tenant="*", group="*", concurrency=1)
    fill(queue, 5)
    assert len(grab(queue)) == 5


def test_a_cleared_limit_leaves_the_default(queue: Queue) -> None:
    queue.limits.set("q", tenant="*", concurrency=2)
    queue.limits.set("q", tenant="acme", concurrency=4)
    fill(queue, 9, tenant="acme")
    assert len(grab(queue)) == 4
    queue.limits.clear("q", tenant="acme")
    assert grab(queue) == []
    queue.limits.clear("q", tenant="*")
    assert len(grab(queue)) == 5


# Changing a limit -------------------------------------------------------------------------------

SCOPES: list[Any] = [
    WHOLE,
    {"tenant": "acme"},
    {"tenant": "*"},
    {"tenant": "acme", "group": "g"},
    {"tenant": "acme", "group": "*"},
    {"group": "g"},
    {"group": "*"},
]
scopes = pytest.mark.parametrize("scope", SCOPES, ids=str)


@scopes
def test_a_raised_limit_gives_more_at_once(queue: Queue, scope: dict[str, Any]) -> None:
    fill(queue, 9, tenant="acme", group="g")
    queue.limits.set("q", **scope, concurrency=2)
    assert len(grab(queue)) == 2
    queue.limits.set("q", **scope, concurrency=5)
    assert len(grab(queue)) == 3


@scopes
def test_a_lowered_limit_gives_nothing_until_there_is_room(
    queue: Queue, scope: dict[str, Any]
) -> None:
    fill(queue, 9, tenant="acme", group="g")
    queue.limits.set("q", **scope, concurrency=4)
    jobs = grab(queue)
    queue.limits.set("q", **scope, concurrency=2)
    for job in jobs[:2]:
        assert grab(queue) == []
        queue.ack(job)
    assert grab(queue) == []
    queue.ack(jobs[2])
    assert len(grab(queue)) == 1


@scopes
def test_a_cleared_limit_is_none(queue: Queue, scope: dict[str, Any]) -> None:
    fill(queue, 9, tenant="acme", group="g")
    queue.limits.set("q", **scope, concurrency=2)
    assert len(grab(queue)) == 2
    queue.limits.clear("q", **scope)
    assert len(grab(queue)) == 7
    assert queue.limits.list() == []


@pytest.mark.queue_limit
def test_what_is_left_out_of_a_limit_stays(queue: Queue) -> None:
    queue.limits.set("q", concurrency=2)
    queue.limits.set("q", rate=10, per=60)
    queue.limits.set("q", concurrency=3)
    queue.limits.set("q", tenant="acme", weight=4)
    queue.limits.set("q", tenant="acme", concurrency=5)
    assert queue.limits.list() == [
        Limit("q", concurrency=3, rate=10, per_ms=60_000),
        Limit("q", "acme", concurrency=5, weight=4),
    ]


@pytest.mark.queue_limit
def test_limits_are_listed_by_queue_tenant_and_group(queue: Queue) -> None:
    queue.limits.set("r", concurrency=1)
    queue.limits.set("q", tenant="acme", group="g", concurrency=2)
    queue.limits.set("q", tenant="acme", concurrency=3)
    queue.limits.set("q", group="g", concurrency=4)
    queue.limits.set("q", tenant="", concurrency=5)
    queue.pause("q")
    expected = [
        Limit("q", paused=True),
        Limit("q", "", concurrency=5),
        Limit("q", "*", "g", concurrency=4),
        Limit("q", "acme", concurrency=3),
        Limit("q", "acme", "g", concurrency=2),
    ]
    assert queue.limits.list("q") == expected
    assert queue.limits.list() == [*expected, Limit("r", concurrency=1)]
    assert queue.limits.list("nowhere") == []


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"tenant": "acme"},
        {"concurrency": 0},
        {"concurrency": -1},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"rate": 1},
        {"per": 1},
        {"rate": 0, "per": 1},
        {"rate": 1, "per": 0},
        {"rate": 1, "per": -1},
        {"rate": 1.5, "per": 1},
        {"rate": 1, "per": 1, "tenant": "acme"},
        {"rate": 1, "per": 1, "group": "g"},
        {"weight": 1},
        {"weight": 1, "tenant": "acme", "group": "g"},
        {"weight": 0, "tenant": "acme"},
        {"weight": 1001, "tenant": "acme"},
        {"concurrency": 1, "group": ""},
        {"concurrency": 1, "tenant": "a\0b"},
        {"concurrency": 1, "rate": 0, "per": 1},
    ],
    ids=str,
)
def test_a_limit_that_cannot_be_is_refused(queue: Queue, bounds: dict[str, Any]) -> None:
    queue.limits.set("q", tenant="acme", concurrency=5)
    with nothing_changes(queue), pytest.raises(InvalidInput):
        queue.limits.set("q", **bounds)


def test_a_limit_of_an_unknown_queue_cannot_be_cleared(queue: Queue) -> None:
    with nothing_changes(queue), pytest.raises(QueueNotFound):
        queue.limits.clear("nope")


@pytest.mark.parametrize("field", ["tenant", "group"])
def test_no_job_can_have_the_name_that_stands_for_all(queue: Queue, field: str) -> None:
    name: Any = {field: "*"}
    with nothing_changes(queue), pytest.raises(InvalidInput, match=field):
        queue.enqueue("q", **name)


@pytest.mark.queue_limit
def test_a_claim_that_has_enough_leaves_the_rates_of_further_queues_alone(
    queue: Queue, clock: ManualClock
) -> None:
    queue.limits.set("mail", rate=1, per=1)
    queue.enqueue("web", None)
    for _ in range(2):
        queue.enqueue("mail", None)
    assert len(queue.claim("mail", limit=2)) == 1
    clock.advance(5)
    assert len(queue.claim(["web", "mail"], limit=1)) == 1
    clock.advance(-5)
    assert queue.claim("mail", limit=2) == []


@pytest.mark.queue_limit
def test_a_claim_of_a_paused_queue_leaves_its_rate_alone(queue: Queue, clock: ManualClock) -> None:
    queue.limits.set("mail", rate=1, per=1)
    for _ in range(2):
        queue.enqueue("mail", None)
    assert len(queue.claim("mail", limit=2)) == 1
    queue.pause("mail")
    clock.advance(5)
    assert queue.claim("mail") == []
    clock.advance(-5)
    queue.resume("mail")
    assert queue.claim("mail", limit=2) == []


def test_a_limit_holds_beside_a_queue_that_has_none(queue: Queue) -> None:
    queue.enqueue("free", tenant="acme")
    queue.limits.set("q", tenant="acme", concurrency=1)
    for _ in range(2):
        queue.enqueue("q", tenant="acme")
    assert len(queue.claim("q", limit=2)) == 1
    assert queue.claim("q") == []
