"""Workers are killed, put to sleep past their leases and stopped; then their journals must agree
with the store.

    python -m tests.crash.worker_kill --seconds 300 --seed 7 [--store http]

The seed decides what is enqueued, and who is killed when; the rest depends on timing.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import tenure
from tenure.model.job import FINAL
from tests.crash.journal import now_ms
from tests.crash.kill import everything, say, told
from tests.crash.stores import STORES, Store
from tests.crash.worker_checks import Span, Story, broken
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, children_of

WORKERS = 3
LEASE_SECONDS = 1.0
BETWEEN_SECONDS = 0.25  # between kills and the like, on average
ROUND_SECONDS = 30.0  # then everything is checked, and a new store is used
DRAIN_SECONDS = 120.0
IN_FLIGHT = 40
MANY = 50  # attempts, so that no job becomes dead because its workers are killed
FATAL = 0.02  # of the jobs kill their worker
STRIKES = 0.15  # of the kills hit the store, if it can be killed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.worker_kill", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--store", choices=sorted(STORES), default="sqlite")
    options = parser.parse_args(arguments)
    say(f"--seed {options.seed}")
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 1 or not total:
        folder = Path(tempfile.mkdtemp(prefix="tenure-worker-kill-"))
        store = STORES[options.store](folder)
        store.start()
        arena = Arena(folder, options.seed + total["rounds"], store)
        try:
            failures = arena.round(min(left, ROUND_SECONDS))
        finally:
            arena.place.clean_up()
            store.stop()
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


class Arena:
    """One store, and the workers on it."""

    def __init__(self, folder: Path, seed: int, store: Store) -> None:
        self.seed = seed
        self.place = Place(folder, store.url)
        self._store = store
        self.counted: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._queue = self.place.queue()
        self._working: list[WorkerProcess] = []
        self._leaving: list[WorkerProcess] = []  # that were told to stop
        self._asleep: dict[int, threading.Timer] = {}  # what wakes them, by pid
        self._story = Story(int(LEASE_SECONDS * 1000))
        self._locked_since: dict[int, int] = {}  # by sleeping processes that hold the store's lock

    def round(self, seconds: float) -> list[str]:
        """Run, kill and stop workers for a while. Returns what is wrong afterwards."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or not self.counted["kills"]:
            self._enqueue()
            self._tick()
            self._blow()
        if not self.counted["stores struck"]:
            self._strike_store()
        self._stop_all()
        self._drain()
        jobs = everything(self._queue)
        self._queue.close()
        events = self.place.events()
        self.counted["jobs"] = len(jobs)
        self.counted["attempts"] = sum(job.attempts for job in jobs.values())
        self.counted["runs"] = sum(event.kind == "began" for event in events)
        failures = self._story.wrong + broken(jobs, events) + self._store.audit()
        failures += [f"{id} was answered, and is gone" for id in self._story.made - jobs.keys()]
        if self.place.pids():
            failures.append(f"processes are left: {self.place.pids()}")
        return failures

    # What there is to do

    def _enqueue(self) -> None:
        missing = IN_FLIGHT - self._queue.stats().unfinished
        jobs = [self._new() for _ in range(max(missing, 0))]
        self._story.made.update(self._queue.enqueue_many(jobs))

    def _new(self) -> tenure.NewJob:
        chance = self._random
        if chance.random() < FATAL:
            killers = (errands.kill_the_worker, errands.kill_the_worker_from_a_thread)
            return chance.choice(killers).job()
        if chance.random() < 0.05:
            return errands.fail.job()
        tasks = (errands.quick, errands.quick_in_a_thread, errands.quick_in_a_process)
        (task,) = chance.choices(tasks, (5, 4, 1))
        seconds = chance.choice((0.0, 0.01, 0.1, 0.5, 1.5))
        return task.using(max_attempts=MANY).job(seconds)

    # Who does it

    def _start(self) -> WorkerProcess:
        chance = self._random
        processes = chance.choice((1, 1, 2))
        return WorkerProcess(
            self.place,
            *("--lease", f"{LEASE_SECONDS}s", "--concurrency", str(chance.choice((1, 4, 10)))),
            *("--grace", chance.choice(("50ms", "300ms", "3s")), "--processes", str(processes)),
        )

    def _tick(self, replace: bool = True) -> None:
        """Note which workers have started or ended, and check the jobs."""
        for worker in [one for one in self._working if one.ended()]:
            self._working.remove(worker)
            # It may start while a sleeping process holds the lock of the file, or while the store
            # is away: then it reports that and exits.
            may_end = " works on " not in worker.log and self.counted["stores struck"]
            if (
                worker.process.returncode != -signal.SIGKILL
                and "stayed locked" not in worker.log
                and not (may_end and worker.log.startswith("error: "))
            ):
                self._story.wrong.append(f"a worker ended by itself:\n{worker.log}")
        for worker in [one for one in self._leaving if one.ended()]:
            self._leaving.remove(worker)
            self._has_left(worker)
        while replace and len(self._working) < WORKERS:
            self._working.append(self._start())
        self._story.look(self._queue)

    def _has_left(self, worker: WorkerProcess) -> None:
        """Check a worker that was stopped gracefully: it has no leases, and what it released has
        its attempt back."""
        code = worker.process.returncode
        died = {event.data["worker"] for event in self.place.events() if event.kind == "killed"}
        began = " works on " in worker.log  # before that, a signal may end it with any code
        # A supervisor exits with the worst code of its children. One of them may have been killed,
        # or started while the store was away.
        away = self.counted["stores struck"] and code == 1 and "error: " in worker.log
        if began and not away and code not in (0, -signal.SIGKILL, 128 + signal.SIGKILL):
            self._story.wrong.append(f"a worker that was stopped ended with {code}:\n{worker.log}")
        self._story.nothing_is_left_by(_names_of(worker) - died, self._queue, self.place.events())

    # What happens to them

    def _blow(self) -> None:
        time.sleep(self._random.expovariate(1 / BETWEEN_SECONDS))
        at_work = [one for one in self._working if " works on " in one.log]
        if not at_work:
            return
        if self._random.random() < STRIKES and self._strike_store():
            return
        worker = self._random.choice(at_work)
        blow = self._random.choices((self._kill, self._put_to_sleep, self._stop), (4, 3, 3))[0]
        (blow if self.counted["kills"] else self._kill)(worker)

    def _strike_store(self) -> bool:
        """Kill the store. Workers may lose their leases meanwhile, as if they had slept."""
        struck = self._store.strike(self._random)
        if struck:
            for worker in self._working + self._leaving:
                self._story.slept.update(_names_of(worker))
            self.counted["stores struck"] += 1
        return struck

    def _some_process(self, worker: WorkerProcess) -> int:
        """The worker, or one of the processes of a supervisor."""
        family = [pid for pid in children_of(worker.process.pid) if self._is_worker(pid)]
        return self._random.choice(family or [worker.process.pid])

    def _is_worker(self, pid: int) -> bool:
        """Whether it is a worker, not a process that runs a task of one."""
        try:
            return b"--supervised" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def _kill(self, worker: WorkerProcess) -> None:
        itself = self._random.random() < 0.3  # a supervisor, if it is one
        pid = worker.process.pid if itself else self._some_process(worker)
        self._strike(pid)
        if pid == worker.process.pid:
            worker.process.wait()
        self.counted["kills"] += 1

    def _strike(self, pid: int) -> None:
        if (timer := self._asleep.pop(pid, None)) is not None:
            timer.cancel()
        self._story.killed.add(f"{socket.gethostname()}-{pid}")
        self._send(pid, signal.SIGKILL)
        self._unlock(pid)

    def _put_to_sleep(self, worker: WorkerProcess) -> None:
        pid = self._some_process(worker)
        if pid not in self._asleep and self._send(pid, signal.SIGSTOP):
            self._story.slept.add(f"{socket.gethostname()}-{pid}")
            if self._store.is_locked_by(pid):
                self._locked_since[pid] = now_ms()
                self.counted["stops with the lock"] += 1
            seconds = LEASE_SECONDS * (0.2 + 2 * self._random.random())
            # It may hold the lock of the file, which we need ourselves.
            self._asleep[pid] = threading.Timer(seconds, self._wake, [pid])
            self._asleep[pid].start()
            self.counted["stops"] += 1

    def _wake(self, pid: int) -> None:
        if self._asleep.pop(pid, None) is not None:
            self._send(pid, signal.SIGCONT)
            self._unlock(pid)

    def _unlock(self, pid: int) -> None:
        """Note for how long a process that slept until now had the store locked."""
        if (since := self._locked_since.pop(pid, None)) is not None:
            self._story.locked.append(Span(since, now_ms()))

    def _send(self, pid: int, number: signal.Signals) -> bool:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def _stop(self, worker: WorkerProcess) -> None:
        self._working.remove(worker)
        self._leaving.append(worker)
        number = self._random.choice((signal.SIGTERM, signal.SIGINT))
        # In a background job of a shell, SIGINT is ignored until the worker has its handler.
        worker.send(number if " works on " in worker.log else signal.SIGTERM)
        self.counted["terms"] += 1

    # How it ends

    def _stop_all(self) -> None:
        for timer in list(self._asleep.values()):
            timer.join()
        for worker in [one for one in self._working if not one.ended()]:
            self._stop(worker)
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._leaving:
            assert time.monotonic() < deadline, self._leaving[0].log
            self._tick(replace=False)
            time.sleep(0.02)

    def _drain(self) -> None:
        """Wait until all jobs have ended; those that kill their workers must not prevent that."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._queue.stats().unfinished:
            if time.monotonic() > deadline:
                self._story.wrong.append("jobs are left that nobody finishes")
                break
            self._tick()
            time.sleep(0.05)
        self._stop_all()
        left = [job for job in everything(self._queue).values() if job.state not in FINAL]
        self._story.wrong.extend(f"{job.id} has not ended: {job}" for job in left)


def _names_of(worker: WorkerProcess) -> set[str]:
    """The names of the workers in a process; a supervisor has several."""
    return set(re.findall(r"worker (\S+) works on", worker.log))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
