"""What Prometheus is told."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure.features.steps.data import Suspend
from tenure.model import ops
from tenure.observe.metrics import MOST_QUEUES, Metrics, measured
from tenure.queue import store_of
from tenure.server.routes import make_app
from tenure.testing import ManualClock
from tests.support.sizes import let


def scraped(queue: tenure.Queue, metrics: Metrics) -> dict[str, float]:
    """The samples by name and labels."""

    async def ask() -> str:
        transport = httpx.ASGITransport(make_app(queue, metrics=metrics))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            response = await client.get("/metrics")
            assert response.headers["content-type"].startswith("text/plain")
            return response.text

    lines = [line for line in asyncio.run(ask()).splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def opened(metrics: Metrics, clock: Any) -> tenure.Queue:
    return tenure.connect("memory://", clock=clock, wrap=partial(measured, metrics))


def test_the_figures_answer_what_an_operator_asks() -> None:
    clock, metrics = ManualClock(), Metrics()
    with opened(metrics, clock) as queue:
        for _ in range(3):
            queue.enqueue("mail", max_attempts=2)
        clock.advance(10)
        first, second, third = queue.claim("mail", limit=3)
        clock.advance(5)
        queue.ack(first)
        queue.fail(second, "no", fatal=True)
        queue.fail(third, "no", retry_in=0)
        queue.claim("mail")
        assert queue.ack_many([third])[0] is not None  # it has another token now
        found = scraped(queue, metrics)
    expected = {
        'tenure_jobs_enqueued_total{queue="mail"}': 3,
        'tenure_jobs_claimed_total{queue="mail"}': 4,
        'tenure_retries_total{queue="mail"}': 1,
        'tenure_jobs_ended_total{queue="mail",state="done"}': 1,
        'tenure_jobs_ended_total{queue="mail",state="dead"}': 1,
        'tenure_wait_seconds_sum{queue="mail"}': 30,
        'tenure_run_seconds_sum{queue="mail"}': 15,
        "tenure_leases_lost_total": 1,
        'tenure_operations_total{op="Ack",outcome="lease_lost"}': 1,
        'tenure_jobs{queue="mail",state="leased"}': 1,
        'tenure_jobs{queue="mail",state="done"}': 1,
        'tenure_jobs{queue="mail",state="dead"}': 1,
    }
    assert {name: found[name] for name in expected} == expected
    assert found["tenure_operations_per_commit_count"] == found["tenure_commit_seconds_count"]


def test_the_age_of_the_job_that_waits_longest_is_told() -> None:
    clock, metrics = ManualClock(), Metrics()
    with opened(metrics, clock) as queue:
        queue.enqueue("mail", priority=9)
        clock.advance(10)
        queue.enqueue("mail", priority=1)
        queue.enqueue("web", delay=60)
        clock.advance(5)
        found = scraped(queue, metrics)
        assert found['tenure_oldest_ready_seconds{queue="mail"}'] == 15
        assert 'tenure_oldest_ready_seconds{queue="web"}' not in found
        queue.claim("mail", limit=2)
        assert 'tenure_oldest_ready_seconds{queue="mail"}' not in scraped(queue, metrics)


def test_tenants_are_counted_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, tenants_in_metrics=3)
    metrics = Metrics(tenants=True)
    with opened(metrics, ManualClock()) as queue:
        for n in range(5):
            queue.enqueue("mail", tenant=f"t{n}")
        found = scraped(queue, metrics)
    assert found['tenure_tenant_jobs{queue="mail",state="ready",tenant="t0"}'] == 1
    named = {name for name in found if name.startswith("tenure_tenant_jobs") and "ready" in name}
    assert len(named) == 3


def test_a_suspended_job_has_neither_ended_nor_failed() -> None:
    clock, metrics = ManualClock(), Metrics()
    with opened(metrics, clock) as queue:
        queue.enqueue("mail")
        (job,) = queue.claim("mail")
        clock.advance(3)
        store_of(queue).do([Suspend(job.id, job.token, "nap", delay_ms=1_000)])
        clock.advance(1)
        (job,) = queue.claim("mail")
        clock.advance(5)
        queue.ack(job)
        found = scraped(queue, metrics)
    expected = {
        'tenure_operations_total{op="Suspend",outcome="ok"}': 1,
        'tenure_jobs_claimed_total{queue="mail"}': 2,
        'tenure_jobs_ended_total{queue="mail",state="done"}': 1,
        'tenure_run_seconds_sum{queue="mail"}': 5,
    }
    assert {name: found[name] for name in expected} == expected
    assert not any("retries" in name for name in found)


def test_what_is_done_once_is_counted_as_what_it_is() -> None:
    metrics = Metrics()
    with opened(metrics, ManualClock()) as queue:
        spec = store_of(queue).prepare([tenure.NewJob(queue="mail")])
        store_of(queue).do([ops.Once("k", (ops.Enqueue(tuple(spec)),))])
        found = scraped(queue, metrics)
    assert found['tenure_operations_total{op="Enqueue",outcome="ok"}'] == 1
    assert found['tenure_jobs_enqueued_total{queue="mail"}'] == 1


def test_calls_of_one_commit_are_counted_by_their_outcomes() -> None:
    clock, metrics = ManualClock(), Metrics()
    with opened(metrics, clock) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail", id=f"{n}") for n in range(3)])
        clock.advance(0.001)  # an edge of a bucket belongs to it
        jobs = queue.claim("mail", limit=2)
        clock.advance(1)
        again = ops.Enqueue(tuple(store_of(queue).prepare([tenure.NewJob(queue="mail", id="1")])))
        skips = ops.Enqueue(again.jobs, "skip")
        new = ops.Enqueue(tuple(store_of(queue).prepare([tenure.NewJob(queue="mail")])))
        acks = [ops.Ack(jobs[0].id, jobs[0].token), ops.Ack(jobs[1].id, jobs[1].token + 1)]
        claims = [ops.Claim(("mail",), "w", 1000), ops.Claim(("none",), "w", 1000)]
        store_of(queue).do([*acks, again, new, skips, ops.Once("k", (acks[0],)), *claims])
        found = scraped(queue, metrics)
    expected = {
        'tenure_operations_total{op="Ack",outcome="ok"}': 2,  # one of them is repeated
        'tenure_operations_total{op="Ack",outcome="lease_lost"}': 1,
        'tenure_operations_total{op="Enqueue",outcome="ok"}': 3,
        'tenure_operations_total{op="Enqueue",outcome="duplicate"}': 1,
        'tenure_operations_total{op="Claim",outcome="ok"}': 3,
        'tenure_jobs_enqueued_total{queue="mail"}': 4,
        'tenure_jobs_claimed_total{queue="mail"}': 3,
        'tenure_jobs_ended_total{queue="mail",state="done"}': 1,
        'tenure_wait_seconds_bucket{le="0.001",queue="mail"}': 2,
        'tenure_wait_seconds_bucket{le="1.0",queue="mail"}': 2,
        'tenure_wait_seconds_bucket{le="5.0",queue="mail"}': 3,
        'tenure_wait_seconds_bucket{le="+Inf",queue="mail"}': 3,
        'tenure_wait_seconds_count{queue="mail"}': 3,
        'tenure_run_seconds_count{queue="mail"}': 1,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_the_labels_are_bounded() -> None:
    metrics = Metrics()
    with opened(metrics, ManualClock()) as queue:
        for n in range(MOST_QUEUES + 50):
            queue.enqueue(f"q{n}", tenant=f"tenant-{n}")
        found = scraped(queue, metrics)
    names = [name for name in found if name.startswith("tenure_jobs_enqueued_total")]
    assert len(names) == MOST_QUEUES + 1
    assert found['tenure_jobs_enqueued_total{queue="other"}'] == 50
    assert not any("tenant-" in name for name in found)


def test_the_length_of_the_log_is_told_of_a_file_only(tmp_path: Path) -> None:
    metrics = Metrics()
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tenure.connect(url, wrap=partial(measured, metrics)) as queue:
        queue.enqueue("mail", "x" * 10_000)
        length = (tmp_path / "jobs.db-wal").stat().st_size
        assert length > 10_000
        assert scraped(queue, metrics)["tenure_log_bytes"] == length
    other = Metrics()
    with opened(other, ManualClock()) as queue:
        assert "tenure_log_bytes" not in scraped(queue, other)
