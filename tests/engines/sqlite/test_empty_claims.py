"""A claim that finds nothing writes nothing: a commit would wake every idle worker, which would
claim again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tenure.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, clock: ManualClock) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as queue:
        for n in range(5):
            queue.enqueue("q", tenant=f"t{n % 2}", group=f"g{n}")
        yield queue


class Commits:
    """Counts the claims after which another connection finds the file changed."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)

    def close(self) -> None:
        self._connection.close()

    def version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def of_empty_claims(self, queue: tenure.Queue, clock: ManualClock) -> int:
        seen = {self.version()}
        for options in ({}, {"tenant": "t0"}, {"not_groups": ["g0"]}, {"limit": 9}) * 5:
            clock.advance(0.01)
            assert queue.claim(["q", "r"], **options) == []
            seen.add(self.version())
        return len(seen) - 1


def hold_by_rate(queue: tenure.Queue) -> None:
    queue.limits.set("q", rate=2, per=3600)
    assert len(queue.claim("q", limit=9, lease=3600)) == 2


def hold_by_concurrency(queue: tenure.Queue) -> None:
    queue.limits.set("q", concurrency=2, rate=9, per=1)
    assert len(queue.claim("q", limit=9, lease=3600)) == 2


def hold_by_tenant(queue: tenure.Queue) -> None:
    queue.limits.set("q", tenant="*", concurrency=1)
    assert len(queue.claim("q", limit=9, lease=3600)) == 2


def hold_by_pause(queue: tenure.Queue) -> None:
    queue.limits.set("q", rate=9, per=1)
    queue.pause("q")


def leave_nothing(queue: tenure.Queue) -> None:
    queue.limits.set("q", rate=9, per=1)
    assert len(queue.claim("q", limit=9, lease=3600)) == 5


@pytest.mark.parametrize(
    "hold", [hold_by_rate, hold_by_concurrency, hold_by_tenant, hold_by_pause, leave_nothing]
)
def test_a_claim_that_finds_nothing_commits_nothing(
    queue: tenure.Queue, clock: ManualClock, tmp_path: Path, hold: object
) -> None:
    assert callable(hold)
    hold(queue)
    with closing(Commits(tmp_path / "jobs.db")) as commits:
        assert commits.of_empty_claims(queue, clock) == 0
