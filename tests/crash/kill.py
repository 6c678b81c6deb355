"""Processes work on one file and are killed again and again; then their journals must agree with
the store.

    python -m tests.crash.kill --seconds 300 --seed 7

The seed decides what is done, and who is killed when; the rest depends on timing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

import tenure
from tenure.clock import SystemClock
from tenure.engines.sharded.members import is_sharded
from tests.crash.checks import Evidence, broken, stuck
from tests.crash.journal import Journal, read
from tests.crash.workload import QUEUES, prepare, watch, work
from tests.support import shards
from tests.support.audit import audit

WORKERS = 4
ROUND_SECONDS = 10.0  # then everything is checked, and a new file is used
BETWEEN_SECONDS = 0.04  # between kills, on average


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kill", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--shards", action="store_true", help="two files as one queue")
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 0.5 or not total:
        folder = Path(tempfile.mkdtemp(prefix="tenure-kill-"))
        store: Store
        store = Shards(folder) if options.shards else SqliteFile(folder / "jobs.db")
        arena = Arena(folder, options.seed + total["rounds"], store)
        arena.between_seconds *= 3 if options.shards else 1  # two files take longer to open
        failures = arena.round(min(left, ROUND_SECONDS))
        total += arena.counted
        total["rounds"] += 1
        say(f"{max(0, end - time.monotonic()):.0f} s left: {told(total)}")
        if failures:
            for text in failures[:20]:
                say(text)
            say(f"{len(failures)} failures with --seed {arena.seed}; see {folder}")
            return 1
        shutil.rmtree(folder)
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def told(counted: Counter[str]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sorted(counted.items()))


class Store(Protocol):
    """Where the jobs are."""

    @property
    def url(self) -> str: ...

    def audit(self) -> list[str]:
        """What is wrong with the store."""


class SqliteFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"

    def audit(self) -> list[str]:
        return audit(self._path)


class Shards:
    """Two files as one queue."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = shards.url_of(folder)

    def audit(self) -> list[str]:
        return shards.audit(self._folder)


class Arena:
    """One store, and the processes on it. This process never opens the store itself, so that forked
    processes inherit nothing of it."""

    between_seconds = BETWEEN_SECONDS

    def __init__(self, folder: Path, seed: int, store: Store) -> None:
        self.folder = folder
        self.seed = seed
        self.store = store
        self.counted: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._alive: dict[str, int] = {}  # pids by name
        self._born = 0

    def round(self, seconds: float) -> list[str]:
        """Run and kill processes for a while. Returns what is wrong afterwards."""
        failures = self._ask(self._prepare)
        self._fill_up()
        end = time.monotonic() + seconds
        try:
            while self._goes_on(end) and not failures:
                time.sleep(self._random.expovariate(1 / self.between_seconds))
                failures = self._blow()
        finally:
            self._kill_all()
        return failures or self._ask(self._check)

    def _goes_on(self, end: float) -> bool:
        return time.monotonic() < end

    def _prepare(self) -> list[str]:
        prepare(self.store.url)
        return []

    def _fill_up(self) -> None:
        """Start the processes that are missing."""
        for n in range(WORKERS):
            if f"worker{n}" not in self._alive:
                self._start(f"worker{n}", work)
        if "watcher" not in self._alive:
            self._start("watcher", lambda url, journal, *_: watch(url, journal))

    def _start(self, name: str, life: Callable[[str, Journal, str, int], None]) -> None:
        self._born += 1
        journal = Journal(self.folder / f"{self._born:05}.journal")
        self._alive[name] = pid = os.fork()
        if pid == 0:
            try:
                life(self.store.url, journal, f"{name}.{self._born}", self.seed)
            except BaseException:
                journal.note("error", text=traceback.format_exc())
            finally:
                os._exit(1)
        journal.close()

    def _blow(self) -> list[str]:
        """Kill one of them, put it to sleep past its leases, or kill all at once."""
        chance = self._random.random()
        name = self._random.choice(sorted(self._alive))
        if chance < 0.04:
            self._kill_all()
            failures = self._ask(self.store.audit)
            self.counted["massacres"] += 1
            self._fill_up()
            return failures
        if chance < 0.08 and name != "watcher":
            os.kill(self._alive[name], signal.SIGSTOP)
            time.sleep(self._random.random() * 0.7)
            os.kill(self._alive[name], signal.SIGCONT)
            self.counted["stops"] += 1
        else:
            self._kill(name)
            self._fill_up()
        return []

    def _kill(self, name: str) -> None:
        pid = self._alive.pop(name)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            self.counted["died by themselves"] += 1
        self.counted["kills"] += 1

    def _kill_all(self) -> None:
        for name in list(self._alive):
            self._kill(name)

    def _ask(self, question: Callable[[], list[str]]) -> list[str]:
        """Run a function in a separate process, and return its result."""
        answer = self.folder / "answer"
        pid = os.fork()
        if pid == 0:
            try:
                try:
                    said = question()
                except BaseException:
                    said = [traceback.format_exc()]
                answer.write_bytes(msgspec.json.encode(said))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        counts = self.folder / "counts"
        if counts.exists():
            self.counted += Counter(msgspec.json.decode(counts.read_bytes(), type=dict[str, int]))
            counts.unlink()
        return msgspec.json.decode(answer.read_bytes(), type=list[str])

    def _check(self) -> list[str]:
        """Check everything when no process is left: first as it is, then after everything that can
        run has run."""
        failures = self.store.audit()
        events = list(read(self.folder))
        with tenure.connect(self.store.url) as queue:
            whole = not is_sharded(self.store.url)
            seen = Evidence(events, everything(queue), whole=whole)
        failures += broken(seen)
        names = ("enqueued", "claimed", "acked", "looked", "refused", "busy")
        counts = {name: len(seen.events[name]) for name in names}
        (self.folder / "counts").write_bytes(msgspec.json.encode(counts))
        with tenure.connect(self.store.url, clock=Tomorrow()) as queue:
            queue.limits.clear("rated")
            while jobs := queue.claim(QUEUES, limit=1000):
                failures += [str(error) for error in queue.ack_many(jobs) if error is not None]
            failures += stuck(everything(queue))
        return failures + self.store.audit()


class Tomorrow(SystemClock):
    """A clock by which every lease has expired and every delay is over."""

    def now_ms(self) -> int:
        return super().now_ms() + 86_400_000


def everything(queue: tenure.Queue) -> dict[str, tenure.Job]:
    """Every job, by id."""
    jobs: dict[str, tenure.Job] = {}
    cursor = None
    while True:
        page = queue.jobs(limit=10_000, cursor=cursor)
        jobs |= {job.id: job for job in page.jobs}
        cursor = page.cursor
        if cursor is None:
            return jobs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
