"""Restoring a backup of the file: what was claimed after the backup was made must not count."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure.model.job import Job
from tenure.testing import ManualClock

NOW_MS = 1_800_000_000_000  # a time at which this code may run


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def opened(path: Path, clock: ManualClock) -> tenure.Queue:
    return tenure.connect(f"sqlite:///{path}", clock=clock)


def copy(source: Path, target: Path) -> None:
    """What the .backup and .restore commands of SQLite's shell do."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def claim(path: Path, clock: ManualClock) -> Job:
    with opened(path, clock) as queue:
        (job,) = queue.claim("mail", lease=60)
    return job


@pytest.fixture
def restored(path: Path, clock: ManualClock) -> tuple[Job, Job]:
    """A job as a worker claimed it after the backup, and as another did after the restore."""
    with opened(path, clock) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail", id=f"job-{n}") for n in range(3)])
    copy(path, path.with_name("backup.db"))
    old = claim(path, clock)
    clock.advance(0.001)
    copy(path.with_name("backup.db"), path)
    new = claim(path, clock)
    assert old.id == new.id == "job-0"
    return old, new


def test_a_worker_from_before_a_restore_cannot_ack_for_the_new_holder(
    path: Path, clock: ManualClock, restored: tuple[Job, Job]
) -> None:
    old, new = restored
    with opened(path, clock) as queue:
        with pytest.raises(tenure.LeaseLost):
            queue.ack(old)
        with pytest.raises(tenure.LeaseLost):
            queue.extend(old)
        queue.ack(new)


def test_tokens_grow_across_a_restore(restored: tuple[Job, Job]) -> None:
    old, new = restored
    assert new.token > old.token


def test_tokens_grow_while_the_clock_goes_back(path: Path, clock: ManualClock) -> None:
    with opened(path, clock) as queue:
        queue.enqueue("mail", id="job", max_attempts=100)
        tokens = []
        for step in (1, -3600, 0, 0.001, -86_400, 7200, 0, 90_000):
            clock.advance(step)
            (job,) = queue.claim("mail")
            tokens.append(job.token)
            queue.release(job)
    assert tokens == sorted(set(tokens))


def test_a_restore_with_a_clock_that_went_back_does_not_give_a_token_again(
    path: Path, clock: ManualClock
) -> None:
    """Growth cannot be had then. Of 40 pairs of claims in one millisecond, one in 4096 is equal:
    a second equal one would be news."""
    with opened(path, clock) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail", id=f"job-{n}") for n in range(40)])
    copy(path, path.with_name("backup.db"))
    runs = []
    for _ in range(2):
        copy(path.with_name("backup.db"), path)
        with opened(path, clock) as queue:
            tokens = {}
            for n in range(40):
                clock.advance(1)
                (job,) = queue.claim("mail")
                tokens[job.id] = job.token
                assert job.id == f"job-{n}"
        clock.advance(-40)
        runs.append(tokens)
    first, second = runs
    assert sum(first[id] == second[id] for id in first) <= 1


def test_every_number_that_a_token_can_be_is_exact_in_javascript(
    path: Path, clock: ManualClock
) -> None:
    clock.advance(60 * 365 * 86_400)  # into 2087
    with opened(path, clock) as queue:
        queue.enqueue("mail")
        (job,) = queue.claim("mail")
    assert job.token < 2**53
