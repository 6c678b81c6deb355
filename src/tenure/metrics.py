"""Counting what happens: wraps an engine once, so that no engine counts anything itself.

Names of queues are labels, up to a number; tenants are not. What is counted is what this process
does; how many jobs there are is asked of the store when somebody looks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tenure import ops
from tenure.clock import Clock
from tenure.engines import Engine
from tenure.errors import LeaseLost, TenureError
from tenure.job import Job, State
from tenure.ops import Answer, Found, Op, Query, Stats

MOST_QUEUES = 100  # that get labels of their own; the others are "other"
MOST_RUNNING = 100_000  # jobs whose start is remembered
WAITS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 20, 60, 300, 1800, 7200, 86_400)
COMMITS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)


class Metrics:
    """The figures of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry}
        self.operations = Counter(
            "tenure_operations", "Operations by kind and outcome.", ["op", "outcome"], **kept
        )
        self.commits = Histogram(
            "tenure_commit_seconds", "How long a commit took.", buckets=COMMITS, **kept
        )
        self.batch = Histogram(
            "tenure_operations_per_commit", "Operations that shared it.", buckets=SIZES, **kept
        )
        self.enqueued = Counter("tenure_jobs_enqueued", "Jobs enqueued.", ["queue"], **kept)
        self.claimed = Counter("tenure_jobs_claimed", "Jobs claimed.", ["queue"], **kept)
        self.retries = Counter("tenure_retries", "Attempts after the first.", ["queue"], **kept)
        self.ended = Counter("tenure_jobs_ended", "Jobs that ended.", ["queue", "state"], **kept)
        self.lost = Counter("tenure_leases_lost", "Operations with a lease that was lost.", **kept)
        self.waited = Histogram(
            "tenure_wait_seconds", "From ready to claimed.", ["queue"], buckets=WAITS, **kept
        )
        self.ran = Histogram(
            "tenure_run_seconds", "From claimed to ended.", ["queue"], buckets=WAITS, **kept
        )
        self.jobs = Gauge("tenure_jobs", "Jobs in the store.", ["queue", "state"], **kept)
        self._queues: set[str] = set()

    def label(self, queue: str) -> str:
        """The label of a queue; those that come late share one."""
        if queue not in self._queues:
            if len(self._queues) >= MOST_QUEUES:
                return "other"
            self._queues.add(queue)
        return queue

    def text(self, stats: Stats) -> bytes:
        """All of it, as Prometheus reads it."""
        self.jobs.clear()
        for one in stats.queues.values():
            for state, count in ops.as_counts(one).items():
                self.jobs.labels(self.label(one.queue), state).inc(count)
        return generate_latest(self.registry)


class Measured:
    """An engine that is counted."""

    def __init__(self, engine: Engine, metrics: Metrics, clock: Clock) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._running: OrderedDict[tuple[str, int], tuple[str, int]] = OrderedDict()

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        began = self._clock.monotonic()
        answers = self._engine.apply(batch)
        self._metrics.commits.observe(self._clock.monotonic() - began)
        self._metrics.batch.observe(len(batch))
        given = [
            one
            for answer in answers
            for one in (answer.answers if isinstance(answer, ops.Answers) else [answer])
        ]
        for op, answer in zip(ops.flat(batch), given, strict=True):
            self._note(op, answer)
        return answers

    def _note(self, op: Op, answer: Answer) -> None:
        refused = isinstance(answer, TenureError)
        outcome = answer.code if isinstance(answer, TenureError) else "ok"
        self._metrics.operations.labels(type(op).__name__, outcome).inc()
        if isinstance(answer, LeaseLost):
            self._metrics.lost.inc()
        if refused:
            return
        if isinstance(op, ops.Enqueue) and isinstance(answer, ops.Enqueued):
            for spec, created in zip(op.jobs, answer.created, strict=True):
                if created:
                    self._metrics.enqueued.labels(self._metrics.label(spec.queue)).inc()
        elif isinstance(answer, ops.Leased):
            for job in answer.jobs:
                self._claimed(job)
        elif isinstance(op, ops.Ack):
            self._ended(op.id, op.token, State.DONE)
        elif isinstance(op, ops.Fail | ops.Release) and isinstance(answer, ops.Moved):
            self._ended(op.id, op.token, answer.state)

    def _claimed(self, job: Job) -> None:
        queue = self._metrics.label(job.queue)
        started = job.started_at or job.updated_at
        self._metrics.claimed.labels(queue).inc()
        if job.attempts > 1:
            self._metrics.retries.labels(queue).inc()
        self._metrics.waited.labels(queue).observe(max(0, started - job.run_at) / 1000)
        self._running[job.id, job.token] = (queue, started)
        if len(self._running) > MOST_RUNNING:
            self._running.popitem(last=False)

    def _ended(self, id: str, token: int, state: State) -> None:
        queue, started = self._running.pop((id, token), ("", 0))
        if queue:
            ran = max(0, self._clock.now_ms() - started) / 1000
            self._metrics.ran.labels(queue).observe(ran)
            if state is not State.PENDING:
                self._metrics.ended.labels(queue, state.value).inc()

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        return self._engine.apply_within(connection, batch)

    def read(self, query: Query) -> Found:
        return self._engine.read(query)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._engine.listen(wake)

    def close(self) -> None:
        self._engine.close()


def measured(metrics: Metrics, engine: Engine, clock: Clock) -> Engine:
    """Wrap an engine, as `connect(wrap=...)` takes it."""
    return Measured(engine, metrics, clock)
