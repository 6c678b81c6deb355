"""The process that runs a task is killed from outside, by the kernel when memory is short, say."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tests.crash.journal import Event
from tests.support.audit import audit
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, a_place, children_of, until

OPTIONS = ("--no-schedule", "--concurrency", "3")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        yield place


@pytest.fixture
def queue(place: Place) -> Iterator[tenure.Queue]:
    with place.queue() as queue:
        yield queue


def kill(event: Event) -> None:
    os.kill(event.data["pid"], signal.SIGKILL)


def begun(place: Place, id: str, attempt: int = 1) -> Event:
    """What an attempt says of itself, once it has begun."""
    return max(place.wait_for("began", attempt, id), key=lambda event: event.token)


def ended(queue: tenure.Queue, id: str) -> tenure.Job:
    until(lambda: queue.get(id).state in ("done", "dead"))
    return queue.get(id)


def stopped(place: Place, worker: WorkerProcess) -> None:
    """It goes on until it is told to stop, and leaves nothing behind."""
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    until(lambda: place.pids() == [])  # a process that was told to end takes a moment
    assert audit(place.folder / "jobs.db") == []


def test_a_job_whose_process_is_killed_is_tried_again_by_the_same_worker(
    place: Place, queue: tenure.Queue
) -> None:
    worker = WorkerProcess(place, *OPTIONS).ready()
    (id, other) = queue.enqueue_many(
        [errands.process_until_told.job(), errands.process_until_told.job("other")]
    )
    first, beside = begun(place, id), begun(place, other)
    kill(first)
    second = begun(place, id, attempt=2)
    assert (second.data["attempt"], second.data["worker"]) == (2, first.data["worker"])
    assert second.token > first.token
    assert second.data["pid"] not in (first.data["pid"], beside.data["pid"])
    place.give()
    place.give("other")
    job = ended(queue, id)
    assert (job.state, job.attempts) == ("done", 2)
    assert [error.type for error in job.errors] == ["tenure.worker.processes.ProcessDied"]
    assert "exit code -9" in job.errors[0].message
    assert (ended(queue, other).state, queue.get(other).attempts) == ("done", 1)
    stopped(place, worker)


def test_a_job_that_was_killed_as_often_as_it_may_be_tried_is_dead_and_the_worker_goes_on(
    place: Place, queue: tenure.Queue
) -> None:
    worker = WorkerProcess(place, *OPTIONS).ready()
    (id,) = queue.enqueue_many([errands.process_until_told.using(max_attempts=2).job()])
    for attempt in (1, 2):
        kill(begun(place, id, attempt))
    job = ended(queue, id)
    assert (job.state, job.attempts, len(job.errors)) == ("dead", 2, 2)
    (after,) = queue.enqueue_many([errands.quick_in_a_process.job()])
    assert ended(queue, after).state == "done"
    assert len(place.events("began", id)) == 2
    stopped(place, worker)


def test_a_process_that_is_killed_between_two_jobs_costs_neither_an_attempt(
    place: Place, queue: tenure.Queue
) -> None:
    worker = WorkerProcess(place, *OPTIONS).ready()
    (id,) = queue.enqueue_many([errands.quick_in_a_process.job()])
    assert ended(queue, id).attempts == 1
    (did,) = place.wait_for("did", id=id)
    kill(did)
    until(lambda: did.data["pid"] not in children_of(worker.process.pid) or _is_dead(did))
    (after,) = queue.enqueue_many([errands.quick_in_a_process.job()])
    job = ended(queue, after)
    assert (job.state, job.attempts, job.errors) == ("done", 1, ())
    stopped(place, worker)


def test_a_process_that_is_killed_before_it_takes_the_next_job_costs_it_no_attempt(
    place: Place, queue: tenure.Queue
) -> None:
    worker = WorkerProcess(place, *OPTIONS).ready()
    (id,) = queue.enqueue_many([errands.quick_in_a_process.job()])
    ended(queue, id)
    (did,) = place.wait_for("did", id=id)
    os.kill(did.data["pid"], signal.SIGSTOP)  # alive, but it takes nothing
    (after,) = queue.enqueue_many([errands.quick_in_a_process.job()])
    until(lambda: queue.get(after).state == "leased")
    kill(did)
    job = ended(queue, after)
    assert (job.state, job.attempts, job.errors) == ("done", 1, ())
    stopped(place, worker)


def _is_dead(event: Event) -> bool:
    """A process that was killed stays in the list until its parent asks for it."""
    stat = Path(f"/proc/{event.data['pid']}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
