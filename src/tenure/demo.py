"""A small demo: three tenants, a worker, some failures, one job that ends up dead.

It runs once, for a few seconds (`demo_jobs`, `work`), or as long as a service runs (`app`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from tenure.clock import Clock
from tenure.model.job import Job, NewJob
from tenure.model.retry import fixed
from tenure.queue import Queue
from tenure.tasks.app import Tenure
from tenure.worker.current_job import current_job

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


app = Tenure()
ROUNDS_SECONDS = 20  # over which the jobs of one round are spread


@app.task(queue=QUEUE, max_attempts=3, backoff=fixed(5))
async def email(to: str, fails: int = 0) -> dict[str, bool]:
    """Take a while, and fail the first `fails` times."""
    job = current_job()
    for percent in (25, 50, 75):
        await asyncio.sleep(0.2)
        job.progress(percent)
    if job.job.attempts <= fails:
        raise ConnectionError("the mail server hung up")
    return {"sent": True}


@app.cron("*/20 * * * * *", catch_up="none", queue=QUEUE)
async def next_round() -> None:
    """Enqueue the same jobs again, spread over the time until the next round."""
    jobs = list(demo_jobs())
    for n, new in enumerate(jobs):
        later = email.using(tenant=new.tenant, delay=n * ROUNDS_SECONDS / len(jobs))
        await later.aenqueue(**new.payload)
