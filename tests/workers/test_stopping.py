"""How a worker process is stopped: gracefully, at once, together with its siblings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.cli.workers import run_until_signal
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, a_place, children_of, until

SAME_SIGNAL_SECONDS = 0.5  # two signals that come closer count as one
BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        yield place


@pytest.fixture
def queue(place: Place) -> Iterator[tenure.Queue]:
    with place.queue() as queue:
        yield queue


def enqueued(queue: tenure.Queue, *jobs: tenure.NewJob) -> list[str]:
    return list(queue.enqueue_many(jobs))


def as_it_was(queue: tenure.Queue, id: str) -> bool:
    """Whether the job is ready, with all its attempts."""
    job = queue.get(id)
    return (job.state, job.attempts) == ("pending", 0)


def a_moment_later() -> None:
    """So that the next signal counts as another one."""
    time.sleep(SAME_SIGNAL_SECONDS + 0.1)


def one_of_each() -> list[tenure.NewJob]:
    tasks = (errands.until_told, errands.compute_until_told, errands.process_until_told)
    return [task.job() for task in tasks]


# The first signal -------------------------------------------------------------------------------


@BOTH
def test_what_runs_is_finished_and_nothing_new_is_begun(
    place: Place, queue: tenure.Queue, number: signal.Signals
) -> None:
    running = enqueued(queue, *one_of_each())
    worker = WorkerProcess(place, "--concurrency", "3").ready()
    place.wait_for("began", 3)
    (late,) = enqueued(queue, errands.quick.job())
    worker.send(number)
    worker.stopping()
    place.give()

    assert worker.wait() == 0, worker.log
    assert [queue.get(id).state for id in running] == ["done"] * 3
    assert as_it_was(queue, late)
    assert len(place.events("began")) == 3


def test_a_free_worker_begins_nothing_once_it_was_told_to_stop(
    place: Place, queue: tenure.Queue
) -> None:
    """It would have room."""
    enqueued(queue, errands.until_told.job())
    worker = WorkerProcess(place, "--concurrency", "5").ready()
    place.wait_for("began")
    worker.send(signal.SIGTERM)
    worker.stopping()
    (late,) = enqueued(queue, errands.quick.job())
    time.sleep(0.2)  # several times what an idle worker needs to begin
    place.give()

    assert worker.wait() == 0, worker.log
    assert as_it_was(queue, late)


@BOTH
def test_what_does_not_end_within_the_grace_time_is_given_back_with_its_attempt(
    place: Place, queue: tenure.Queue, number: signal.Signals
) -> None:
    running = enqueued(queue, *one_of_each())
    worker = WorkerProcess(place, "--grace", "100ms").ready()
    place.wait_for("began", 3)
    worker.send(number)

    assert worker.wait() == 0, worker.log
    assert all(as_it_was(queue, id) for id in running)
    assert len(place.events("cancelled")) == 1
    assert len(place.events("Stopped")) == 1
    assert place.events("did") == []


def test_what_takes_no_notice_is_given_back_all_the_same(place: Place, queue: tenure.Queue) -> None:
    (id,) = enqueued(queue, errands.never_mind_cancelling.job())
    worker = WorkerProcess(place, "--grace", "100ms").ready()
    place.wait_for("began")
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0, worker.log
    assert place.events("cancelled") != []
    assert as_it_was(queue, id)


def test_a_thread_that_a_task_left_behind_does_not_hold_the_worker_up(
    place: Place, queue: tenure.Queue
) -> None:
    running = enqueued(queue, *[errands.hold_a_thread_of_the_loop.job() for _ in range(50)])
    worker = WorkerProcess(place, "--grace", "100ms", "--concurrency", "50").ready()
    place.wait_for("began", 50)
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0, worker.log
    assert all(as_it_was(queue, id) for id in running)


def test_a_worker_whose_loop_stays_blocked_gives_its_jobs_back_after_one_signal(
    place: Place, queue: tenure.Queue
) -> None:
    (id,) = enqueued(queue, errands.block_until_told.job())
    worker = WorkerProcess(place, "--grace", "100ms").ready()
    place.wait_for("began")
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0, worker.log
    assert as_it_was(queue, id)


def test_a_worker_whose_loop_is_blocked_for_a_while_finishes_what_it_does(
    place: Place, queue: tenure.Queue
) -> None:
    (id,) = enqueued(queue, errands.block_until_told.job())
    worker = WorkerProcess(place).ready()
    place.wait_for("began")
    worker.send(signal.SIGTERM)
    worker.stopping()
    place.give()

    assert worker.wait() == 0, worker.log
    assert queue.get(id).state == "done"


def test_two_signals_in_one_moment_are_one(place: Place, queue: tenure.Queue) -> None:
    """As when a shell passes on what the terminal has sent to all."""
    (id,) = enqueued(queue, errands.until_told.job())
    worker = WorkerProcess(place).ready()
    place.wait_for("began")
    worker.send(signal.SIGINT)
    worker.send(signal.SIGTERM)
    worker.stopping()
    a_moment_later()
    assert not worker.ended()
    place.give()

    assert worker.wait() == 0, worker.log
    assert queue.get(id).state == "done"


def test_a_signal_to_the_whole_group_leaves_a_process_time_to_finish(
    place: Place, queue: tenure.Queue
) -> None:
    """As Ctrl-C or a service manager sends it: the worker decides what it means."""
    (id,) = enqueued(queue, errands.process_until_told.job())
    worker = WorkerProcess(place).ready()
    place.wait_for("began")
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(worker.process.pid, number)
    worker.stopping()
    place.give()

    assert worker.wait() == 0, worker.log
    job = queue.get(id)
    assert (job.state, job.attempts) == ("done", 1)


HASTY = """
import logging, os, signal, tenure
app = tenure.Tenure("sqlite:///jobs.db")

