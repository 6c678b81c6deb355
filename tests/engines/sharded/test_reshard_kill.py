"""A process that moves tenants is killed after any of its commits, alone and while others work."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import tenure
from tests.engines.sharded import reshard_load
from tests.engines.sharded.test_reshard import check, everything, fill, reshard, url_of

PROGRAM = [sys.executable, "-m", reshard_load.__name__]
NAMES = ("a", "b")
STRIDE = 7  # every commit is tried if it is 1


@pytest.mark.parametrize(("old", "new", "seed"), [(1, 3, 1), (2, 1, 2)])
def test_nothing_is_lost_or_done_twice_if_a_move_is_killed(
    tmp_path: Path, old: int, new: int, seed: int
) -> None:
    chance = random.Random(seed)
    before, after = url_of(tmp_path, old), url_of(tmp_path, new)
    union = before if old > new else after
    with tenure.connect(before) as queue:
        queue.limits.set("q", tenant="*", concurrency=1)
        for name in NAMES:  # tenants whose jobs nobody claims meanwhile
            for n in range(20):
                queue.enqueue("idle", tenant=f"{name}{n}", id=f"idle-{name}{n}")
    end = tmp_path / "end"
    logs = [tmp_path / f"{name}.log" for name in NAMES]
    workers = [
        subprocess.Popen([*PROGRAM, "work", union, str(log), name, str(end)])
        for name, log in zip(NAMES, logs, strict=True)
    ]
    try:
        for _ in range(6):
            commits = str(chance.randrange(1, 40))
            mover = subprocess.run([*PROGRAM, "move", before, after, commits], timeout=120)
            assert mover.returncode in (-signal.SIGKILL, 0)
        subprocess.run([*PROGRAM, "move", before, after, "0"], check=True, timeout=120)
        time.sleep(1)
    finally:
        end.touch()
        codes = [worker.wait(60) for worker in workers]
    assert codes == [0, 0]
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    _compare(after, lines)
    check(tmp_path)


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 0)])
def test_a_move_that_is_killed_after_any_commit_is_finished_by_the_next(
    tmp_path: Path, old: int, new: int
) -> None:
    commits = 0
    ended = False
    while not ended:
        commits += STRIDE
        folder = tmp_path / str(commits)
        folder.mkdir()
        before, after = url_of(folder, old), url_of(folder, new)
        with tenure.connect(before) as queue:
            fill(queue, 6)
            queue.enqueue("q", unique_key="k", id="plain")
            there, limits, schedules = (
                everything(queue),
                queue.limits.list(),
                queue.schedules.list(),
            )
            errors = [(one.group, one.count) for one in queue.errors.list().errors]
        pid = os.fork()
        if pid == 0:
            try:
                reshard_load.move(before, after, commits)
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL)
        ended = code == 0
        reshard(before, after)
        with tenure.connect(after) as queue:
            assert everything(queue) == there
            assert (queue.limits.list(), queue.schedules.list()) == (limits, schedules)
            assert [(one.group, one.count) for one in queue.errors.list().errors] == errors
        check(folder)
    assert commits > 3 * STRIDE


def _compare(url: str, lines: list[list[object]]) -> None:
    added = {f"{tenant}/{number}" for what, tenant, number, *_ in lines if what == "added"}
    claimed = Counter(
        f"{tenant}/{number}" for what, tenant, number, *_ in lines if what == "claimed"
    )
    acked = {f"{tenant}/{number}" for what, tenant, number, *_ in lines if what == "acked"}
    assert len(added) > 50
    with tenure.connect(url) as queue:
        there = everything(queue)
        jobs = {job_id: entry.job for job_id, entry in there.items()}  # type: ignore[attr-defined]
        assert added <= jobs.keys()
        assert len([one for one in jobs if one.startswith("idle-")]) == 40
        assert set(claimed.values()) <= {1}, "a job was claimed twice"
        assert all(jobs[one].state == "done" for one in acked)
        assert all(job.attempts <= 1 for job in jobs.values())
        by_tenant: dict[str, list[tuple[int, int]]] = {}
        for job in jobs.values():
            if job.queue == "q" and job.finished_at is not None:
                by_tenant.setdefault(job.tenant, []).append((job.payload, job.started_at))
        for done in by_tenant.values():  # one after the other, in order
            starts = [started for _, started in sorted(done)]
            assert starts == sorted(starts)
        assert queue.stats().queues["q"].leased == len(claimed.keys() - acked)


def test_of_two_moves_at_once_one_goes_on(tmp_path: Path) -> None:
    before, after = url_of(tmp_path, 1), url_of(tmp_path, 3)
    with tenure.connect(before) as queue:
        fill(queue, 12)
        there, limits = everything(queue), queue.limits.list()
    command = [*PROGRAM, "move", before, after, "0"]
    movers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [mover.communicate(timeout=120)[1] for mover in movers]
    for mover, text in zip(movers, told, strict=True):
        assert mover.returncode == 0 or "another `tenure reshard` is moving" in text, text
    reshard(before, after)
    with tenure.connect(after) as queue:
        assert everything(queue) == there
        assert queue.limits.list() == limits
    check(tmp_path)
