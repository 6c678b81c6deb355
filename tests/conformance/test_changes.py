"""Changes are told to those who listen, at once in one process and soon across handles."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import pytest

from tenure import NewJob, Queue
from tests.conformance.conftest import OpenQueue
from tests.conformance.moves import take

pytestmark = pytest.mark.over_http

PATIENCE = 30.0


class Ears:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[Collection[str] | None] = []
        self.something = threading.Event()

    def __call__(self, queues: Collection[str] | None) -> None:
        self.heard.append(queues)
        self.something.set()

    def forget(self) -> None:
        self.heard.clear()
        self.something.clear()


@pytest.fixture
def ears(queue: Queue) -> Iterator[Ears]:
    ears = Ears()
    stop = queue.changes.listen(ears)
    yield ears
    stop()


def test_an_enqueue_is_told_with_its_queues(queue: Queue, ears: Ears) -> None:
    queue.enqueue_many([NewJob(queue="q"), NewJob(queue="r")])
    assert {"q", "r"} in [set(queues) for queues in ears.heard if queues is not None]


@pytest.mark.parametrize("move", ["ack", "fail", "release"])
def test_what_ends_a_lease_is_told_to_all(queue: Queue, ears: Ears, move: str) -> None:
    queue.enqueue("q")
    job = take(queue)
    ears.forget()
    getattr(queue, move)(job)
    assert None in ears.heard


def test_what_an_operator_does_is_told(queue: Queue, ears: Ears) -> None:
    queue.pause("q")
    ears.forget()
    queue.resume("q")
    assert None in ears.heard


def test_who_stopped_listening_is_told_nothing(queue: Queue) -> None:
    ears = Ears()
    stop = queue.changes.listen(ears)
    stop()
    stop()
    ears.forget()  # the first look at the store may count as a change
    queue.enqueue("q")
    assert ears.heard == []


@pytest.mark.usefixtures("needs_durability")
def test_what_another_handle_commits_is_heard(queue: Queue, open_queue: OpenQueue) -> None:
    other = open_queue()
    ears = Ears()
    stop = queue.changes.listen(ears)
    try:
        for _ in range(3):
            # The first look at the store may count as a change, too.
            ears.forget()
            other.enqueue("q")
            assert ears.something.wait(PATIENCE)
    finally:
        stop()
