"""A backup is restored into a SQLite file, as described in docs/sqlite.md, while workers run on
it."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tenure
from tests.support.audit import audit
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, a_place, until

OPTIONS = ("--no-schedule", "--lease", "1s")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        yield place


def copy(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(source, timeout=60)) as one,
        closing(sqlite3.connect(target, timeout=60)) as other,
    ):
        one.backup(other)


class Producer:
    """Enqueues all the time, and records when each enqueue was confirmed."""

    def __init__(self, queue: tenure.Queue) -> None:
        self._queue = queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.told: list[str] = []
        self.error: Exception | None = None

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.01):
                id = f"new-{len(self.told)}"
                self._queue.enqueue_many([errands.quick.using(id=id).job()])
                self.told.append(id)
        except Exception as error:
            self.error = error

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_backup_is_restored_while_workers_run(place: Place) -> None:
    path, backup = place.folder / "jobs.db", place.folder / "copy.db"
    with place.queue() as queue:
        (held,) = queue.enqueue_many([errands.until_told.job()])
        old = queue.enqueue_many([errands.quick.job() for _ in range(30)])
        copy(path, backup)
        workers = [WorkerProcess(place, *OPTIONS).ready() for _ in range(2)]
        before = place.wait_for("began", id=held)[0]
        with Producer(queue) as producer:
            until(lambda: len(producer.told) > 20)
            copy(backup, path)
            count = len(producer.told)
            until(lambda: len(producer.told) > count + 20)
        assert producer.error is None
        # The worker learns that it has lost the job, which has a later holder now.
        place.wait_for("cancelled", id=held)
        after = max(place.wait_for("began", 2, id=held), key=lambda event: event.token)
        assert after.token > before.token
        with pytest.raises(tenure.LeaseLost):
            queue.ack(tenure.Lease(held, before.token))
        place.give()
        kept = [held, *old, *producer.told[count + 1 :]]
        until(lambda: all(queue.get(id).state == "done" for id in kept))
        assert queue.get(held).attempts == 1  # counted from the backup
        for worker in workers:
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0, worker.log
            assert "Traceback" not in worker.log
        assert queue.stats().leased == 0
    assert audit(path) == []
