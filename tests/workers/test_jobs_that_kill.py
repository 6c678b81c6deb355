"""A job that kills its worker process takes no other job with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tests.server.process import ServiceProcess
from tests.support import postgres
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, a_place, until

OPTIONS = ("--no-schedule", "--concurrency", "10")


@pytest.fixture(params=["sqlite", "postgresql", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        if request.param == "postgresql":
            place.url = postgres.url_of(tmp_path)
            yield place
            place.clean_up()
            postgres.drop(tmp_path)
        elif request.param == "http":
            service = ServiceProcess(tmp_path)
            place.url = service.start().url
            yield place
            place.clean_up()
            service.kill()
        else:
            yield place


@pytest.fixture
def queue(place: Place) -> Iterator[tenure.Queue]:
    with place.queue() as queue:
        yield queue


def all_ended(queue: tenure.Queue, ids: list[str]) -> list[tenure.Job]:
    """Processes start and die several times meanwhile, which takes long on a busy machine."""
    until(lambda: all(queue.get(id).state in ("done", "dead") for id in ids), 120)
    return [queue.get(id) for id in ids]


def test_jobs_that_a_crash_kept_from_starting_lose_no_attempt(
    place: Place, queue: tenure.Queue
) -> None:
    poison, *innocents = queue.enqueue_many(
        [errands.exit_the_worker.using(max_attempts=2).job(13)]
        + [errands.quick.using(max_attempts=1).job() for _ in range(9)]
    )
    worker = WorkerProcess(place, *OPTIONS, "--processes", "2")
    jobs = all_ended(queue, [poison, *innocents])
    assert [job.state for job in jobs] == ["dead"] + ["done"] * 9
    assert len(place.events("killed", poison)) == 2
    worker.send(signal.SIGTERM)
    worker.wait()


@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
def test_a_job_that_kills_its_process_hits_its_neighbours_once(
    place: Place, queue: tenure.Queue
) -> None:
    poison, *innocents = queue.enqueue_many(
        [errands.kill_the_worker_when_told.using(max_attempts=2).job()]
        + [errands.until_told.using(max_attempts=2).job() for _ in range(5)]
    )
    worker = WorkerProcess(place, *OPTIONS, "--processes", "2")
    place.wait_for("began", 6)
    worker.ready(2)  # a process that starts would settle before the supervisor notes the exit code
    place.give("kill")
    place.wait_for("killed")
    place.give()
    jobs = all_ended(queue, [poison, *innocents])
    assert [(job.state, job.attempts) for job in jobs] == [("dead", 2)] + [("done", 2)] * 5
    assert {error.type for job in jobs for error in job.errors} == {"WorkerDied"}
    assert "the worker process died (SIGKILL) while it ran this job" in {
        error.message for error in jobs[0].errors
    }
    worker.send(signal.SIGTERM)
    worker.wait()


def test_a_worker_that_is_started_again_settles_what_its_predecessor_left(
    place: Place, queue: tenure.Queue
) -> None:
    started, waits = queue.enqueue_many(
        [errands.block_until_told.job(), errands.quick.using(max_attempts=1).job()]
    )
    worker = WorkerProcess(place, *OPTIONS)
    place.wait_for("began", id=started)
    until(lambda: queue.get(waits).state == "leased")
    worker.send(signal.SIGKILL)
    worker.wait()
    place.give()
    WorkerProcess(place, *OPTIONS)
    jobs = all_ended(queue, [started, waits])
    assert [(job.state, job.attempts) for job in jobs] == [("done", 2), ("done", 1)]
    (error,) = jobs[0].errors
    assert error.message == "the worker process died while it ran this job"


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_job_that_ends_its_process_with_exit_code_0_has_failed_too(
    place: Place, queue: tenure.Queue
) -> None:
    poison, innocent = queue.enqueue_many(
        [
            errands.exit_the_worker.using(max_attempts=1).job(0),
            errands.quick.using(max_attempts=1).job(),
        ]
    )
    worker = WorkerProcess(place, *OPTIONS, "--processes", "2", "--burst")
    jobs = all_ended(queue, [poison, innocent])
    assert [job.state for job in jobs] == ["dead", "done"]
    assert "the worker process died" in (jobs[0].error or "")
    assert worker.wait(120) == 0
