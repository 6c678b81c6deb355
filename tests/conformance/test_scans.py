"""Lists with a filter that few jobs match: a query looks at a bounded number of jobs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tenure import Queue, State
from tenure.model import queries
from tenure.model.queries import Filter, FindIds, ListJobs
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.conftest import Backend
from tests.conformance.moves import fill
from tests.support.sizes import let


@pytest.fixture
def filled(queue: Queue, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue with a job in question among every ten."""
    let(monkeypatch, jobs_scanned_for_a_page=20)
    let(monkeypatch, jobs_sorted_for_a_page=5)
    for n in range(10):
        fill(queue, 1, prefix=f"rare{n}.", kind="rare", tenant="rare", group="rare")
        fill(queue, 9, prefix=f"{n}.")
    return queue


RARE = [f"rare{n}.0" for n in reversed(range(10))]
FILTERS = [Filter(kind="rare"), Filter("q", tenant="rare"), Filter(group="rare")]
STATES = [State.PENDING, State.LEASED, State.WAITING]


@pytest.mark.parametrize("where", FILTERS, ids=["kind", "tenant", "group"])
def test_a_query_that_stops_early_says_where_to_continue(
    filled: Queue, request: pytest.FixtureRequest, where: Filter
) -> None:
    if request.node.callspec.params["backend"] == "memory":
        pytest.skip("the model looks through everything")
    found: list[str] = []
    pages = 0
    cursor: str | None = None
    while True:
        page = store_of(filled).do(FindIds(where, 100, cursor))
        assert isinstance(page, queries.Ids)
        assert len(page.ids) <= 2
        found += page.ids
        cursor, pages = page.cursor, pages + 1
        if cursor is None:
            break
    assert found == RARE
    assert pages >= 5


@pytest.mark.parametrize("state", [None, *STATES])
@pytest.mark.parametrize("where", FILTERS, ids=["kind", "tenant", "group"])
def test_pages_of_any_size_add_up_to_the_whole(
    filled: Queue, where: Filter, state: State | None
) -> None:
    if state is State.LEASED:  # few of all jobs
        filled.claim("q", tenant="rare", limit=2)
    where = replace(where, states=() if state is None else (state,))
    expected = [id for id in RARE if state in (None, filled.get(id).state)]
    for limit in (1, 2, 3, 100):
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = store_of(filled).do(ListJobs(where, limit, cursor))
            assert isinstance(page, queries.Page)
            found += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == expected


@pytest.mark.parametrize("way", ["all", "end", "error"])
@pytest.mark.parametrize("where", FILTERS, ids=["kind", "tenant", "group"])
def test_a_filter_that_too_many_lanes_match_is_applied_to_each_job(
    filled: Queue, monkeypatch: pytest.MonkeyPatch, where: Filter, way: str
) -> None:
    let(monkeypatch, lanes_that_are_many=0)
    if way != "all":
        filled.fail_many(filled.claim("q", limit=100), ValueError("boom"), fatal=True)
    page = filled.jobs(
        queue=where.queue,
        tenant=where.tenant,
        group=where.group,
        kind=where.kind,
        state="dead" if way == "end" else None,
        error=filled.get(RARE[0]).errors[-1].group if way == "error" else None,
    )
    assert [job.id for job in page.jobs] == RARE


def test_a_call_goes_on_until_its_page_is_full(filled: Queue) -> None:
    page = filled.jobs(kind="rare", limit=4)
    assert [job.id for job in page.jobs] == RARE[:4]
    page = filled.jobs(kind="rare", limit=100, cursor=page.cursor)
    assert [job.id for job in page.jobs] == RARE[4:]
    assert page.cursor is None
    nothing = filled.jobs(kind="none")
    assert (nothing.jobs, nothing.cursor, nothing.scanned_to) == ([], None, None)
    assert nothing.scanned == 100


def test_a_list_by_error_goes_on_until_its_page_is_full(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, jobs_scanned_for_a_page=20)
    let(monkeypatch, jobs_sorted_for_a_page=5)
    for n in range(6):
        fill(queue, 1, prefix=f"rare{n}.", group="rare")
        fill(queue, 9, prefix=f"{n}.")
    for job in queue.claim("q", limit=60):
        queue.fail(job, ValueError("boom"), fatal=True)
    group = queue.get("rare0.0").errors[-1].group
    expected = [f"rare{n}.0" for n in reversed(range(6))]
    page = queue.jobs(group="rare", error=group, limit=4)
    assert [job.id for job in page.jobs] == expected[:4]
    page = queue.jobs(group="rare", error=group, limit=100, cursor=page.cursor)
    assert ([job.id for job in page.jobs], page.cursor) == (expected[4:], None)
    nothing = queue.jobs(kind="none", error=group)
    assert (nothing.jobs, nothing.cursor, nothing.scanned) == ([], None, 60)


def test_a_list_of_several_queues_passes_over_no_job_that_it_has_not_looked_at(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at two jobs of each queue at a time. Those that match in the second queue ended
    before the one that it has not yet found in the first."""
    let(monkeypatch, jobs_scanned_for_a_page=6)
    let(monkeypatch, jobs_sorted_for_a_page=2)
    for name, kind in (("r", "rare"), ("r", "rare"), ("q", "rare"), ("q", ""), ("q", "")):
        queue.enqueue(name, kind=kind)
        queue.ack(queue.claim(name)[0])
        clock.advance(1)
    found: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = store_of(queue).do(ListJobs(Filter(kind="rare", states=(State.DONE,)), 1, cursor))
        assert isinstance(page, queries.Page)
        found += [job.queue for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ["q", "r", "r"]
