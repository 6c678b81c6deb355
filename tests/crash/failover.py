"""Callers of a PostgreSQL whose primary is killed and whose standby takes over: nothing that was
acknowledged is lost, and all callers continue by themselves.

    python -m tests.crash.failover --seconds 300
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from urllib.parse import quote

import tenure
from tests.crash.kill import everything, say, told
from tests.support import audit_postgres
from tests.support.postgres import Server

CALLERS = 4
ROUND_SECONDS = 5.0
PATIENCE = 60.0
# Only processes fail here, not the machine.
SETTINGS = {"fsync": "off", "full_page_writes": "off"}


def url_of(*servers: Server) -> str:
    """The URL of whichever server is the primary."""
    hosts = ",".join(quote(str(server.folder), safe="") for server in servers)
    return f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"


class Caller(threading.Thread):
    """Enqueues, claims and acknowledges until it is told to stop, and records the results."""

    def __init__(self, queue: tenure.Queue, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._queue = queue
        self.enqueued: list[str] = []
        self.acked: list[str] = []
        self.failed: list[BaseException] = []
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            while not self.enough.is_set():
                self._work()
        except BaseException as error:
            self.failed.append(error)

    def _work(self) -> None:
        queue, n = self._queue, len(self.enqueued)
        tenant = f"t{n % 3}"
        jobs = [tenure.NewJob(queue="many", tenant=tenant), tenure.NewJob(queue="plain")]
        self.enqueued += queue.enqueue_many(jobs)
        name = f"{self.name}-{n}"
        self.enqueued.append(queue.enqueue("many", id=name, unique_key=name).id)
        jobs_found = [*queue.claim("many", limit=2), *queue.claim("plain")]
        for job, error in zip(jobs_found, queue.ack_many(jobs_found), strict=True):
            if error is not None:
                raise error
            self.acked.append(job.id)


def work(url: str, strike: Callable[[], object], seconds: float) -> list[Caller]:
    """Run callers on this URL, and call `strike` in the middle."""
    settings = tenure.Settings(url=url, busy_timeout=PATIENCE)
    with tenure.connect(settings=settings) as queue:
        queue.limits.set("many", concurrency=50)
        callers = [Caller(queue, f"caller-{n}") for n in range(CALLERS)]
        for caller in callers:
            caller.start()
        time.sleep(seconds / 2)
        strike()
        before = sum(len(caller.acked) for caller in callers)
        deadline = time.monotonic() + PATIENCE
        time.sleep(seconds / 2)
        while sum(len(caller.acked) for caller in callers) <= before + CALLERS:
            assert time.monotonic() < deadline, "the callers do not go on"
            assert not any(caller.failed for caller in callers), callers[0].failed
            time.sleep(0.02)
        for caller in callers:
            caller.enough.set()
        for caller in callers:
            caller.join(PATIENCE)
    return callers


def wrong(server: Server, callers: list[Caller]) -> list[str]:
    """What contradicts the results that the callers got."""
    found = [f"{caller.name} failed: {error!r}" for caller in callers for error in caller.failed]
    with tenure.connect(server.url) as queue:
        jobs = everything(queue)
    for caller in callers:
        found += [f"{id} was enqueued, and is gone" for id in caller.enqueued if id not in jobs]
        found += [
            f"{id} was acknowledged, and is {jobs[id].state}"
            for id in caller.acked
            if id in jobs and jobs[id].state != "done"
        ]
    found += [f"{job.id} was run {job.attempts} times" for job in jobs.values() if job.attempts > 1]
    acked = Counter(id for caller in callers for id in caller.acked)
    found += [f"{id} was acknowledged {n} times" for id, n in acked.items() if n > 1]
    return found + audit_postgres.audit(server.url, "tenure")


def fail_over(seconds: float) -> tuple[list[str], Counter[str]]:
    """One failover with synchronous replication. Returns what is wrong afterwards."""
    primary = Server(**SETTINGS)
    standby: Server | None = None
    try:
        standby = Server.standby(primary, **SETTINGS)
        primary.replicate_synchronously()

        def strike() -> None:
            assert standby is not None
            primary.kill_all()
            standby.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            standby.promote()

        callers = work(url_of(primary, standby), strike, seconds)
        counted = Counter(
            jobs=sum(len(caller.enqueued) for caller in callers),
            acked=sum(len(caller.acked) for caller in callers),
        )
        return wrong(standby, callers), counted
    finally:
        primary.stop()
        if standby is not None:
            standby.stop()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.failover", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args(arguments)
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while not total or time.monotonic() < end:
        found, counted = fail_over(ROUND_SECONDS)
        total += counted
        total["failovers"] += 1
        say(f"{max(0, end - time.monotonic()):.0f} s left: {told(total)}")
        if found:
            for text in found[:20]:
                say(text)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
