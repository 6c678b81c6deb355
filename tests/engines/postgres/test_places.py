"""An acknowledgement goes straight to the place of a job that was claimed here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import LeaseLost, Queue, State
from tenure.engines.postgres.claimed_places import Places
from tests.support import postgres
from tests.support.sizes import let


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        yield queue
    postgres.give_back(tmp_path)


def test_places_are_given_for_all_of_the_jobs_or_for_none() -> None:
    known = Places()
    known.note([("a", 1), ("b", 2), ("c", 3)])
    assert known.take(["b", "a"]) == [2, 1]
    assert known.take(["a"]) is None
    assert known.take(["c", "d"]) is None


def test_places_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, claimed_places_remembered=2)
    known = Places()
    known.note([("a", 1), ("b", 2)])
    known.note([("c", 3)])
    assert known.take(["a"]) is None
    assert known.take(["c"]) == [3]


def test_an_old_lease_does_not_end_a_job_that_was_made_anew_under_the_same_id(
    queue: Queue,
) -> None:
    queue.enqueue("q", id="a")
    (old,) = queue.claim("q")
    queue.delete("a")
    queue.enqueue("q", id="a")
    with pytest.raises(LeaseLost):
        queue.ack(old)
    (new,) = queue.claim("q")
    with pytest.raises(LeaseLost):
        queue.ack(old)  # with the place of the new one
    assert queue.get("a").state is State.LEASED
    queue.ack(new)
    assert queue.get("a").state is State.DONE


def test_the_children_of_a_job_that_was_claimed_here_are_told(queue: Queue) -> None:
    queue.enqueue("q", id="parent")
    (parent,) = queue.claim("q")
    queue.enqueue("q", id="child", after=["parent"])
    queue.ack(parent)
    assert [job.id for job in queue.claim("q")] == ["child"]
