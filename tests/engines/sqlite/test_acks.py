"""Acks of one batch: those that are alike are written together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import tenure
from tenure import Job, NewJob
from tenure.errors import LeaseLost
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.queue import store_of
from tests.support.audit import audit


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(f"sqlite:///{tmp_path}/jobs.db") as queue:
        yield queue
    assert audit(tmp_path / "jobs.db") == []


def claimed(queue: tenure.Queue, *, times: int, each: int) -> list[Job]:
    """Jobs of several claims, each with a token of its own."""
    queue.enqueue_many([NewJob(queue="q", id=f"job-{n}") for n in range(times * each)])
    return [job for _ in range(times) for job in queue.claim("q", limit=each)]


def acked(queue: tenure.Queue, acks: list[ops.Ack]) -> list[Any]:
    return store_of(queue).engine.apply(acks)


@pytest.mark.parametrize("results", [["null"] * 4, ["1"] * 4, ["null", "1", "null", "2"]])
@pytest.mark.parametrize("times", [1, 2, 4])
def test_each_job_gets_its_result(queue: tenure.Queue, times: int, results: list[str]) -> None:
    jobs = claimed(queue, times=times, each=4 // times)
    acks = [
        ops.Ack(job.id, job.token, NULL if text == "null" else Raw(text.encode()))
        for job, text in zip(jobs, results, strict=True)
    ]
    assert acked(queue, acks) == [ops.Ok()] * 4
    found = [queue.get(job.id) for job in jobs]
    assert [job.raw_result for job in found] == [Raw(text.encode()) for text in results]
    assert {job.state for job in found} == {"done"}


def test_an_ack_with_another_token_does_not_stop_the_others(queue: tenure.Queue) -> None:
    jobs = claimed(queue, times=2, each=2)
    acks = [ops.Ack(job.id, job.token) for job in jobs]
    acks[1] = ops.Ack(jobs[1].id, jobs[3].token)
    answers = acked(queue, acks)
    assert [type(answer) for answer in answers] == [ops.Ok, LeaseLost, ops.Ok, ops.Ok]
    assert [queue.get(job.id).state for job in jobs] == ["done", "leased", "done", "done"]


def test_acks_that_do_more_stay_in_order_among_plain_ones(queue: tenure.Queue) -> None:
    jobs = claimed(queue, times=1, each=4)
    then = JobSpec("then", "q", Raw(b"1"))
    acks = [ops.Ack(job.id, job.token) for job in jobs]
    acks[1] = ops.Ack(jobs[1].id, jobs[1].token, NULL, (then,))
    acks[2] = ops.Ack(jobs[2].id, jobs[2].token, NULL, (), False)
    assert acked(queue, acks) == [ops.Ok()] * 4
    assert queue.stats().done == 3
    assert [job.id for job in queue.claim("q", limit=5)] == ["then"]
    with pytest.raises(tenure.JobNotFound):
        queue.get("job-2")
