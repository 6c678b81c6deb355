"""Moves that many tests make on the way to what they are about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure import Job, NewJob, Queue, State

BIG = {"text": "ø" * 5_000}  # a payload that some engines store apart


def take(queue: Queue, /, name: str = "q", **options: Any) -> Job:
    """Claim one job, which must be there."""
    (job,) = queue.claim(name, limit=1, **options)
    return job


def grab(queue: Queue, /, **options: Any) -> list[Job]:
    """All that can be claimed now."""
    jobs: list[Job] = []
    while more := queue.claim("q", limit=100, **options):
        jobs += more
    return jobs


def ids(jobs: Iterable[Job]) -> list[str]:
    return [job.id for job in jobs]


def drain(queue: Queue, /, name: str = "q", **options: Any) -> list[str]:
    """Claim and finish one job after the other; the ids in the order in which they came."""
    seen: list[str] = []
    while jobs := queue.claim(name, **options):
        seen += ids(jobs)
        assert queue.ack_many(jobs) == [None] * len(jobs)
    return seen


def fill(
    queue: Queue, count: int, *, name: str = "q", prefix: str = "", **fields: Any
) -> list[str]:
    """Enqueue jobs that differ in nothing but their id."""
    return queue.enqueue_many(NewJob(queue=name, id=f"{prefix}{n}", **fields) for n in range(count))


def make_dead(queue: Queue, job_id: str, name: str = "q", **fields: Any) -> Job:
    """A dead job, in a queue that has no other ready one."""
    queue.enqueue(name, id=job_id, **fields)
    queue.fail(take(queue, name), "boom", fatal=True)
    return queue.get(job_id)


def make_done(queue: Queue, job_id: str, name: str = "q", **fields: Any) -> Job:
    """A done job, in a queue that has no other ready one."""
    queue.enqueue(name, id=job_id, **fields)
    queue.ack(take(queue, name), "result")
    return queue.get(job_id)


def make_cancelled(queue: Queue, job_id: str, name: str = "q", **fields: Any) -> Job:
    queue.enqueue(name, id=job_id, **fields)
    queue.cancel(job_id)
    return queue.get(job_id)


def state_of(queue: Queue, job_id: str) -> State:
    return queue.get(job_id).state
