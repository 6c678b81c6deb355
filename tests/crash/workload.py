"""What the processes do until they are killed."""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from typing import Any

import tenure
from tenure.engines.sharded.members import is_sharded
from tenure.model.job import IfParentFails
from tenure.model.ops import IfExists
from tests.crash.journal import Journal, now_ms

# A queue without limits, one with every kind of concurrency limit, and one with a rate.
QUEUES = ("free", "bounded", "rated")
TENANTS = ("", "acme", "bolt")
GROUPS = ("", "g", "h")
IN_QUEUE, IN_TENANT, IN_GROUP = 5, 3, 2
RATE, PER_SECONDS = 40, 1.0
LEASES = (0.15, 0.3, 0.6)  # seconds
LONGEST = max(LEASES)
CREW = 5  # threads that share a handle

# Errors that are not a failure of the test.
HELD = (tenure.Duplicate, tenure.DependencyNotFound)
LOST = (tenure.LeaseLost, tenure.JobNotFound)


def prepare(url: str) -> None:
    """Create the store and its limits."""
    with tenure.connect(url) as queue:
        queue.limits.set("bounded", tenant="*", concurrency=IN_TENANT)
        queue.limits.set("bounded", group="*", concurrency=IN_GROUP)
        if not is_sharded(url):  # shards refuse limits of whole queues
            queue.limits.set("bounded", concurrency=IN_QUEUE)
            queue.limits.set("rated", rate=RATE, per=PER_SECONDS)


def work(url: str, journal: Journal, name: str, seed: int) -> None:
    """Run several threads, most of them on one handle, until the end, or until the parent process
    is gone."""
    threads = [
        threading.Thread(target=Worker(url, journal, f"{name}.solo", seed).run_alone, daemon=True)
    ]
    shared = connected(url, journal)
    for n in range(CREW):
        worker = Worker(url, journal, f"{name}.crew{n}", seed)
        threads.append(threading.Thread(target=worker.run, args=(shared,), daemon=True))
    for thread in threads:
        thread.start()
    boss = os.getppid()
    while os.getppid() == boss:
        time.sleep(0.5)


def connected(url: str, journal: Journal) -> tenure.Queue:
    """A handle, as soon as a server is available."""
    while True:
        try:
            return tenure.connect(url)
        except tenure.StoreError as error:
            journal.note("not opened", text=str(error))
            time.sleep(0.05)


