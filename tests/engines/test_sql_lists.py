"""How many jobs a list looks at on the engines that share their lists: those that an index has for
its filter, not all. Other engines may look at more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import State
from tenure.model.queries import Filter, ListSummaries, Summaries
from tenure.queue import store_of
from tests.support import postgres


@pytest.fixture(params=["sqlite", "postgres"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tenure.Queue]:
    """A store with jobs in every state, in two queues."""
    on_postgres = request.param == "postgres"
    url = postgres.url_of(tmp_path) if on_postgres else f"sqlite:///{tmp_path}/jobs.db"
    with tenure.connect(url) as queue:
        fill(queue)
        yield queue
    if on_postgres:
        postgres.drop(tmp_path)


def fill(queue: tenure.Queue) -> None:
    """In "mail" and "web": 3 done, 2 dead, 2 cancelled and 3 leased jobs. Then only in "mail": 3
    ready jobs of acme, 1 of bolt, 2 delayed ones and 3 that wait."""
    for name in ("mail", "web"):
        queue.enqueue_many([tenure.NewJob(queue=name) for _ in range(10)])
        jobs = queue.claim(name, limit=10, lease=3600)
        queue.ack_many(jobs[:3])
        for job in jobs[3:5]:
            queue.fail(job, fatal=True)
        for job in jobs[5:7]:
            queue.cancel(job.id)
    for _ in range(3):
        last = queue.enqueue("mail", tenant="acme")
        queue.enqueue("mail", after=[last.id])
    queue.enqueue("mail", tenant="bolt")
    for _ in range(2):
        queue.enqueue("mail", delay=3600)


def looked_at(queue: tenure.Queue, where: Filter, limit: int = 100) -> int:
    page = store_of(queue).do(ListSummaries(where, limit))
    assert isinstance(page, Summaries)
    return page.scanned


FINAL = (State.DONE, State.DEAD, State.CANCELLED)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Filter(states=(State.WAITING,)), 3),
        (Filter(states=(State.PENDING,)), 6),
        (Filter(states=(State.LEASED,)), 6),
        (Filter(states=(State.DONE, State.DEAD)), 10),
        (Filter(states=(State.DEAD, State.CANCELLED)), 8),
        (Filter(states=(State.LEASED, State.WAITING)), 9),
        (Filter("mail", states=(State.LEASED,)), 3),
        (Filter("mail", states=FINAL), 7),
        (Filter("web"), 10),
        (Filter("mail"), 19),
        (Filter("mail", tenant="acme", states=(State.PENDING,)), 5),  # delayed ones of any tenant
        (Filter("mail", tenant="bolt", states=(State.PENDING,)), 3),
        (Filter("mail", tenant="nobody", states=(State.PENDING,)), 0),
    ],
    ids=str,
)
def test_a_list_looks_at_the_jobs_in_its_states(
    queue: tenure.Queue, where: Filter, expected: int
) -> None:
    assert looked_at(queue, where) == expected


@pytest.mark.parametrize(
    ("where", "limit", "expected"),
    [
        (Filter("mail", states=(State.DONE,)), 1, 1),
        (Filter("mail", states=(State.DONE,)), 2, 2),
        (Filter("mail", states=(State.DONE,)), 3, 3),
        (Filter("mail", states=(State.DEAD,)), 9, 2),
        (Filter(states=(State.CANCELLED,)), 9, 4),
        (Filter("mail", group="nothing", states=(State.DONE,)), 9, 0),
        (Filter("mail", tenant="nobody", states=(State.DONE,)), 9, 0),
    ],
    ids=str,
)
def test_a_list_of_ended_jobs_looks_no_further_than_its_page(
    queue: tenure.Queue, where: Filter, limit: int, expected: int
) -> None:
    assert looked_at(queue, where, limit) == expected
