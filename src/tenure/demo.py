"""A small demo: three tenants, a worker, some failures, one job that ends up dead.

It runs once, for a few seconds. `tenure serve --demo` runs demo_app.py instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tenure.clock import Clock
from tenure.model.job import Job, NewJob
from tenure.model.retry import fixed
from tenure.queue import Queue

QUEUE = "demo"
WORK_SECONDS = 0.08  # per job
LONGEST_SECONDS = 4.5

# For each tenant, how often each of its jobs fails before it succeeds.
FAILURES = {
    "acme": [0, 0, 1, 0, 0, 0, 0, 0],
    "bolt": [0, 2, 0, 0],
    "cask": [0, 9, 0],
}


def demo_jobs() -> Iterator[NewJob]:
    """Emails to send, with at most three attempts, 0.3 seconds apart."""
    for tenant, failures in FAILURES.items():
        for n, fails in enumerate(failures, 1):
            yield NewJob(
                queue=QUEUE,
                payload={"to": f"{n}@{tenant}.example", "fails": fails},
                kind="email",
                tenant=tenant,
                max_attempts=3,
                backoff=fixed(0.3),
            )


def work(queue: Queue, clock: Clock, tell: Callable[[Job, str], None]) -> None:
    """Run the jobs until all are finished, and report the outcome of each attempt to `tell`."""
    deadline = clock.monotonic() + LONGEST_SECONDS
    while clock.monotonic() < deadline:
        jobs = queue.claim(QUEUE, lease=10, worker="demo")
        if not jobs:
            if not queue.stats(QUEUE).unfinished:
                return
            clock.sleep(0.05)
        for job in jobs:
            tell(job, "claimed")
            clock.sleep(WORK_SECONDS)
            if job.attempts <= job.payload["fails"]:
                state = queue.fail(job, ConnectionError("the mail server hung up"))
                tell(job, "dead" if state == "dead" else "failed, will be tried again")
            else:
                queue.ack(job, {"sent": True})
                tell(job, "done")
