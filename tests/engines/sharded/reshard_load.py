"""Programs for test_reshard_kill: one that works while tenants move, and one that moves them."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import tenure
from tenure import Busy, LeaseLost, Queue, StoreError
from tenure.clock import SystemClock
from tenure.core.fencing import Fence
from tenure.engines import open_shard
from tenure.engines.sharded import reshard
from tenure.engines.sharded.engine import ShardedEngine
from tenure.engines.sharded.members import both, members_of
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model.ops import Answer, Op
from tenure.settings import Settings

TENANTS = 24


def work(url: str, log: Path, name: str, end: Path) -> None:
    """Enqueue for tenants of one's own, in order, and claim and ack whatever there is, until a file
    appears. Each line of the log is something that was answered."""
    chance = random.Random(name)
    sent = dict.fromkeys((f"{name}{n}" for n in range(TENANTS)), 0)
    with tenure.connect(url) as queue, log.open("a") as file:

        def note(*said: object) -> None:
            file.write(json.dumps(said) + "\n")
            file.flush()

        while not end.exists():
            tenant = chance.choice(list(sent))
            number = sent[tenant]
            if _add(queue, tenant, number):
                sent[tenant] += 1
                note("added", tenant, number)
            try:
                jobs = queue.claim("q", limit=5, lease=600)
            except (Busy, StoreError):
                continue
            for job in jobs:
                note("claimed", job.tenant, job.payload, job.token)
            for job in jobs:
                _ack(queue, job)
                note("acked", job.tenant, job.payload)


def _add(queue: Queue, tenant: str, number: int) -> bool:
    try:
        queue.enqueue("q", number, tenant=tenant, id=f"{tenant}/{number}", if_exists="skip")
    except (Busy, StoreError):
        return False
    return True


def _ack(queue: Queue, job: tenure.Job) -> None:
    while True:
        try:
            return queue.ack(job, result=job.payload)
        except (Busy, StoreError):
            time.sleep(0.05)
        except LeaseLost:
            if queue.get(job.id).state != "done":
                raise
            return None


def move(old: str, new: str, commits: int = 0) -> None:
    """Move one tenant at a time. commits: after how many of them this process is killed."""
    reshard.STEP_TENANTS = 1
    if commits:
        _die_after(commits)
    target = members_of(new)
    members = both(members_of(old), target)
    settings = Settings(url=old)
    with closing(ShardedEngine.of(members, settings, SystemClock(), open_shard)) as engine:
        assert reshard.Reshard(engine, target.urls, SystemClock()).run()


def _die_after(commits: int) -> None:
    left = [commits]
    apply = SqliteEngine.apply

    def apply_and_die(
        engine: SqliteEngine, batch: Sequence[Op], fence: Fence | None = None
    ) -> list[Answer]:
        answers = apply(engine, batch, fence)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return answers

    SqliteEngine.apply = apply_and_die  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    else:
        move(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    os._exit(0)
