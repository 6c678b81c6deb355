"""Lists by each filter: what they find, how far they looked, and what a summary leaves out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import InvalidInput, Queue, State
from tenure.model.queries import Filter, FindIds, ListSummaries
from tenure.model.summary import PREVIEW, summary_of
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Backend
from tests.conformance.moves import fill
from tests.support.sizes import let


def moment(clock: ManualClock, seconds: float = 0) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(seconds=seconds)


def ids(page: Any) -> list[str]:
    return [job.id for job in page.jobs]


@pytest.fixture
def story(queue: Queue, clock: ManualClock) -> Queue:
    """Six jobs, a minute apart; the first three were worked on in turn."""
    for n in range(6):
        queue.enqueue("mail" if n % 2 else "web", {"n": n}, id=f"j{n}")
        clock.advance(60)
    (first,) = queue.claim("web", worker="ann", lease=3600)
    queue.ack(first, {"sent": True})
    clock.advance(60)
    (second,) = queue.claim("mail", worker="bob", lease=3600)
    queue.fail(second, ValueError("x" * 1000), fatal=True)
    clock.advance(60)
    queue.claim("web", worker="bob", lease=3600)
    return queue


def test_jobs_are_found_by_when_they_were_created(story: Queue, clock: ManualClock) -> None:
    start = moment(clock, -480)
    assert ids(story.jobs(created_after=start)) == ["j5", "j4", "j3", "j2", "j1", "j0"]
    second, fourth = start + timedelta(seconds=60), start + timedelta(seconds=180)
    assert ids(story.jobs(created_after=second, created_before=fourth)) == ["j2", "j1"]
    assert ids(story.jobs(created_before=second, queue="web")) == ["j0"]
    assert ids(story.jobs(created_before=start)) == []
    assert ids(story.jobs(state="dead", created_after=fourth)) == []
    assert ids(story.jobs(state="dead", created_before=fourth)) == ["j1"]


def test_jobs_are_found_by_when_they_finished(story: Queue, clock: ManualClock) -> None:
    a_minute_ago = moment(clock, -60)
    assert ids(story.jobs(finished_after=a_minute_ago)) == ["j1"]
    assert ids(story.jobs(finished_before=a_minute_ago)) == ["j0"]
    assert ids(story.jobs(finished_before=a_minute_ago, state="dead")) == []
    assert ids(story.jobs(finished_after=a_minute_ago, state="dead")) == ["j1"]
    assert ids(story.jobs(finished_after=moment(clock), state="dead")) == []
    assert ids(story.jobs(finished_before=moment(clock), state=["done", "dead"])) == ["j1", "j0"]


def test_jobs_are_found_by_their_worker(story: Queue) -> None:
    assert ids(story.jobs(worker="bob")) == ["j2", "j1"]
    assert ids(story.jobs(worker="bob", state="leased")) == ["j2"]
    assert ids(story.jobs(worker="ann", state="done")) == ["j0"]
    assert ids(story.jobs(worker="nobody")) == []


def test_jobs_are_found_by_their_error_group(story: Queue, clock: ManualClock) -> None:
    queued = story.get("j1")
    group = queued.errors[-1].group
    assert len(group) == 12
    assert ids(story.jobs(error=group)) == ["j1"]
    assert ids(story.jobs(error=group, state="dead", queue="mail")) == ["j1"]
    assert ids(story.jobs(error=group, queue="web")) == []
    assert ids(story.jobs(error=group, finished_after=moment(clock, -60))) == ["j1"]
    assert ids(story.jobs(error=group, finished_after=moment(clock))) == []
    assert ids(story.jobs(error="0" * 12)) == []
    story.enqueue("mail", id="again", max_attempts=1, priority=-1)
    (job,) = story.claim("mail", worker="ann")
    story.fail(job, ValueError("x" * 1000))
    assert job.id == "again"
    page = story.summaries(error=group, limit=1)
    assert ids(page) == ["again"]
    page = story.summaries(error=group, limit=1, cursor=page.cursor)
    assert (ids(page), page.cursor) == (["j1"], None)
    assert page.jobs[0].error is not None
    assert page.jobs[0].error.group == group


@pytest.mark.parametrize(
    "where", [{"state": "dead"}, {"tenant": "acme"}, {"group": "g"}, {"worker": "ann"}], ids=str
)
def test_jobs_of_an_error_group_are_narrowed_by_each_filter(
    queue: Queue, where: dict[str, Any]
) -> None:
    options = {name: where[name] for name in ("tenant", "group") if name in where}
    for worker, mine in (("ann", options), ("bob", {})):
        queue.enqueue("mail", id=worker, **mine)
        (job,) = queue.claim("mail", worker=worker)
        fatal = worker == "ann" or "state" not in where
        queue.fail(job, ValueError("boom"), fatal=fatal, retry_in=60)
    error = queue.get("ann").errors[-1].group
    assert sorted(ids(queue.jobs(error=error))) == ["ann", "bob"]
    assert ids(queue.jobs(error=error, **where)) == ["ann"]


def test_a_summary_has_all_of_a_job_that_is_small(story: Queue) -> None:
    page = story.summaries()
    assert page.jobs == [summary_of(story.get(job_id)) for job_id in ids(page)]
    done, dead = page.jobs[-1], page.jobs[-2]
    assert (done.payload_preview, done.payload_bytes) == ('{"n":0}', 7)
    assert done.has_result
    assert done.error is None
    assert dead.error is not None
    assert (dead.error.type, dead.error.message) == ("ValueError", "x" * PREVIEW)
    assert not dead.has_result


@pytest.mark.parametrize("size", [199, 200, 201, 90_000, 300_000])
@pytest.mark.parametrize("letter", ["x", "ü", "🦆"])
def test_the_preview_of_a_payload_is_cut(queue: Queue, size: int, letter: str) -> None:
    text = letter * (size // len(letter.encode()))
    parent = queue.enqueue("q", id="parent")
    queue.enqueue("q", text, id="j", after=[parent], delay=5)
    (summary, _) = queue.summaries().jobs
    assert summary.payload_preview == f'"{text}"'[:PREVIEW]
    assert summary.payload_bytes == len(text.encode()) + 2
    assert (summary.parents, summary.state) == (1, State.WAITING)


def test_a_summary_of_a_job_with_many_parents(queue: Queue) -> None:
    parents = fill(queue, 3_000, prefix="a-parent-with-a-rather-long-name-that-fills-parts-")
    queue.enqueue("q", "x" * 5_000, id="j", after=parents)
    summary = queue.summaries(state="waiting").jobs[0]
    assert (summary.parents, summary.payload_bytes) == (3_000, 5_002)


FILTERS: list[dict[str, Any]] = [
    {"kind": "rare"},
    {"queue": "q", "kind": "rare"},
    {"queue": "q", "tenant": "rare"},
    {"group": "rare", "state": "pending"},
    {"queue": "q", "state": "done", "kind": "rare"},
    {"state": "done", "tenant": "rare"},
    {"state": "done", "worker": "rare"},
]


@pytest.fixture(params=[0, 1_000], ids=["by scan", "by index"])
def many(
    queue: Queue,
    clock: ManualClock,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Queue:
    """Among every ten jobs, two in question, one of which is done; in two queues."""
    let(monkeypatch, jobs_scanned_for_a_page=20)
    let(monkeypatch, jobs_sorted_for_a_page=request.param)
    for n in range(10):
        rare = {"kind": "rare", "tenant": "rare", "group": "rare"}
        fill(queue, 1, prefix=f"done{n}.", priority=-1, **rare)
        queue.ack_many(queue.claim("q", tenant="rare", worker="rare"))
        fill(queue, 1, prefix=f"live{n}.", **rare)
        fill(queue, 8, prefix=f"{n}.")
        queue.ack_many(queue.claim("q", tenant="", worker="w", limit=4))
        queue.enqueue("other", id=f"other{n}")
        clock.advance(60)
    return queue


@pytest.mark.parametrize("where", FILTERS, ids=lambda where: "-".join(where))
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_add_up_and_say_how_far_they_looked(
    many: Queue, where: dict[str, Any], limit: int
) -> None:
    done, live = ([f"{one}{n}.0" for n in reversed(range(10))] for one in ("done", "live"))
    both = [id for pair in zip(live, done, strict=True) for id in pair]
    expected = {"done": done, "pending": live, None: both}[where.get("state")]
    found: list[str] = []
    cursor: str | None = None
    last = 2**62
    while True:
        page = many.summaries(**where, limit=limit, cursor=cursor)
        found += ids(page)
        assert page.scanned >= len(page.jobs)
        cursor = page.cursor
        assert (page.scanned_to is None) == (cursor is None)
        if cursor is None:
            break
        assert page.jobs or page.scanned
        assert page.scanned_to is not None
        assert page.scanned_to <= last
        last = page.scanned_to
    assert found == expected


def test_a_list_by_time_skips_what_is_newer_and_stops_at_what_is_older(
    many: Queue, clock: ManualClock, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["backend"] == "memory":
        pytest.skip("the model looks through everything")
    clock.advance(3600)
    fill(many, 50, prefix="new.")
    clock.advance(3600)
    fill(many, 50, prefix="newer.")
    page = store_of(many).do(
        ListSummaries(Filter(created_before=clock.now_ms() - 5_400_000), limit=3)
    )
    assert ids(page) == ["other9", "9.7", "9.6"]
    an_hour_ago = clock.now_ms() - 3_600_000
    where = Filter(created_after=an_hour_ago, created_before=an_hour_ago + 1, kind="-")
    looked, cursor = 0, None
    while True:
        found = store_of(many).do(FindIds(where, cursor=cursor))
        looked, cursor = looked + found.scanned, found.cursor
        if cursor is None:
            break
    assert 50 <= looked <= 60  # a queue that is small is looked through


def test_a_filter_by_time_needs_a_time_with_a_zone(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="created_after"):
        queue.jobs(created_after=datetime(2026, 1, 1))  # noqa: DTZ001


def test_matching_jobs_are_counted_by_counters_or_by_looking(story: Queue) -> None:
    for where, count in (
        ({"queue": "mail"}, 3),
        ({"queue": "mail", "state": "pending"}, 2),
        ({"state": ["done", "dead"]}, 2),
        ({"queue": "mail", "tenant": ""}, 3),
        ({"queue": "mail", "tenant": "nobody"}, 0),
        ({"queue": "mail", "kind": ""}, 3),
        ({"worker": "bob"}, 2),
    ):
        found = story.count_matching(**where)
        assert (found.count, found.exact, len(found.sample)) == (count, True, count), where


def test_a_count_that_is_not_finished_says_at_least(
    many: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, scans_of_a_bulk_filter=1)
    found = many.count_matching(kind="rare")
    assert found.count <= 20
    assert found.exact == (found.count == 20)
