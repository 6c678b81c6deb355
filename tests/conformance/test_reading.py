"""Queries: each a read of one snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import InvalidInput, JobNotFound, NewJob, Queue, QueueNotFound, State
from tenure.model import queries
from tenure.model.queries import Counts
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.moves import (
    BIG,
    fill,
    ids,
    make_cancelled,
    make_dead,
    make_done,
    take,
)
from tests.conformance.state import as_dict
from tests.support.sizes import let

pytestmark = pytest.mark.over_http


def pages(queue: Queue, /, **query: Any) -> list[list[str]]:
    """The ids of every page of a list."""
    page = queue.jobs(**query)
    found = [ids(page.jobs)]
    while page.cursor is not None:
        page = queue.jobs(**query, cursor=page.cursor)
        found.append(ids(page.jobs))
    return found


def variety(queue: Queue) -> None:
    """Jobs in every state: a waiting, b delayed, c ready, d leased, e done, f dead, g cancelled."""
    make_done(queue, "e", tenant="acme", kind="x")
    make_dead(queue, "f", tenant="acme", group="g")
    make_cancelled(queue, "g", group="h", kind="x")
    queue.enqueue("q", BIG, id="d", tenant="acme", group="g")
    take(queue)
    queue.enqueue("q", id="c", kind="x")
    queue.enqueue("q", id="b", group="g", delay=60)
    queue.enqueue("r", id="a", tenant="acme", after=["b"])


# One job ----------------------------------------------------------------------------------------


def test_a_job_is_found_by_its_id(queue: Queue) -> None:
    job = queue.enqueue("q", BIG, id="a")
    queue.enqueue("q", id="b")
    assert as_dict(queue.get("a")) == as_dict(job)


def test_an_unknown_id_is_an_error(queue: Queue) -> None:
    queue.enqueue("q", id="a")
    with pytest.raises(JobNotFound) as caught:
        queue.get("A")
    assert caught.value.job_id == "A"


# Lists ------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first(queue: Queue, clock: ManualClock) -> None:
    fill(queue, 3)
    clock.advance(-60)
    queue.enqueue("r", id="last", priority=9)
    assert ids(queue.jobs().jobs) == ["last", "2", "1", "0"]


def test_a_list_has_whole_jobs(queue: Queue) -> None:
    variety(queue)
    for job in queue.jobs().jobs:
        assert as_dict(job) == as_dict(queue.get(job.id))


def test_an_empty_store_lists_nothing(queue: Queue) -> None:
    page = queue.jobs()
    assert (page.jobs, page.cursor) == ([], None)
    for state in State:
        assert queue.jobs(state=state.value).jobs == []


MATCHES: list[tuple[dict[str, Any], str]] = [
    ({}, "abcdgfe"),
    ({"queue": "q"}, "bcdgfe"),
    ({"queue": "r"}, "a"),
    ({"tenant": "acme"}, "adfe"),
    ({"tenant": ""}, "bcg"),
    ({"tenant": "nobody"}, ""),
    ({"group": "g"}, "bdf"),
    ({"group": ""}, "ace"),
    ({"kind": "x"}, "cge"),
    ({"kind": ""}, "abdf"),
    ({"state": "waiting"}, "a"),
    ({"state": "pending"}, "bc"),
    ({"state": "leased"}, "d"),
    ({"state": "done"}, "e"),
    ({"state": "dead"}, "f"),
    ({"state": "cancelled"}, "g"),
    ({"state": ["waiting", "done"]}, "ae"),
    ({"state": ["pending", "leased", "dead"]}, "bcdf"),
    ({"state": list(State)}, "abcdgfe"),
    ({"state": State.DONE, "queue": "r"}, ""),
    ({"queue": "q", "tenant": "acme", "group": "g"}, "df"),
    ({"queue": "q", "tenant": "acme", "group": "g", "state": "dead"}, "f"),
    ({"state": ["done", "cancelled"], "kind": "x", "tenant": "acme"}, "e"),
]


@pytest.mark.parametrize("crowd", [0, 200])
def test_a_list_is_of_what_matches(queue: Queue, crowd: int) -> None:
    # In a crowd, few of many match: an engine may look for them in another way.
    fill(queue, crowd, name="crowd", prefix="crowd", tenant="c", group="c", kind="c")
    variety(queue)
    for where, expected in MATCHES:
        found = ids(queue.jobs(**where, limit=10_000).jobs)
        assert [one for one in found if not one.startswith("crowd")] == list(expected), where


def test_of_one_final_state_the_last_to_finish_is_first(queue: Queue, clock: ManualClock) -> None:
    for name in ("q", "r"):
        fill(queue, 3, name=name, prefix=name)
    jobs = {job.id: job for job in queue.claim(["q", "r"], limit=6)}
    order = ["q1", "r2", "q0", "r0", "q2", "r1"]
    for one in order:
        queue.ack(jobs[one])
        clock.advance(1)
    assert ids(queue.jobs(state="done").jobs) == order[::-1]
    assert ids(queue.jobs(state="done", queue="r").jobs) == ["r1", "r0", "r2"]
    assert pages(queue, state="done", limit=4) == [order[:1:-1], order[1::-1]]


def test_jobs_that_finished_together_are_listed_newest_first(queue: Queue) -> None:
    fill(queue, 5)
    jobs = queue.claim("q", limit=5)
    queue.ack_many(jobs[::-1])
    assert pages(queue, state="done", limit=2) == [["4", "3"], ["2", "1"], ["0"]]


@pytest.mark.parametrize("where", [{}, {"queue": "q"}, {"state": "pending"}, {"state": "dead"}])
def test_pages_hold_every_job_once(queue: Queue, where: Any) -> None:
    fill(queue, 7, prefix="dead")
    for job in queue.claim("q", limit=7):
        queue.fail(job, fatal=True)
    fill(queue, 7)
    fill(queue, 2, name="r", prefix="r")
    for limit in (1, 2, 3, 6, 7, 8):
        found = pages(queue, **where, limit=limit)
        assert [one for page in found for one in page] == ids(queue.jobs(**where).jobs)
        assert all(len(page) == limit for page in found[:-1])
        assert 1 <= len(found[-1]) <= limit


def test_a_page_goes_on_where_the_last_one_ended_whatever_happens(queue: Queue) -> None:
    fill(queue, 6)
    page = queue.jobs(limit=2)
    assert ids(page.jobs) == ["5", "4"]
    queue.enqueue("q", id="new")
    queue.delete(["4", "3"])
    queue.cancel("2")
    assert ids(queue.jobs(limit=10, cursor=page.cursor).jobs) == ["2", "1", "0"]


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "1.2", "1.x", ".", "1.2.3", "1;2", "\0", "9" * 30, "-" + "9" * 30, "9" * 5_000],
)
@pytest.mark.parametrize("state", [None, "pending"])
def test_a_cursor_that_no_list_gave_is_refused(
    queue: Queue, cursor: str, state: str | None
) -> None:
    fill(queue, 3)
    with pytest.raises(InvalidInput, match="cursor"):
        queue.jobs(cursor=cursor, state=state)


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.2.3", f"1.{'9' * 30}", f"-{'9' * 30}.1"])
def test_a_cursor_that_no_list_of_ended_jobs_gave_is_refused(queue: Queue, cursor: str) -> None:
    make_done(queue, "a")
    with pytest.raises(InvalidInput, match="cursor"):
        queue.jobs(cursor=cursor, state="done")


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True, "5"])
def test_a_page_has_a_bound(queue: Queue, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        queue.jobs(limit=limit)
    with pytest.raises(InvalidInput, match="limit"):
        queue.tenants("q", limit=limit)
    with pytest.raises(InvalidInput, match="limit"):
        queue.groups("q", limit=limit)


def test_an_unknown_queue_cannot_be_read(queue: Queue) -> None:
    queue.enqueue("q")
    for read in (
        lambda: queue.stats("nowhere"),
        lambda: queue.jobs(queue="nowhere"),
        lambda: queue.tenants("nowhere"),
        lambda: queue.groups("nowhere"),
    ):
        with pytest.raises(QueueNotFound) as caught:
            read()
        assert caught.value.queue == "nowhere"


# Counts -----------------------------------------------------------------------------------------


def test_jobs_are_counted_by_state(queue: Queue) -> None:
    variety(queue)
    stats = queue.stats()
    assert [getattr(stats, name) for name in Counts.__struct_fields__] == [1] * 7
    assert (stats.pending, stats.unfinished) == (2, 4)
    assert (stats.queues["q"].waiting, stats.queues["r"].waiting) == (0, 1)
    assert queue.stats("r").queues.keys() == {"r"}
    assert queue.stats("r").unfinished == 1


def test_an_empty_store_has_no_counts(queue: Queue) -> None:
    stats = queue.stats()
    assert (stats.unfinished, stats.done, stats.queues) == (0, 0, {})


def test_queues_are_in_the_order_of_their_names(queue: Queue) -> None:
    for name in ("b", "ø", "a", "B", "🫐", "\uffee"):
        queue.enqueue(name)
    assert list(queue.stats().queues) == ["B", "a", "b", "ø", "\uffee", "🫐"]


def test_a_job_is_counted_once_wherever_it_goes(queue: Queue, clock: ManualClock) -> None:
    def counted() -> str:
        (tenant,) = queue.tenants("q")
        (group,) = queue.groups("q", tenant="acme")
        whole = queue.stats("q").queues["q"]
        names = {
            name
            for counts in (whole, tenant, group)
            for name in Counts.__struct_fields__
            if getattr(counts, name)
        }
        (name,) = names
        assert getattr(whole, name) == getattr(tenant, name) == getattr(group, name) == 1
        return name

    queue.enqueue("parents", id="parent")
    queue.enqueue("q", id="a", tenant="acme", group="g", after=["parent"], delay=5)
    assert counted() == "waiting"
    queue.ack(take(queue, "parents"))
    assert counted() == "delayed"
    clock.advance(5)
    queue.maintain()
    assert counted() == "ready"
    job = take(queue)
    assert counted() == "leased"
    queue.fail(job, retry_in=5)
    assert counted() == "delayed"
    clock.advance(5)
    queue.release(take(queue))
    assert counted() == "ready"
    queue.fail(take(queue), fatal=True)
    assert counted() == "dead"
    queue.replay("a")
    assert counted() == "ready"
    queue.cancel("a")
    assert counted() == "cancelled"
    queue.replay("a")
    queue.ack(take(queue))
    assert counted() == "done"


def test_tenants_are_counted_by_name(queue: Queue) -> None:
    variety(queue)
    none, acme = queue.tenants("q")
    assert (none.queue, none.tenant, acme.tenant) == ("q", "", "acme")
    assert (none.ready, none.delayed, none.cancelled, none.unfinished) == (1, 1, 1, 2)
    assert (acme.leased, acme.done, acme.dead, acme.unfinished) == (1, 1, 1, 1)
    assert [one.waiting for one in queue.tenants("r")] == [1]


def test_groups_are_counted_by_name(queue: Queue) -> None:
    variety(queue)
    (acme,) = queue.groups("q", tenant="acme")
    assert (acme.queue, acme.tenant, acme.group) == ("q", "acme", "g")
    assert (acme.leased, acme.dead, acme.done) == (1, 1, 0)
    assert [(one.group, one.unfinished) for one in queue.groups("q")] == [("g", 1), ("h", 0)]
    assert queue.groups("r", tenant="acme") == []
    assert queue.groups("q", tenant="nobody") == []


def test_tenants_and_groups_are_paged_by_name(queue: Queue) -> None:
    names = [f"n{n:02}" for n in range(10)]
    for name in reversed(names):
        queue.enqueue("q", tenant=name)
    queue.enqueue_many(NewJob(queue="q", tenant="t", group=name) for name in reversed(names))
    tenants = [one.tenant for one in queue.tenants("q", limit=4)]
    tenants += [one.tenant for one in queue.tenants("q", limit=4, after=tenants[-1])]
    tenants += [one.tenant for one in queue.tenants("q", limit=4, after=tenants[-1])]
    assert tenants == [*names, "t"]
    groups = [one.group for one in queue.groups("q", tenant="t", limit=7)]
    groups += [one.group for one in queue.groups("q", tenant="t", limit=7, after=groups[-1])]
    assert groups == names
    assert queue.tenants("q", after="zzz") == []
    assert queue.groups("q", tenant="t", after="zzz") == []


def test_the_tenants_after_the_nameless_one_have_names(queue: Queue) -> None:
    queue.enqueue("q")
    queue.enqueue("q", tenant="acme")
    assert [one.tenant for one in queue.tenants("q", after="")] == ["acme"]


# When something is due --------------------------------------------------------------------------


def test_the_next_time_is_of_the_first_delayed_job(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", delay=60)
    queue.enqueue("q", delay=30, tenant="acme")
    queue.enqueue("r", delay=5)
    queue.enqueue("q")
    assert queue.next_due("q") == clock.now_ms() + 30_000
    assert queue.next_due(["q", "r", "unknown"]) == clock.now_ms() + 5_000


def test_the_end_of_a_lease_is_such_a_time(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", delay=60)
    queue.enqueue("q")
    job = take(queue, lease=20)
    assert queue.next_due("q") == clock.now_ms() + 20_000
    queue.ack(job)
    assert queue.next_due("q") == clock.now_ms() + 60_000


def test_nothing_may_be_due(queue: Queue) -> None:
    assert queue.next_due("unknown") is None
    make_done(queue, "a")
    queue.enqueue("q")
    queue.enqueue("q", after=[queue.enqueue("q")])
    assert queue.next_due("q") is None


def test_a_time_that_passed_stays_until_a_claim_saw_to_it(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", delay=1)
    due = queue.next_due("q")
    clock.advance(2)
    assert queue.next_due("q") == due
    take(queue)
    assert queue.next_due("q") != due


# Who waits longest ------------------------------------------------------------------------------


def test_the_job_that_waits_longest_is_found_in_any_lane(queue: Queue, clock: ManualClock) -> None:
    assert queue.oldest_ready("q") is None
    clock.advance(5)
    queue.enqueue("q", tenant="acme", group="g", priority=7)
    since = clock.now_ms()
    clock.advance(5)
    queue.enqueue("q", tenant="acme", group="g", priority=-7)
    queue.enqueue("q", tenant="bolt")
    queue.enqueue("other")
    assert queue.oldest_ready("q") == since
    assert queue.oldest_ready(["q", "other", "unknown"]) == since
    assert queue.oldest_ready("other") == clock.now_ms()


def test_what_is_not_ready_does_not_wait(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", delay=60)
    queue.enqueue("q")
    take(queue)
    make_done(queue, "a")
    assert queue.oldest_ready("q") is None


def test_a_job_waits_from_when_it_was_due(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q", delay=60)
    due = clock.now_ms() + 60_000
    clock.advance(100)
    queue.maintain()
    assert queue.oldest_ready("q") == due


def test_a_job_that_failed_waits_from_when_it_may_be_tried_again(
    queue: Queue, clock: ManualClock
) -> None:
    queue.enqueue("q")
    queue.fail(take(queue), retry_in=10)
    clock.advance(60)
    queue.maintain()
    assert queue.oldest_ready("q") == clock.now_ms() - 50_000


def test_paused_jobs_wait_too(queue: Queue, clock: ManualClock) -> None:
    queue.enqueue("q")
    since = clock.now_ms()
    queue.pause("q")
    clock.advance(60)
    assert queue.oldest_ready("q") == since


def test_a_page_ends_when_its_jobs_are_large_and_the_cursor_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, bytes_of_a_page=50_000)
    let(monkeypatch, jobs_read_at_once=5)
    let(monkeypatch, jobs_read_one_by_one=5)
    for n in range(12):
        queue.enqueue("large", "x" * 20_000, id=f"l{n}")
        queue.enqueue("small", id=f"s{n}")
    page = queue.jobs(queue="large", limit=10)
    assert ids(page.jobs) == ["l11", "l10", "l9"], "the one that reaches the bound is the last"
    found = pages(queue, queue="large", limit=10)
    assert [id for page in found for id in page] == [f"l{n}" for n in reversed(range(12))]
    small = queue.jobs(queue="small", limit=12)
    assert (len(small.jobs), small.cursor) == (12, None)


def test_a_page_of_finished_jobs_counts_their_results(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, bytes_of_a_page=10)
    for n in range(3):
        queue.enqueue("q", id=str(n))
        queue.ack(queue.claim("q")[0], "y" * 1000)
    assert ids(queue.jobs(state="done").jobs) == ["2"], "a page has at least one job"
    assert pages(queue, state="done") == [["2"], ["1"], ["0"]]


# Ids by their start -----------------------------------------------------------------------------


def test_ids_are_found_by_their_start(queue: Queue) -> None:
    names = ["abc", "abc-1", "abc-2", "abd", "ab", "Abc", "abc\U0010ffff", "abc\x01", "äbc", "z"]
    for n, name in enumerate(names):
        queue.enqueue(f"q{n % 2}", id=name, tenant=f"t{n % 3}")
    found = ["abc", "abc\x01", "abc-1", "abc-2", "abc\U0010ffff"]
    assert queue.find_ids("abc") == found
    assert queue.find_ids("abc", limit=2) == found[:2]
    assert queue.find_ids("ä") == ["äbc"]
    assert queue.find_ids("abc-10") == []
    queue.cancel("abc-2")
    queue.delete("abc-1")
    assert queue.find_ids("abc-") == ["abc-2"]


# Counts of some tenants -------------------------------------------------------------------------


def test_counts_can_be_those_of_some_tenants_in_every_queue(queue: Queue) -> None:
    variety(queue)
    queue.enqueue("q", tenant="bolt")
    queue.pause("r")
    assert store_of(queue).do(queries.GetStats(tenants=("acme", "none"))) == [
        queries.QueueStats(queue="q", leased=1, done=1, dead=1),
        queries.QueueStats(queue="r", waiting=1, paused=True),
    ]
    assert store_of(queue).do(queries.GetStats("r", tenants=("bolt", ""))) == [
        queries.QueueStats(queue="r", paused=True)
    ]
    assert store_of(queue).do(queries.GetStats("q", tenants=("", "bolt"))) == [
        queries.QueueStats(queue="q", delayed=1, ready=2, cancelled=1)
    ]
    assert isinstance(store_of(queue).do(queries.GetStats("s", tenants=("acme",))), QueueNotFound)


# Many by their ids --------------------------------------------------------------------------------


def test_jobs_are_looked_up_by_id_in_the_order_given(queue: Queue) -> None:
    variety(queue)
    found = queue.get_many(["g", "nobody", "a", "f", "a"])
    assert found == [queue.get("g"), None, queue.get("a"), queue.get("f"), queue.get("a")]
    assert queue.get_many([]) == []


def test_more_jobs_than_fit_into_a_page_are_looked_up_in_several(queue: Queue) -> None:
    text = "x" * (queries.PAGE_BYTES // 6)
    queue.enqueue_many([NewJob(queue="mail", payload=text, id=f"big-{n}") for n in range(9)])
    wanted = [f"big-{n}" for n in reversed(range(9))]
    (page,) = [store_of(queue).do(queries.GetJobs(tuple(wanted)))]
    assert (len(page.jobs), page.cursor) == (6, "6")
    assert [job and job.id for job in queue.get_many(wanted)] == wanted


def test_many_jobs_are_looked_up_with_few_queries(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many([NewJob(queue="mail", id=f"job-{n}") for n in range(1_500)])
    asked: list[Any] = []
    do = store_of(queue).do

    def counting(wanted: Any) -> Any:
        asked.append(wanted)
        return do(wanted)

    monkeypatch.setattr(store_of(queue), "do", counting)
    assert None not in queue.get_many([f"job-{n}" for n in range(1_500)])
    assert len(asked) == 2


# Several -----------------------------------------------------------------------------------------


def test_queries_that_are_asked_together_find_what_each_finds(queue: Queue) -> None:
    variety(queue)
    wanted = (
        queries.GetStats(),
        queries.GetJob("d"),
        queries.GetJob("none"),
        queries.ListTenants("q"),
        queries.ListLimits(),
    )
    store = store_of(queue)
    found = store.do(queries.Together(wanted))
    assert list(map(str, found)) == [str(store.do(one)) for one in wanted]
    assert isinstance(found[2], JobNotFound)
