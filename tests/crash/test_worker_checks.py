"""The checks of what killed, stopped and sleeping workers leave, checked themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure.testing import ManualClock
from tests.crash.journal import Event
from tests.crash.stores import FileStore
from tests.crash.worker_checks import Span, Story

LEASE_MS = 1000
HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA user_version").fetchone()
connection.execute(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Iterator[tenure.Queue]:
    with closing(tenure.connect("memory://", clock=clock)) as queue:
        yield queue


def begun(queue: tenure.Queue) -> tuple[tenure.Job, Event]:
    """A leased job, and what its worker noted."""
    queue.enqueue("q", id="a")
    (job,) = queue.claim("q", worker="w", lease=LEASE_MS / 1000)
    began = Event(job.started_at or 0, "began", "a", job.token, {"worker": "w", "attempt": 1})
    return job, began


def complaints(queue: tenure.Queue, began: Event, *locked: Span) -> list[str]:
    """What is wrong with a worker that was stopped, if the store was locked for some time."""
    story = Story(LEASE_MS)
    story.locked += locked
    story.nothing_is_left_by({"w"}, queue, [began])
    return story.wrong


def test_a_released_job_is_no_reason_to_complain(queue: tenure.Queue) -> None:
    job, began = begun(queue)
    queue.release(job)
    assert complaints(queue, began) == []


@pytest.mark.parametrize(
    ("since", "until", "is_excused"),
    [
        (200, 1600, True),  # before the lease ran out until it was seen to be over
        (-500, 600, True),  # it could not be renewed for half of its time
        (1400, 3000, True),
        (-900, 499, False),  # long over
        (1501, 3000, False),  # too late
    ],
)
def test_a_lease_may_run_out_while_a_sleeping_worker_has_the_store_locked(
    queue: tenure.Queue, clock: ManualClock, since: int, until: int, is_excused: bool
) -> None:
    _, began = begun(queue)
    clock.advance(1.5)
    queue.maintain()
    assert queue.get("a").state == "pending"
    locked = Span(began.at + since, began.at + until)
    assert complaints(queue, began) != []
    assert (complaints(queue, began, locked) == []) is is_excused


def test_a_lock_is_no_reason_to_count_an_attempt_that_failed(
    queue: tenure.Queue, clock: ManualClock
) -> None:
    job, began = begun(queue)
    clock.advance(0.5)
    queue.fail(job, "no", retry_in=0)
    assert complaints(queue, began, Span(began.at, began.at + 2000)) != []


def test_a_lock_is_no_reason_to_keep_a_lease(queue: tenure.Queue) -> None:
    _, began = begun(queue)
    assert complaints(queue, began, Span(began.at, began.at + 2000)) != []


@pytest.mark.parametrize(
    ("statement", "holds"), [("BEGIN IMMEDIATE", True), ("BEGIN", False), ("SELECT 1", False)]
)
def test_a_sleeping_process_is_known_to_hold_the_lock(
    tmp_path: Path, statement: str, holds: bool
) -> None:
    store = FileStore(tmp_path)
    with tenure.connect(store.url):  # the shared file is there as long as one has it open
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(tmp_path / "jobs.db"), statement],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            os.kill(process.pid, signal.SIGSTOP)
            assert store.is_locked_by(process.pid) is holds
        finally:
            process.kill()
            process.communicate()