@app.task
def work() -> None: ...

def stop_at_once(record: logging.LogRecord) -> bool:
    if " works on " in record.getMessage():
        os.kill(os.getpid(), signal.{number})
    return True

logging.getLogger("tenure.worker").addFilter(stop_at_once)
"""


@BOTH
def test_a_signal_in_the_moment_in_which_a_worker_starts_is_heeded(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "hasty.py").write_text(HASTY.replace("{number}", number.name))
    done = subprocess.run(
        [sys.executable, "-m", "tenure", "worker", "hasty:app"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "stopping: no job is running" in done.stderr) == (0, True), done


# The second signal ------------------------------------------------------------------------------


@BOTH
def test_a_second_signal_gives_everything_back_at_once(
    place: Place, queue: tenure.Queue, number: signal.Signals
) -> None:
    running = enqueued(queue, *one_of_each())
    worker = WorkerProcess(place).ready()
    place.wait_for("began", 3)
    worker.send(signal.SIGTERM)
    worker.stopping()
    a_moment_later()
    worker.send(number)

    assert worker.wait() == 130, worker.log
    assert all(as_it_was(queue, id) for id in running)
    until(lambda: place.pids() == [])  # the process that ran a task has ended as well


def test_a_second_signal_is_heard_while_the_loop_is_blocked(
    place: Place, queue: tenure.Queue
) -> None:
    running = enqueued(queue, errands.compute_until_told.job(), errands.block_until_told.job())
    worker = WorkerProcess(place).ready()
    place.wait_for("began", 2)
    worker.send(signal.SIGTERM)
    worker.stopping()
    a_moment_later()
    worker.send(signal.SIGTERM)

    assert worker.wait() == 130, worker.log
    assert all(as_it_was(queue, id) for id in running)


def test_a_second_signal_loses_no_result_that_waits_for_a_blocked_loop(
    place: Place, queue: tenure.Queue
) -> None:
    jobs = [errands.quick_in_a_thread.job(0.2), errands.block_until_told.job()]
    ended, running = enqueued(queue, *jobs)
    worker = WorkerProcess(place).ready()
    place.wait_for("did")
    place.wait_for("began", id=running)
    worker.send(signal.SIGTERM)
    worker.stopping()
    a_moment_later()
    worker.send(signal.SIGTERM)

    assert worker.wait() == 130, worker.log
    assert queue.get(ended).state == "done"
    assert as_it_was(queue, running)


# Several processes ------------------------------------------------------------------------------


@BOTH
def test_a_supervisor_passes_a_signal_on_to_all(
    place: Place, queue: tenure.Queue, number: signal.Signals
) -> None:
    running = enqueued(queue, *[errands.until_told.job() for _ in range(2)])
    worker = WorkerProcess(place, "--processes", "2", "--concurrency", "1").ready(2)
    began = place.wait_for("began", 2)
    assert {event.data["pid"] for event in began} == set(children_of(worker.process.pid))
    worker.send(number)
    until(lambda: worker.log.count("stopping: ") == 2)
    place.give()

    assert worker.wait() == 0, worker.log
    assert [queue.get(id).state for id in running] == ["done"] * 2
    assert place.pids() == []


def test_a_supervisor_passes_on_the_second_signal_too(place: Place, queue: tenure.Queue) -> None:
    running = enqueued(queue, *[errands.until_told.job() for _ in range(2)])
    worker = WorkerProcess(place, "--processes", "2", "--concurrency", "1").ready(2)
    place.wait_for("began", 2)
    worker.send(signal.SIGTERM)
    until(lambda: worker.log.count("stopping: ") == 2)
    a_moment_later()
    worker.send(signal.SIGTERM)

    assert worker.wait() == 130, worker.log
    assert all(as_it_was(queue, id) for id in running)
    assert place.pids() == []


def test_a_supervisor_replaces_a_process_that_was_killed(place: Place, queue: tenure.Queue) -> None:
    worker = WorkerProcess(place, "--processes", "2", "--concurrency", "1", "--lease", "500ms")
    worker.ready(2)
    ids = enqueued(queue, *[errands.until_told.job() for _ in range(2)])
    victim = place.wait_for("began", 2)[0]
    os.kill(victim.data["pid"], signal.SIGKILL)
    again = place.wait_for("began", 2, victim.id)[-1]
    assert again.data["pid"] not in (victim.data["pid"], worker.process.pid)
    assert again.data["attempt"] == 2
    place.give()
    until(lambda: all(queue.get(id).state == "done" for id in ids))
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0, worker.log
    assert place.pids() == []


def test_processes_stop_when_their_supervisor_is_killed(place: Place, queue: tenure.Queue) -> None:
    """Gracefully: they finish what they do."""
    ids = enqueued(queue, *[errands.until_told.job() for _ in range(2)])
    worker = WorkerProcess(place, "--processes", "2", "--concurrency", "1").ready(2)
    place.wait_for("began", 2)
    worker.send(signal.SIGKILL)
    until(lambda: worker.log.count("stopping: ") == 2)
    (late,) = enqueued(queue, errands.quick.job())
    place.give()

    until(lambda: place.pids() == [])
    assert [queue.get(id).state for id in ids] == ["done"] * 2
    assert as_it_was(queue, late)


def test_a_process_that_runs_a_task_ends_when_its_worker_is_killed(
    place: Place, queue: tenure.Queue
) -> None:
    """Somebody else will run the job; two at once help nobody."""
    enqueued(queue, errands.process_until_told.job())
    worker = WorkerProcess(place).ready()
    place.wait_for("began")
    worker.send(signal.SIGKILL)
    worker.wait()

    until(lambda: place.pids() == [])


# Ends of its own accord -------------------------------------------------------------------------


def test_a_burst_ends_when_nothing_is_ready(place: Place, queue: tenure.Queue) -> None:
    ids = enqueued(queue, *[errands.quick.job() for _ in range(25)], errands.fail.job())
    later = enqueued(queue, errands.quick.using(delay=3600).job())
    worker = WorkerProcess(place, "--burst", "--concurrency", "4")

    assert worker.wait() == 0, worker.log
    assert [queue.get(id).state for id in ids[:-1]] == ["done"] * 25
    assert all(as_it_was(queue, id) for id in later)


def test_a_burst_of_several_processes_ends(place: Place, queue: tenure.Queue) -> None:
    ids = enqueued(queue, *[errands.quick.job() for _ in range(25)])
    worker = WorkerProcess(place, "--burst", "--processes", "2")

    assert worker.wait() == 0, worker.log
    assert [queue.get(id).state for id in ids] == ["done"] * 25


def test_a_worker_ends_after_so_many_jobs(place: Place, queue: tenure.Queue) -> None:
    enqueued(queue, *[errands.quick.job() for _ in range(10)])
    worker = WorkerProcess(place, "--max-jobs", "4", "--concurrency", "3")

    assert worker.wait() == 0, worker.log
    found = queue.stats("default")
    assert (found.done, found.ready, found.leased) == (4, 6, 0)


def test_a_supervisor_starts_anew_who_has_done_so_many_jobs(
    place: Place, queue: tenure.Queue
) -> None:
    enqueued(queue, *[errands.quick.job() for _ in range(10)])
    worker = WorkerProcess(place, "--max-jobs", "3", "--processes", "2")
    until(lambda: queue.stats("default").done == 10)
    worker.send(signal.SIGTERM)

    worker.wait()
    pids = {event.data["pid"] for event in place.events("did")}
    assert len(pids) >= 4, worker.log


# Starting anew ----------------------------------------------------------------------------------

TASKS = """
import tenure
app = tenure.Tenure()
@app.task
async def version() -> int:
    return {}
