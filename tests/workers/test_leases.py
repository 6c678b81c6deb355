"""A running job keeps its lease, whatever it does; one that has lost it is told to end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import tenure
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, a_place, until

LEASE = 0.5  # seconds
OPTIONS = ("--lease", f"{LEASE}s", "--no-schedule")
# Who keeps the lease of a task that computes gets the interpreter only now and then; on a machine
# that has more to do than it can, that takes its time. So does what a worker does when it wakes.
LONGER = 1.5
ENDLESS: dict[
    tenure.Task[..., None], str | None
] = {  # by how they say that they were told to end; a process cannot say so
    errands.until_told: "cancelled",
    errands.compute_until_told: "Stopped",
    errands.process_until_told: None,
}
EACH = pytest.mark.parametrize("task", ENDLESS, ids=lambda task: task.name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        yield place


@pytest.fixture
def queue(place: Place) -> Iterator[tenure.Queue]:
    """A second worker, as far as the store is concerned."""
    with tenure.connect(settings=tenure.Settings(url=place.url, busy_timeout=0.5)) as queue:
        yield queue


def begun(
    place: Place, queue: tenure.Queue, job: tenure.NewJob, lease: float = LEASE
) -> tuple[WorkerProcess, str]:
    """A worker that runs the job."""
    (id,) = queue.enqueue_many([job])
    worker = WorkerProcess(place, "--lease", f"{lease}s", "--no-schedule").ready()
    place.wait_for("began")
    return worker, id


# Kept -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "lease"),
    [
        (errands.quick.job(5 * LEASE), LEASE),
        (errands.block_until_told.job(), LEASE),
        (errands.compute_until_told.job(), LEASE),
        (errands.process_until_told.job(), LEASE),
        (errands.compute_in_the_loop.job(5 * LONGER), LONGER),
        (errands.compute_without_rest.job(5 * LONGER), LONGER),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_job_that_runs_for_five_leases_is_run_once(
    place: Place, queue: tenure.Queue, job: tenure.NewJob, lease: float
) -> None:
    """Somebody else tries to have it all the while."""
    _, id = begun(place, queue, job, lease)
    end = time.monotonic() + 5 * lease
    while time.monotonic() < end:
        with suppress(tenure.Busy):  # on a busy machine the worker may have the file for long
            assert queue.claim("default") == []
        time.sleep(0.02)
    place.give()
    until(lambda: queue.get(id).state == "done")
    assert queue.get(id).attempts == 1
    assert len(place.events("began")) == len(place.events("did")) == 1


def test_a_worker_that_slept_goes_on_with_a_job_that_nobody_took(
    place: Place, queue: tenure.Queue
) -> None:
    """It has room for more, and does not take its own job away from itself. Only a claim that is
    under way when it falls asleep can do so: it claims every third of a lease, and is stopped
    between."""
    worker, id = begun(place, queue, errands.until_told.job(), LONGER)
    for _ in range(2):
        time.sleep(LONGER * 7 / 6)
        worker.send(signal.SIGSTOP)
        time.sleep(LONGER * 2)
        worker.send(signal.SIGCONT)
    time.sleep(LONGER)
    place.give()
    until(lambda: queue.get(id).state == "done")
    assert queue.get(id).attempts == 1
    assert len(place.events("began")) == 1


# Lost -------------------------------------------------------------------------------------------


def taken_over(worker: WorkerProcess, queue: tenure.Queue) -> tenure.Job:
    """The job that another got while the worker slept; it holds it for long."""
    jobs: list[tenure.Job] = []

    def tried() -> bool:
        try:
            jobs.extend(queue.claim("default", lease=60))
        except tenure.Busy:  # it fell asleep in the middle of a transaction
            worker.send(signal.SIGCONT)
            time.sleep(0.02)
            worker.send(signal.SIGSTOP)
        return jobs != []

    worker.send(signal.SIGSTOP)
    until(tried)
    worker.send(signal.SIGCONT)
    return jobs[0]


def until_ended_early(place: Place, worker: WorkerProcess, task: tenure.Task[..., None]) -> None:
    says = ENDLESS[task]
    if says is not None:
        place.wait_for(says)
    else:
        (began,) = place.events("began")
        assert began.data["pid"] != worker.process.pid
        until(lambda: began.data["pid"] not in place.pids())


@EACH
def test_a_task_whose_lease_was_lost_while_the_worker_slept_is_told_to_end(
    place: Place, queue: tenure.Queue, task: tenure.Task[..., None]
) -> None:
    worker, id = begun(place, queue, task.job("go"))
    ours = taken_over(worker, queue)
    until_ended_early(place, worker, task)
    assert (ours.id, ours.attempts) == (id, 2)
    queue.ack(ours, "ours")

    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    job = queue.get(id)
    assert (job.state, job.result, job.token) == ("done", "ours", ours.token)
    assert place.events("did") == []


@EACH
def test_a_task_whose_job_an_operator_cancels_is_told_to_end(
    place: Place, queue: tenure.Queue, task: tenure.Task[..., None]
) -> None:
    worker, id = begun(place, queue, task.job("go"))
    assert queue.cancel(id) == 1
    until_ended_early(place, worker, task)

    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    assert queue.get(id).state == "cancelled"
    assert place.events("did") == []


@pytest.mark.parametrize("place_of_work", ["loop", "process"])
def test_a_late_result_changes_nothing(
    place: Place, queue: tenure.Queue, place_of_work: str
) -> None:
    """It comes from one that could not be told to end in time."""
    if place_of_work == "loop":
        worker, id = begun(place, queue, errands.block_until_told.job())
        ours = taken_over(worker, queue)
        place.give()
    else:
        worker, id = begun(place, queue, errands.process_until_told.job())
        worker.send(signal.SIGSTOP)  # the process below it goes on, and ends
        place.give()
        place.wait_for("did")
        ours = taken_over(worker, queue)
    place.wait_for("did")
    (later,) = queue.enqueue_many([errands.quick.job()])
    until(lambda: queue.get(later).state == "done")  # after what it had to say

    job = queue.get(id)
    assert (job.state, job.token, job.worker) == ("leased", ours.token, ours.worker)
    queue.ack(ours, "ours")
    assert queue.get(id).result == "ours"


def test_a_worker_that_is_killed_loses_its_job_to_another(
    place: Place, queue: tenure.Queue
) -> None:
    worker, id = begun(place, queue, errands.until_told.job())
    worker.send(signal.SIGKILL)
    worker.wait()
    place.give()
    WorkerProcess(place, *OPTIONS)
    until(lambda: queue.get(id).state == "done")
    assert queue.get(id).attempts == 2
    assert len({event.data["pid"] for event in place.events("began")} - {os.getpid()}) == 2
