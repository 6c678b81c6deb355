"""Jobs that wait for each other, unique keys wherever they are, and how long tenants wait."""

from __future__ import annotations

import pytest

from tenure import InvalidInput, JobNotFound, NewJob, Queue, QueueNotFound
from tenure.model.ops import Grant
from tenure.model.queries import FindByKey, ListRelated, LongestWaits, Related
from tenure.queue import store_of
from tenure.testing import ManualClock

pytestmark = pytest.mark.over_http


def ids(found: Related) -> tuple[list[str], list[str]]:
    return [one.id for one in found.after], [one.id for one in found.before]


def test_a_job_is_related_to_what_it_waits_for_and_to_what_waits_for_it(queue: Queue) -> None:
    queue.enqueue("load", id="b", kind="read")
    queue.enqueue("load", id="a", kind="read")
    queue.enqueue("mail", id="middle", after=["b", "a"], tenant="acme", group="g", kind="join")
    queue.enqueue("mail", id="z", after=["middle"])
    queue.enqueue("mail", id="c", after=["middle", "a"])
    found = queue.related("middle")
    assert ids(found) == (["b", "a"], ["c", "z"])
    assert (found.after[0].kind, found.after[0].queue, found.after[0].state) == (
        "read",
        "load",
        "pending",
    )
    assert ids(queue.related("a")) == ([], ["c", "middle"])
    (middle,) = [one for one in queue.related("a").before if one.id == "middle"]
    assert (middle.state, middle.tenant, middle.group) == ("waiting", "acme", "g")
    assert ids(queue.related("z")) == (["middle"], [])