"""


def test_a_worker_starts_anew_when_a_file_changes(place: Place, queue: tenure.Queue) -> None:
    project = place.folder / "project"
    project.mkdir()
    source = project / "mine.py"
    source.write_text(TASKS.format(1))
    worker = WorkerProcess(place, "--reload", app="mine:app", cwd=project).ready()

    def result_of(id: str) -> object:
        until(lambda: queue.get(id).state == "done")
        return queue.get(id).result

    assert result_of(queue.enqueue("default", {}, kind="version").id) == 1
    source.write_text(TASKS.format(2))
    os.utime(source, (time.time() + 10, time.time() + 10))  # in case the clock is coarse
    until(lambda: "changed: restarting" in worker.log)
    worker.ready(2)
    assert result_of(queue.enqueue("default", {}, kind="version").id) == 2
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0, worker.log


def test_a_worker_that_reloads_waits_until_an_app_can_be_imported_again(
    place: Place, queue: tenure.Queue
) -> None:
    project = place.folder / "project"
    project.mkdir()
    source = project / "mine.py"
    source.write_text(TASKS.format(1))
    worker = WorkerProcess(place, "--reload", app="mine:app", cwd=project).ready()
    source.write_text(TASKS.format("") + "def f(:")
    os.utime(source, (time.time() + 10, time.time() + 10))
    until(lambda: "waiting for a file to change" in worker.log)
    time.sleep(1.5)  # in which it would be started again
    assert worker.log.count("SyntaxError") == 1
    assert "importlib" not in worker.log
    source.write_text(TASKS.format(2))
    os.utime(source, (time.time() + 20, time.time() + 20))
    worker.ready(2)
    job = queue.enqueue("default", {}, kind="version")
    until(lambda: queue.get(job.id).state == "done")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.log


# What cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("tests.workers.errands:nothing", "tests.workers.errands has no 'nothing'"),
        ("tests.workers.errands:quick", "is of type Task, not a Tenure app"),
        ("tests.workers.errands:FOLDER", "is of type str, not a Tenure app"),
        (":app", "is not MODULE:APP"),
    ],
)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_app_that_is_not_there_is_an_error_that_says_so(
    place: Place, app: str, says: str, processes: str
) -> None:
    worker = WorkerProcess(place, "--processes", processes, app=app)

    assert worker.wait() == 2
    assert says in worker.log
    assert "Traceback" not in worker.log


def test_a_module_that_cannot_be_imported_says_why(place: Place) -> None:
    (place.folder / "broken.py").write_text("import no_such_thing\n")
    worker = WorkerProcess(place, app="broken:app", cwd=place.folder)

    assert worker.wait() == 1
    assert "No module named 'no_such_thing'" in worker.log


def test_a_store_that_cannot_be_opened_is_an_error_that_says_so(place: Place) -> None:
    (place.folder / "jobs.db").write_bytes(b"this is not a database, and never was one" * 50)
    worker = WorkerProcess(place)

    assert worker.wait() == 1
    assert "error: " in worker.log
    assert "Traceback" not in worker.log


# Before it has begun ----------------------------------------------------------------------------


@BOTH
def test_a_signal_that_comes_while_it_starts_stops_it_gracefully(number: signal.Signals) -> None:
    """It may have claimed jobs by the time that it says that it works."""
    with tenure.Tenure("memory://") as app:

        @app.task
        def nothing() -> None:
            pass

        worker = app.worker()
        worker.before_start = lambda: os.kill(os.getpid(), number)
        before = signal.signal(number, lambda number, frame: pytest.fail("it was not ready for it"))
        try:
            run_until_signal(worker)
        finally:
            signal.signal(number, before)
    assert worker.handled == 0
