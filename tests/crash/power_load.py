"""A program whose machine loses power: it uses a queue from several threads, and records the
results it got in the file `acks`. Run by power.py, under its recorder."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tenure
from tenure.engines.sqlite import disk
from tenure.queue import store_of

LIVES = 3  # how often the file is opened
THREADS = 3
DONE, ADDED, LEAVING = "=", "+", "-"


class Caller:
    """The work of one thread. Each line is written after the call before it has returned."""

    def __init__(self, queue: tenure.Queue, acks: int, name: str) -> None:
        self._queue = queue
        self._acks = acks
        self._name = name
        self._chance = random.Random(name)
        self._count = 0
        self._mine: list[str] = []  # enqueued, and not removed

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self._chance.choice([self._enqueue, self._enqueue, self._finish, self._remove])()

    def _note(self, mark: str, *ids: str) -> None:
        os.write(self._acks, "".join(f"{mark}{id}\n" for id in ids).encode())

    def _enqueue(self) -> None:
        new = []
        for _ in range(self._chance.choice([1, 1, 1, 20])):
            self._count += 1
            size = self._chance.choice([10, 10, 3000])
            id = f"{self._name}-{self._count}"
            new.append(tenure.NewJob(queue="mail", id=id, payload="x" * size))
        self._queue.enqueue_many(new)
        ids = [one.id or "" for one in new]
        self._note(ADDED, *ids)
        self._mine += ids

    def _finish(self) -> None:
        for job in self._queue.claim("mail", limit=2, worker=self._name):
            try:
                self._queue.ack(job)
            except (tenure.LeaseLost, tenure.JobNotFound):  # another caller has removed it
                continue
            self._note(DONE, job.id)

    def _remove(self) -> None:
        if self._mine:
            id = self._mine.pop(self._chance.randrange(len(self._mine)))
            self._note(LEAVING, id)
            self._queue.delete(id)


def main(folder: Path, steps: int, synchronous: str) -> None:
    acks = os.open(folder / "acks", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for life in range(LIVES):
        # Alternate between SQLite's own checkpoints and ours.
        disk.LOG_LIMIT_BYTES = 32 * 2**20 if life % 2 else 100_000
        with tenure.connect(f"sqlite:///{folder / 'jobs.db'}") as queue:
            writer: sqlite3.Connection = store_of(queue).engine._writer  # type: ignore[attr-defined]
            writer.execute("PRAGMA wal_autocheckpoint = 40")
            writer.execute(f"PRAGMA synchronous = {synchronous}")
            callers = [Caller(queue, acks, f"{life}-{n}") for n in range(THREADS)]
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(Caller.work, callers, [steps] * THREADS))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