class Worker:
    """A thread that makes random calls."""

    def __init__(self, url: str, journal: Journal, name: str, seed: int) -> None:
        self._url = url
        self._journal = journal
        self._name = name
        self._random = random.Random(f"{seed}.{name}")
        self._made: list[str] = []
        self._queue: tenure.Queue

    def run_alone(self) -> None:
        """Open and close the store again and again; a server may be away for a while."""
        while True:
            try:
                with connected(self._url, self._journal) as queue:
                    self.run(queue, steps=self._random.randrange(1, 60))
            except BaseException:
                self._journal.note("error", text=traceback.format_exc())

    def run(self, queue: tenure.Queue, steps: int = 10**9) -> None:
        self._queue = queue
        actions = [self._enqueue, self._enqueue_many, self._claim, self._cancel, self._upkeep]
        for _ in range(steps):
            (action,) = self._random.choices(actions, (40, 5, 50, 2, 1))
            try:
                action()
            except tenure.Busy as error:  # a stopped process may hold a lock on PostgreSQL
                self._journal.note("busy", text=str(error))
            except BaseException:
                self._journal.note("error", text=traceback.format_exc())

    # Producing

    def _new(self) -> dict[str, Any]:
        chance = self._random
        job: dict[str, Any] = {
            "queue": chance.choices(QUEUES, (3, 3, 1))[0],
            "id": f"{self._name}.{len(self._made)}",
            "payload": "x" * chance.choice((1, 100, 3000)),
            "tenant": chance.choice(TENANTS),
            "group": chance.choice(GROUPS),
            "priority": chance.choice((0, 0, 0, -1, 5)),
            "max_attempts": chance.choice((1, 2, 3, 10, 10)),
        }
        self._made.append(job["id"])
        if chance.random() < 0.15:
            job["delay"] = chance.random() / 3
        if chance.random() < 0.1:
            job["unique_key"] = f"key-{chance.randrange(20)}"
        if chance.random() < 0.05:
            job["expires_in"] = 0.2 + chance.random()
        if chance.random() < 0.15 and len(self._made) > 5:
            some: tuple[IfParentFails, ...] = ("wait", "cancel", "run")
            job["after"] = chance.sample(self._made[-6:-1], chance.randrange(1, 3))
            job["if_parent_fails"] = chance.choice(some)
        return job

    def _enqueue(self) -> None:
        new = self._new()
        both: tuple[IfExists, ...] = ("error", "skip")
        if_exists = self._random.choice(both)
        self._journal.note("try enqueue", new["id"])
        try:
            job = self._queue.enqueue(**new, if_exists=if_exists)
        except HELD:
            return
        except tenure.InvalidInput as error:
            self._check_refusal(error)
            return
        kind = "enqueued" if job.id == new["id"] else "skipped"
        self._journal.note(kind, job.id)

    def _enqueue_many(self) -> None:
        news = [self._new() for _ in range(self._random.randrange(2, 7))]
        for new in news:
            new.pop("unique_key", None)
        ids = [new["id"] for new in news]
        self._journal.note("try enqueue many", ids=ids)
        try:
            self._queue.enqueue_many([tenure.NewJob(**new) for new in news])
        except HELD:
            return
        except tenure.InvalidInput as error:
            self._check_refusal(error)
            return
        for id in ids:
            self._journal.note("enqueued", id)

    def _check_refusal(self, error: tenure.InvalidInput) -> None:
        """Shards refuse jobs that would have to be on two of them."""
        if "shard" not in error.reason:
            raise error
        self._journal.note("refused by shards", text=error.reason)

    # Working

    def _claim(self) -> None:
        chance = self._random
        jobs = self._queue.claim(
            chance.sample(QUEUES, chance.randrange(1, 4)),
            limit=chance.randrange(1, 5),
            lease=chance.choice(LEASES),
            worker=self._name,
            tenant=chance.choice((None, None, None, "acme")),
        )
        for job in jobs:
            self._journal.note(
                "claimed",
                job.id,
                job.token,
                since=job.started_at,
                until=job.lease_until,
                attempts=job.attempts,
                max_attempts=job.max_attempts,
                scope=[job.queue, job.tenant, job.group],
            )
        for job in jobs:
            self._treat(job)

    def _treat(self, job: tenure.Job) -> None:
        ways = {
            self._ack: 60,
            self._ack_then: 8,
            self._ack_and_remove: 5,
            self._fail: 10,
            self._release: 8,
            self._extend: 6,
            self._leave: 3,
            self._come_late: 2,
        }
        (way,) = self._random.choices(list(ways), list(ways.values()))
        try:
            way(job)
        except LOST as error:
            self._journal.note("refused", job.id, job.token, code=error.code)
        except tenure.Busy as error:  # nothing was changed; the lease will expire
            self._journal.note("busy", job.id, job.token, text=str(error))

    def _ack(self, job: tenure.Job) -> None:
        self._journal.note("try ack", job.id, job.token)
        self._queue.ack(job, self._random.choice((None, {"n": 1})))
        self._journal.note("acked", job.id, job.token)

    def _ack_then(self, job: tenure.Job) -> None:
        then = f"{job.id}+{job.token}"
        self._journal.note("try ack", job.id, job.token, then=then)
        self._queue.ack(job, then=[tenure.NewJob(queue="free", id=then, tenant=job.tenant)])
        self._journal.note("acked", job.id, job.token)
        self._journal.note("enqueued", then)

    def _ack_and_remove(self, job: tenure.Job) -> None:
        self._journal.note("try ack", job.id, job.token, keep=False)
        self._queue.ack(job, keep=False)
        self._journal.note("removed", job.id, job.token)

    def _fail(self, job: tenure.Job) -> None:
        chance = self._random
        self._journal.note("try fail", job.id, job.token)
        state = self._queue.fail(
            job, "boom", retry_in=chance.random() / 4, fatal=chance.random() < 0.1
        )
        self._journal.note("failed", job.id, job.token, state=state)

    def _release(self, job: tenure.Job) -> None:
        self._journal.note("try release", job.id, job.token)
        self._queue.release(job, delay=self._random.choice((0, 0.1)))
        self._journal.note("released", job.id, job.token)

    def _extend(self, job: tenure.Job) -> None:
        # As long as the longest lease, so that a call without a result never shortened one.
        asked_at = self._journal.note("try extend", job.id, job.token)
        self._queue.extend(job, LONGEST)
        until = asked_at + int(LONGEST * 1000)
        self._journal.note("extended", job.id, job.token, until=until)
        self._queue.progress(job, self._random.randrange(101), "on its way")
        self._ack(job)

    def _leave(self, job: tenure.Job) -> None:
        """Abandon the job."""

    def _come_late(self, job: tenure.Job) -> None:
        assert job.lease_until is not None
        time.sleep(max(0, job.lease_until - now_ms() + self._random.randrange(100)) / 1000)
        self._ack(job)

    # Operating

    def _cancel(self) -> None:
        if not self._made:
            return
        id = self._random.choice(self._made[-20:])
        self._journal.note("try cancel", id)
        with suppress(tenure.JobNotFound):
            if self._queue.cancel(id):
                self._journal.note("cancelled", id)

    def _upkeep(self) -> None:
        self._queue.maintain()
        for name in QUEUES:
            try:
                off = self._queue.reconcile(name)
            except tenure.QueueNotFound:
                continue  # it has no jobs yet
            if off:
                self._journal.note("error", text=f"the counters of {name} were off by {off}")


def watch(url: str, journal: Journal) -> None:
    """Read one snapshot of the jobs after the other, and check for what must never be."""
    boss = os.getppid()
    while os.getppid() == boss:
        with connected(url, journal) as queue:
            for n in range(50):
                leased = queue.jobs(queue="bounded", state="leased", limit=1000)
                _look_at_leases(leased, journal, whole=not is_sharded(url))
                if n % 10 == 0:
                    live = ("waiting", "pending", "leased")
                    _look_at_keys(queue.jobs(state=live, limit=10_000), journal)
                journal.note("looked")
                time.sleep(0.002)


def _look_at_leases(page: tenure.Page, journal: Journal, *, whole: bool) -> None:
    scopes = [(job.queue, job.tenant, job.group) for job in page.jobs]
    leased: Counter[tuple[str, ...]] = Counter(scope[:1] for scope in scopes if whole)
    leased.update(scope[:2] for scope in scopes)
    leased.update(scope for scope in scopes if scope[2])
    for scope, n in leased.items():
        if n > (IN_QUEUE, IN_TENANT, IN_GROUP)[len(scope) - 1]:
            journal.note("error", text=f"{n} jobs of {scope} are leased at once")


def _look_at_keys(page: tenure.Page, journal: Journal) -> None:
    keys = Counter((job.queue, job.tenant, job.unique_key) for job in page.jobs)
    for key, n in keys.items():
        if n > 1 and key[2] is not None:
            journal.note("error", text=f"unique key {key} is held by {n} jobs")