def test_nobody_waits_for_a_job_that_is_done(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    queue.enqueue("q", id="b", after=["a"])
    (job,) = queue.claim("q")
    queue.ack(job)
    assert ids(queue.related("a")) == ([], [])
    assert ids(queue.related("b")) == (["a"], [])
    queue.delete("a")
    assert ids(queue.related("b")) == ([], [])


def test_only_the_first_related_jobs_are_listed(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    for n in range(4):
        queue.enqueue("q", id=f"child-{n}", after=["a"])
    assert not queue.related("a", limit=4).more
    found = queue.related("a", limit=3)
    assert (len(found.before), found.more) == (3, True)


def test_the_related_jobs_that_are_listed_are_the_first_by_id(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    for id in ("z", "y", "c", "b"):
        queue.enqueue("q", id=id, after=["a"])
    assert ids(queue.related("a", limit=2)) == ([], ["b", "c"])


def test_a_long_list_of_related_jobs_says_whether_there_are_more(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    queue.enqueue_many([NewJob(queue="q", after=["a"]) for _ in range(1_002)])
    found = queue.related("a", limit=1_001)
    assert (len(found.before), found.more) == (1_001, True)
    found = queue.related("a", limit=1_002)
    assert (len(found.before), found.more) == (1_002, False)
    everything = Grant(queues=("q",))
    granted = store_of(queue).do(ListRelated("a", limit=1_001, grant=everything))
    assert isinstance(granted, Related)
    assert (len(granted.before), granted.more) == (1_001, True)


def test_a_job_that_does_not_exist_is_related_to_nothing(queue: Queue) -> None:
    with pytest.raises(JobNotFound):
        queue.related("nobody")


def test_related_jobs_of_others_are_left_out(queue: Queue) -> None:
    queue.enqueue("q", id="theirs", tenant="b")
    queue.enqueue("q", id="mine", tenant="a", after=["theirs"])
    queue.enqueue("q", id="later", tenant="b", after=["mine"])
    ours = Grant(tenants=("a",))
    found = store_of(queue).do(ListRelated("mine", grant=ours))
    assert isinstance(found, Related)
    assert ids(found) == ([], [])
    hidden = store_of(queue).do(ListRelated("theirs", grant=ours))
    assert isinstance(hidden, JobNotFound)


def test_related_jobs_of_others_take_no_place_of_those_that_are_shown(queue: Queue) -> None:
    queue.enqueue("q", id="parent", tenant="a")
    for n in range(3):
        queue.enqueue("q", id=f"1-theirs-{n}", tenant="b", after=["parent"])
        queue.enqueue("q", id=f"2-mine-{n}", tenant="a", after=["parent"])
    found = store_of(queue).do(ListRelated("parent", limit=2, grant=Grant(tenants=("a",))))
    assert isinstance(found, Related)
    assert (ids(found), found.more) == (([], ["2-mine-0", "2-mine-1"]), True)


def test_jobs_are_found_by_their_unique_key(queue: Queue) -> None:
    queue.enqueue("mail", id="2", unique_key="order-7", tenant="acme")
    queue.enqueue("mail", id="1", unique_key="order-7", tenant="beta")
    queue.enqueue("ship", id="3", unique_key="order-7")
    queue.enqueue("ship", id="4", unique_key="order-8")
    queue.enqueue("ship", id="5", unique_key="order-70")
    assert queue.find_by_key("order-7") == ["1", "2", "3"]
    assert queue.find_by_key("order-7", queue="mail") == ["1", "2"]
    assert queue.find_by_key("order-7", tenant="") == ["3"]
    assert queue.find_by_key("order-7", queue="mail", tenant="acme") == ["2"]
    assert queue.find_by_key("order-7", queue="nowhere") == []
    assert queue.find_by_key("order") == []


def test_a_job_that_has_finished_holds_no_key(queue: Queue) -> None:
    queue.enqueue("mail", id="1", unique_key="k")
    (job,) = queue.claim("mail")
    assert queue.find_by_key("k") == ["1"]
    queue.ack(job)
    assert queue.find_by_key("k") == []


def test_a_key_is_looked_for_in_all_tenants(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tenure.engines.sql.reads", "tenure.engines.foundationdb.reads"):
        monkeypatch.setattr(f"{module}._MOST_KEYED", 3)
    for n in range(10):
        queue.enqueue(f"queue-{n % 2}", id=f"j{n}", unique_key=f"k{n % 3}", tenant=f"tenant-{n}")
    assert queue.find_by_key("k1") == ["j1", "j4", "j7"]
    assert queue.find_by_key("k0", queue="queue-1") == ["j3", "j9"]


def test_a_cursor_of_a_search_by_key_must_be_one(queue: Queue) -> None:
    queue.enqueue("mail", unique_key="k")
    assert isinstance(store_of(queue).do(FindByKey("k", "x")), InvalidInput)


def test_how_long_tenants_wait(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", tenant="acme", group="a")
    clock.advance(2)
    queue.enqueue("mail", tenant="acme", group="b", priority=-1)
    queue.enqueue("mail", tenant="beta", priority=5)
    queue.enqueue("mail", tenant="late", delay=60)
    clock.advance(3)
    queue.enqueue("mail", tenant="beta")
    names = ["acme", "beta", "late", "nobody", "acme"]
    assert queue.longest_waits("mail", names) == {"acme": 5_000, "beta": 3_000}
    assert queue.longest_waits("mail", ["beta"]) == {"beta": 3_000}
    assert queue.longest_waits("mail", []) == {}
    queue.claim("mail", limit=10)
    assert queue.longest_waits("mail", names) == {}
    with pytest.raises(QueueNotFound):
        queue.longest_waits("nowhere", ["acme"])


def test_the_longest_wait_is_that_of_any_priority(queue: Queue, clock: ManualClock) -> None:
    for priority in (5, 5, 0):
        queue.enqueue("mail", tenant="acme", priority=priority)
        clock.advance(1)
    assert queue.longest_waits("mail", ["acme"]) == {"acme": 3_000}
    assert queue.oldest_ready("mail") == clock.now_ms() - 3_000


def test_waits_are_asked_for_a_hundred_tenants_at_most(queue: Queue) -> None:
    queue.enqueue("mail")
    with pytest.raises(InvalidInput, match="tenants"):
        queue.longest_waits("mail", [str(n) for n in range(101)])
    assert LongestWaits("mail", ("",)).tenants == ("",)


def test_the_oldest_of_very_many_groups_is_found(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("mail", tenant="b", group="old", priority=9)
    clock.advance(1)
    queue.enqueue("mail", tenant="b", group="old")
    queue.enqueue("mail", tenant="b", group="old")
    clock.advance(1)
    queue.enqueue_many(NewJob(queue="mail", tenant="a", group=f"g{n}") for n in range(1_100))
    oldest = queue.oldest_ready("mail")
    assert oldest == clock.now_ms() - 2_000
    assert queue.longest_waits("mail", ["a", "b"]) == {"a": 0, "b": 2_000}
