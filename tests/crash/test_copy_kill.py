"""A copy is killed again and again: the next run continues, and nothing is lost or duplicated."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure import NewJob, State
from tenure.model import ops, queries
from tenure.queue import store_of
from tests.support import audit_postgres, postgres
from tests.workers.life import ROOT, until

JOBS = 15_000
KILLS = 2


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    yield postgres.url_of(tmp_path)
    assert audit_postgres.audit(postgres.shared_url(), postgres.schema_of(tmp_path)) == []
    postgres.drop(tmp_path)


def fill(queue: tenure.Queue) -> None:
    """Add many jobs, in all states but leased."""
    for tenant in ("", "acme", "bolt"):
        queue.enqueue_many(
            NewJob(queue="q", payload=n, tenant=tenant, delay=n % 3 * 1000)
            for n in range(JOBS // 3)
        )
    queue.ack_many(queue.claim("q", limit=1000), range(1000))
    for job in queue.claim("q", limit=100):
        queue.fail(job, "boom", retry_in=1000, fatal=job.created_at % 2 == 0)
    parents = queue.enqueue_many(NewJob(queue="web", group="g") for _ in range(100))
    queue.enqueue_many(NewJob(queue="web", after=[parent]) for parent in parents)
    queue.limits.set("q", concurrency=7)
    queue.pause("web", tenant="acme")


def entries(queue: tenure.Queue) -> list[ops.Entry]:
    found = store_of(queue).do(queries.Export(1_000_000))
    assert isinstance(found, queries.Exported)
    return found.entries


def test_a_copy_that_is_killed_again_and_again_ends_with_every_job_once(
    tmp_path: Path, target: str
) -> None:
    source = f"sqlite:///{tmp_path}/jobs.db"
    command = [sys.executable, "-m", "tenure", "copy", source, target, "--json"]
    with tenure.connect(source) as old, tenure.connect(target) as new:
        fill(old)
        limits = old.limits.list()
        killed = 0
        for n in range(KILLS):
            copy = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
            aim = n * JOBS // KILLS
            until(lambda aim=aim: _jobs_of(new) > aim)  # type: ignore[misc]
            copy.send_signal(signal.SIGKILL)
            if copy.wait() == -signal.SIGKILL:  # or it was faster
                killed += 1
                assert (
                    new.claim("q", limit=100) == []
                )  # nothing can be claimed from an incomplete copy
        assert killed
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert '"resumed":true' in done.stdout
        assert entries(new) == entries(old)
        assert new.limits.list() == limits
        assert [one.paused for one in old.stats().queues.values()] == [True, True]
        assert {job.state for job in new.claim(["q", "web"], limit=7)} == {State.LEASED}


def _jobs_of(queue: tenure.Queue) -> int:
    stats = queue.stats()
    return stats.unfinished + stats.done + stats.dead + stats.cancelled
