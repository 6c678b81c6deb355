"""Three services and six workers on one PostgreSQL, whose server is killed and restarted under
load; then their journals must agree with the store.

    python -m tests.crash.outage --seconds 300 --seed 7

The seed decides what is enqueued, and when the server is killed; the rest depends on timing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

import tenure
from tests.crash.history import limits_were_kept
from tests.crash.kill import everything, say, told
from tests.crash.worker_checks import Story, broken
from tests.support import audit_postgres
from tests.support.postgres import Server
from tests.workers import errands
from tests.workers.errands import FOLDER
from tests.workers.life import ROOT, Place, WorkerProcess, until

SERVICES, WORKERS, KILLS = 3, 6, 3
ROUND_SECONDS = 20.0  # under load; then everything is checked, and a new database is used
LEASE_SECONDS = 20.0  # longer than any outage, so that no job runs twice at once
PATIENCE = 60.0
IN_FLIGHT = 150
QUEUES = "mail,plain"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args(arguments)
    say(f"--seed {options.seed}")
    total: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while (left := end - time.monotonic()) > 5 or not total:
        folder = Path(tempfile.mkdtemp(prefix="tenure-outage-"))
        arena = Arena(folder, options.seed + total["rounds"])
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


class ServiceProcess:
    """A `tenure serve` process."""

    def __init__(self, place: Place, number: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log_file = place.folder / f"service-{number}.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tenure", "--url", place.url, "serve", "--port", str(port)],
                cwd=ROOT,
                env=os.environ | place.settings | {FOLDER: str(place.folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def status(self, path: str) -> int:
        """The status of the response; 0 if there is none."""
        try:
            return httpx.get(self.url + path, timeout=10).status_code
        except httpx.TransportError:
            return 0


class Producer(threading.Thread):
    """Enqueues through a service, as long as the backlog is not too long."""

    def __init__(self, url: str, seed: int, busy_timeout: float) -> None:
        super().__init__(daemon=True)
        self._settings = tenure.Settings(url=url, busy_timeout=busy_timeout)
        self.made: list[str] = []
        self.refused: list[str] = []
        self.failed: list[BaseException] = []
        self.enough = threading.Event()
        self._random = random.Random(seed)

    def run(self) -> None:
        try:
            with tenure.connect(settings=self._settings) as queue:
                while not self.enough.is_set():
                    self._enqueue(queue)
        except BaseException as error:
            self.failed.append(error)

    def _enqueue(self, queue: tenure.Queue) -> None:
        try:
            room = IN_FLIGHT - queue.stats().unfinished
            if room <= 0:
                time.sleep(0.05)
                return
            jobs = [self._new() for _ in range(self._random.randint(1, min(room, 12)))]
            self.made += queue.enqueue_many(jobs)
        except tenure.StoreError as error:  # the outage was longer than a call waits
            self.refused.append(error.message)
            time.sleep(0.05)

    def _new(self) -> tenure.NewJob:
        chance = self._random
        tasks = (errands.quick, errands.quick_in_a_thread)
        if chance.random() < 0.05:
            return errands.fail.using(queue="plain").job()
        task = chance.choice(tasks).using(
            queue=chance.choice(("mail", "mail", "plain")),
            tenant=chance.choice(("acme", "bolt", "cask")),
            group=chance.choice(("", "g", "h")),
            priority=chance.choice((0, 0, -1)),
        )
        job = task.job(chance.choice((0.0, 0.005, 0.02, 0.1)))
        if job.queue == "plain":  # one lane without limits has its own claim path
            job.tenant = job.group = ""
        return job


class Arena:
    """One server, and the services and workers that use it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.counted: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._server = Server()
        self._place = Place(folder, self._server.url)
        # With a short timeout a caller gets an error, and must recover by itself.
        busy_timeout = self._random.choice(("0.5", "30"))
        self._place.settings["TENURE_BUSY_TIMEOUT"] = busy_timeout
        self.counted[f"rounds with a busy timeout of {busy_timeout} s"] = 1
        self._services: list[ServiceProcess] = []
        self._workers: list[WorkerProcess] = []
        self._story = Story(int(LEASE_SECONDS * 1000))

    def round(self, seconds: float) -> list[str]:
        """Let them work, and kill the server for a while. Returns what is wrong afterwards."""
        try:
            with self._place.queue() as queue:
                return self._round(queue, seconds)
        finally:
            self._place.clean_up()
            for service in self._services:
                service.process.wait(PATIENCE)
            self._server.stop()

    def _round(self, queue: tenure.Queue, seconds: float) -> list[str]:
        queue.limits.set("mail", concurrency=8)
        queue.limits.set("mail", tenant="*", concurrency=4)
        queue.limits.set("mail", tenant="*", group="*", concurrency=2)
        self._start()
        producers = [
            Producer(
                service.url,
                self.seed * SERVICES + n,
                float(self._place.settings["TENURE_BUSY_TIMEOUT"]),
            )
            for n, service in enumerate(self._services)
        ]
        for producer in producers:
            producer.start()
        self._strike_again_and_again(queue, seconds)
        for producer in producers:
            producer.enough.set()
        for producer in producers:
            producer.join(PATIENCE)
            self._story.made.update(producer.made)
            self._story.wrong += [f"a producer failed: {error!r}" for error in producer.failed]
            self.counted["calls refused"] += len(producer.refused)
        self._drain(queue)
        self._stop()
        return self._judge(queue)

    def _start(self) -> None:
        self._services = [ServiceProcess(self._place, n) for n in range(SERVICES)]
        options = ("--queues", QUEUES, "--lease", f"{LEASE_SECONDS}s", "--concurrency", "4")
        for n in range(WORKERS):  # every second one uses a service
            url = self._services[n // 2].url if n % 2 else None
            self._workers.append(WorkerProcess(self._place, *options, url=url))
        for service in self._services:
            until(lambda service=service: service.status("/readyz") == 200, PATIENCE)  # type: ignore[misc]
        for worker in self._workers:
            worker.ready()

    # What happens to the server

    def _strike_again_and_again(self, queue: tenure.Queue, seconds: float) -> None:
        for _ in range(KILLS):
            end = time.monotonic() + seconds / (KILLS + 1) * (0.5 + self._random.random())
            while time.monotonic() < end:
                self._story.look(queue)
                time.sleep(0.1)
            self._strike()
        time.sleep(seconds / (KILLS + 1))

    def _strike(self) -> None:
        """Kill the server in one of two ways. The services must report it, and also when it is
        back."""
        self._random.choice((self._server.kill, self._server.kill_all))()
        self.counted["servers killed"] += 1
        if self.counted["servers killed"] == 1:
            with ThreadPoolExecutor() as together:
                for path, wanted in (("/readyz", 503), ("/healthz", 200)):
                    said = list(together.map(lambda one: one.status(path), self._services))  # noqa: B023
                    if said != [wanted] * SERVICES:
                        self._story.wrong.append(f"{path} said {said} while the server was away")
        else:
            time.sleep(self._random.random())
        self._server.start()
        for service in self._services:
            until(lambda service=service: service.status("/readyz") == 200, PATIENCE)  # type: ignore[misc]

    # How it ends

    def _drain(self, queue: tenure.Queue) -> None:
        deadline = time.monotonic() + PATIENCE
        while (stats := queue.stats()).unfinished:
            if time.monotonic() > deadline:
                self._story.wrong.append(f"jobs are left that nobody finishes: {stats}")
                break
            time.sleep(0.05)

    def _stop(self) -> None:
        for worker in self._workers:
            if worker.ended():
                self._story.wrong.append(f"a worker ended by itself:\n{worker.log}")
            else:
                worker.send(signal.SIGTERM)
        for worker in self._workers:
            if worker.wait(PATIENCE) != 0:
                self._story.wrong.append(f"a worker did not end well:\n{worker.log}")
        for service in self._services:
            if service.process.poll() is not None:
                self._story.wrong.append(f"a service ended: {service.log_file.read_text()}")
            service.process.send_signal(signal.SIGTERM)

    def _judge(self, queue: tenure.Queue) -> list[str]:
        jobs, events = everything(queue), self._place.events()
        self.counted["jobs"] = len(jobs)
        self.counted["runs"] = sum(event.kind == "did" for event in events)
        self.counted["runs after the first"] = sum(job.attempts - 1 for job in jobs.values())
        failures = self._story.wrong + broken(jobs, events)
        failures += limits_were_kept(jobs, events, queue.limits.list())
        failures += [f"{id} was answered, and is gone" for id in self._story.made - jobs.keys()]
        return failures + audit_postgres.audit(self._server.url, "tenure")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
