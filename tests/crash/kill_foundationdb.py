"""Kills a FoundationDB server again and again while jobs are enqueued, claimed and acknowledged.

FDB_CLUSTER_FILE=fdb.cluster python -m tests.crash.kill_foundationdb \
    --pid-file fdbserver.pid --start './start.sh' --seconds 60

Use a server that is only for testing: it is killed by the pid in that file, and restarted by that
command, which must return once the server is started. No call may report something that did not
happen or wait for long, no job may be lost or acknowledged twice, and in the end all must be done.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import tenure
from tenure import Busy, Job, LeaseLost, NewJob, Queue, Settings, State, StoreError
from tests.support import fdb

ENQUEUERS, WORKERS = 2, 3
LEASE_S = 10.0
SLACK_S = 20.0  # on top of the timeout, to find out whether a commit happened
DRAIN_S = 180.0


class Load:
    """Callers, and the results they got."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.enqueued: set[str] = set()
        self.refused: set[str] = set()  # reported as not changed
        self.acked: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()
        self.longest_s = 0.0
        self.wrong: list[str] = []
        self.feeding = True
        self.working = True

    def call(self, what: Callable[[], object]) -> type[Exception] | None:
        """Make a call. Returns the type of the error, if any."""
        began = time.monotonic()
        try:
            what()
        except (Busy, LeaseLost, StoreError) as error:
            self.heard[type(error).__name__] += 1
            return type(error)
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        return None

    def enqueue(self, name: str) -> None:
        n = 0
        while self.feeding:
            n += 1
            ids = [f"{name}-{n}-{i}" for i in range(3)]
            jobs = [NewJob(queue="q", id=one) for one in ids]
            error = self.call(lambda jobs=jobs: self.queue.enqueue_many(jobs))  # type: ignore[misc]
            if error is None:
                self.enqueued.update(ids)
            elif error is Busy:
                self.refused.update(ids)
            time.sleep(0.02)

    def work(self) -> None:
        while self.working:
            leased: list[Job] = []

            def claim(leased: list[Job] = leased) -> None:
                leased += self.queue.claim("q", limit=5, lease=LEASE_S)

            self.call(claim)
            for job in leased:
                if self.call(lambda job=job: self.queue.ack(job)) is None:  # type: ignore[misc]
                    self.acked[job.id] += 1
            if not leased:
                time.sleep(0.1)

    def guarded(self, what: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                what()
            except Exception as error:
                self.wrong.append(f"a caller was told {error!r}")

        return run

    def start(self) -> list[threading.Thread]:
        what: list[Callable[[], None]] = [self.work] * WORKERS
        what += [partial(self.enqueue, f"e{n}") for n in range(ENQUEUERS)]
        threads = [threading.Thread(target=self.guarded(one), daemon=True) for one in what]
        for thread in threads:
            thread.start()
        return threads

    def check(self, patience_s: float) -> None:
        """Check what must be true in the end."""
        jobs = {job.id: job for job in _all_jobs(self.queue)}
        self.wrong += [f"{one} is lost" for one in self.enqueued - jobs.keys()]
        self.wrong += [f"{one} is there, but was refused" for one in self.refused & jobs.keys()]
        self.wrong += [f"{one} was acknowledged twice" for one, n in self.acked.items() if n > 1]
        for job in jobs.values():
            if job.state is not State.DONE:
                self.wrong.append(f"{job.id} is {job.state} after {job.attempts} attempts")
        if self.longest_s > patience_s + SLACK_S:
            self.wrong.append(f"somebody waited for {self.longest_s:.0f} s")


def _all_jobs(queue: Queue) -> Iterator[Job]:
    cursor: str | None = None
    while True:
        page = queue.jobs(queue="q", limit=500, cursor=cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def _kill(pid_file: Path, start: str, down_s: float) -> None:
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGKILL)
    time.sleep(down_s)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    subprocess.run(shlex.split(start), check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid-file", type=Path, required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--patience", type=float, default=30, help="busy_timeout of the callers")
    parser.add_argument("--down", type=float, default=2, help="seconds of downtime, at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    folder = Path("/kill", uuid.uuid4().hex)
    url = fdb.url_of(folder)
    kills = 0
    with tenure.connect(settings=Settings(url=url, busy_timeout=args.patience)) as queue:
        load = Load(queue)
        threads = load.start()
        end = time.monotonic() + args.seconds
        while time.monotonic() < end:
            time.sleep(chance.uniform(3, 8))
            _kill(args.pid_file, args.start, chance.uniform(0, args.down))
            kills += 1
        load.feeding = False
        end = time.monotonic() + DRAIN_S
        while queue.stats().unfinished and time.monotonic() < end:
            time.sleep(0.5)
        load.working = False
        for thread in threads:
            thread.join(args.patience + SLACK_S)
        if any(thread.is_alive() for thread in threads):
            load.wrong.append("a caller is stuck")
        load.check(args.patience)
    load.wrong += fdb.audit_cluster(folder)
    sys.stdout.write(
        f"{kills} kills, {len(load.enqueued)} jobs enqueued, {sum(load.acked.values())} "
        f"acknowledged, errors heard {dict(load.heard)}, longest call {load.longest_s:.1f} s, "
        f"{len(load.wrong)} wrong\n"
    )
    sys.stdout.writelines(f"    {one}\n" for one in load.wrong[:20])
    return 1 if load.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
