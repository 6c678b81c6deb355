"""Metrics: a wrapper around an engine counts operations, so that engines do not have to.

Queue names are labels, up to a maximum number; tenants are labels only on request. Counters cover
what this process does; the numbers of jobs are read from the store when the metrics are scraped.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from tenure.clock import Clock
from tenure.engines import ClaimsAtOnce, Engine, HasLog, HasShards, PartOf, parts_of
from tenure.errors import LeaseLost, TenureError
from tenure.features.steps.data import Suspend
from tenure.model import ops, queries
from tenure.model.job import Job, State
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tenure.queue import Calls
from tenure.queue.running import Claims, Running

log = logging.getLogger("tenure.metrics")

MOST_QUEUES = 100  # that get their own labels; the rest is "other"
MOST_TENANTS = 1_000  # that get their own labels, on request
WAITS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 20, 60, 300, 1800, 7200, 86_400)
COMMITS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)

Labels = tuple[str, ...]

# The answers of the most frequent operations; their runs are counted together.
_USUAL: dict[type[Op], type] = {
    ops.Ack: ops.Ok,
    ops.Enqueue: ops.Enqueued,
    ops.Claim: ops.Leased,
}
_queue_of = attrgetter("queue")


class Tally:
    """A counter, by labels."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self._about = (name, about)
        self._labels = labels
        self.counts: Counter[Labels] = Counter()

    def family(self) -> Metric:
        found = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, count in self.counts.items():
            found.add_metric(labels, count)
        return found


class Gauge:
    """A gauge, by labels."""

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self._about = (name, about)
        self._labels = labels
        self.values: dict[Labels, float] = {}

    def family(self) -> Metric:
        found = GaugeMetricFamily(*self._about, labels=self._labels)
        for labels, value in self.values.items():
            found.add_metric(labels, value)
        return found


class Spread:
    """A histogram, by labels."""

    def __init__(self, name: str, about: str, edges: Sequence[float], *labels: str) -> None:
        self._about = (name, about)
        self._edges = edges
        self._labels = labels
        self._rows: dict[Labels, list[int]] = {}
        self._sums: defaultdict[Labels, float] = defaultdict(float)

    def add(self, value: float, *labels: str, count: int = 1) -> None:
        self._row_of(labels)[bisect_left(self._edges, value)] += count
        self._sums[labels] += value * count

    def add_all(self, values: Sequence[float], *labels: str) -> None:
        row, in_order, before = self._row_of(labels), sorted(values), 0
        for at, edge in enumerate((*self._edges, math.inf)):
            up_to = bisect_right(in_order, edge)
            row[at] += up_to - before
            before = up_to
        self._sums[labels] += sum(values)

    def _row_of(self, labels: Labels) -> list[int]:
        row = self._rows.get(labels)
        if row is None:
            row = self._rows[labels] = [0] * (len(self._edges) + 1)
        return row

    def family(self) -> Metric:
        found = HistogramMetricFamily(*self._about, labels=self._labels)
        names = [*[f"{float(edge)}" for edge in self._edges], "+Inf"]
        for labels, row in self._rows.items():
            up_to = 0
            buckets = []
            for name, count in zip(names, row, strict=True):
                up_to += count
                buckets.append((name, float(up_to)))
            found.add_metric(labels, buckets, self._sums[labels])
        return found


class Metrics:
    """The metrics of one process."""

    def __init__(self, *, tenants: bool = False) -> None:
        """tenants: also count the jobs of each tenant."""
        self.lock: threading.Lock = (
            threading.Lock()
        )  # held while a batch is counted, or the metrics are written
        self.operations: Tally = Tally(
            "tenure_operations", "Operations by kind and outcome.", "op", "outcome"
        )
        self.commits: Spread = Spread("tenure_commit_seconds", "How long a commit took.", COMMITS)
        self.batch: Spread = Spread("tenure_operations_per_commit", "Operations per commit.", SIZES)
        self.enqueued: Tally = Tally("tenure_jobs_enqueued", "Jobs enqueued.", "queue")
        self.claimed: Tally = Tally("tenure_jobs_claimed", "Jobs claimed.", "queue")
        self.retries: Tally = Tally("tenure_retries", "Attempts after the first.", "queue")
        self.unknown: Tally = Tally(
            "tenure_unknown_kinds", "Jobs left for others by a worker without their task.", "queue"
        )
        self.ended: Tally = Tally("tenure_jobs_ended", "Jobs that finished.", "queue", "state")
        self.lost: Tally = Tally(
            "tenure_leases_lost", "Operations rejected because the lease was lost."
        )
        self.waited: Spread = Spread(
            "tenure_wait_seconds", "From ready to claimed.", WAITS, "queue"
        )
        self.ran: Spread = Spread("tenure_run_seconds", "From claimed to finished.", WAITS, "queue")
        self.jobs: Gauge = Gauge("tenure_jobs", "Jobs in the store.", "queue", "state")
        self.oldest: Gauge = Gauge(
            "tenure_oldest_ready_seconds",
            "How long the longest-waiting ready job has been ready.",
            "queue",
        )
        self.tenants: Gauge = Gauge(
            "tenure_tenant_jobs", "Jobs by tenant.", "queue", "tenant", "state"
        )
        self.log: Gauge = Gauge("tenure_log_bytes", "Size of the write-ahead log of a SQLite file.")
        self.log_of: HasLog | None = None
        self.away: Gauge = Gauge("tenure_shards_away", "Shards that do not respond.")
        self.shards: HasShards | None = None
        self._counts_tenants = tenants
        self._queues: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self.lost.counts[()] = 0  # so that it is exported from the start

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families; called by the registry."""
        for one in vars(self).values():
            if isinstance(one, Tally | Gauge | Spread):
                yield one.family()

    def label(self, queue: str) -> str:
        """The label of a queue. Queues beyond the maximum share one."""
        if queue not in self._queues:
            if len(self._queues) >= MOST_QUEUES:
                return "other"
            self._queues.add(queue)
        return queue

    async def text(self, queue: Calls) -> bytes:
        """All metrics in Prometheus format, with current numbers from the store."""
        stats = await queue.astats()
        waiting: dict[str, list[str]] = {}
        jobs: defaultdict[Labels, float] = defaultdict(float)
        for one in stats.queues.values():
            label = self.label(one.queue)
            for state, count in queries.as_counts(one).items():
                jobs[label, state] += count
            if one.ready:
                waiting.setdefault(label, []).append(one.queue)
        self.jobs.values = jobs
        oldest: dict[Labels, float] = {}
        for label, queues in waiting.items():
            since = await queue.aoldest_ready(queues)
            if since is not None:
                oldest[label,] = max(0, queue.clock.now_ms() - since) / 1000
        self.oldest.values = oldest
        if self._counts_tenants:
            self.tenants.values = await self._by_tenant(queue, list(stats.queues))
        if self.log_of is not None:
            self.log.values[()] = self.log_of.log_bytes() or 0
        if self.shards is not None:
            self.away.values[()] = len(self.shards.away())
        with self.lock:
            return generate_latest(self._registry)

    async def _by_tenant(self, queue: Calls, names: Sequence[str]) -> dict[Labels, float]:
        """Counts per tenant, queue by queue, up to a maximum number of tenants."""
        found: defaultdict[Labels, float] = defaultdict(float)
        left = MOST_TENANTS
        for name in names:
            if not left:
                break
            for one in await queue.atenants(name, limit=left):
                left -= 1
                for state, count in queries.as_counts(one).items():
                    found[self.label(name), one.tenant, state] += count
        return found


class Measured:
    """An engine wrapped with metrics."""

    def __init__(self, engine: Engine, metrics: Metrics, clock: Clock) -> None:
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._running = Running()
        self.part_of: PartOf | None = parts_of(engine)

    @property
    def in_flight(self) -> int:
        return self._engine.in_flight

    @property
    def claims_at_once(self) -> bool:
        return isinstance(self._engine, ClaimsAtOnce) and self._engine.claims_at_once

    # path: operations measured
    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        began = self._clock.monotonic()
        answers = self._engine.apply(batch)
        try:
            self._count(batch, answers, self._clock.monotonic() - began)
        except Exception:  # the batch is committed, so it must not be reported as failed
            log.exception("a commit could not be counted")
        return answers

    def _count(self, batch: Sequence[Op], answers: Sequence[Answer], took: float) -> None:
        now = self._clock.now_ms()
        with self._metrics.lock:
            self._metrics.commits.add(took)
            self._metrics.batch.add(len(batch))
            for kind, some, given in ops.runs(batch, answers):
                usual = _USUAL.get(kind)
                if usual is None or set(map(type, given)) != {usual}:
                    for op, answer in zip(some, given, strict=True):
                        self._note(op, answer, now)
                    continue
                self._metrics.operations.counts[kind.__name__, "ok"] += len(some)
                if kind is ops.Ack:
                    self._acked(some, now)
                elif kind is ops.Claim:
                    self._claimed(given)
            self._added(batch, answers)

    def _acked(self, acked: Sequence[ops.Ack], now: int) -> None:
        for claims, count in self._running.end_all(acked)[0]:
            self._ended(claims, State.DONE, now, count)

    def _added(self, batch: Sequence[Op], answers: Sequence[Answer]) -> None:
        for queue, count in ops.count_added(batch, answers).items():
            self._metrics.enqueued.counts[self._metrics.label(queue),] += count

    def _note(self, op: Op, answer: Answer, now: int) -> None:
        metrics, kind = self._metrics, type(op).__name__
        if isinstance(answer, TenureError):
            metrics.operations.counts[kind, answer.code] += 1
            if isinstance(answer, LeaseLost):
                metrics.lost.counts[()] += 1
            return
        metrics.operations.counts[kind, "ok"] += 1
        if isinstance(op, ops.Ack):
            if isinstance(answer, ops.Ok):  # otherwise it repeats one that was counted
                self._acked([op], now)
        elif isinstance(op, ops.Claim):
            self._claimed([answer])
        elif isinstance(op, ops.Fail | ops.Release) and isinstance(answer, ops.Moved):
            claims = self._running.end(op.id, op.token)
            if claims is not None:
                if op.type == ops.UNKNOWN_KIND:
                    metrics.unknown.counts[metrics.label(claims.queue),] += 1
                self._ended(claims, answer.state, now)
        elif isinstance(op, Suspend):  # neither failed nor done
            self._running.end(op.id, op.token)

    # path: claims measured
    def _claimed(self, answers: Sequence[Any]) -> None:
        """Count the jobs that were claimed in one commit."""
        metrics = self._metrics
        by_queue: defaultdict[str, list[Job]] = defaultdict(list)
        for answer in answers:
            if answer.jobs:
                self._running.add(answer.jobs)
                for queue, some in itertools.groupby(answer.jobs, _queue_of):
                    by_queue[queue].extend(some)
        for queue, jobs in by_queue.items():
            label = metrics.label(queue)
            metrics.claimed.counts[label,] += len(jobs)
            waits = [(job.started_at or job.updated_at) - job.run_at for job in jobs]
            metrics.waited.add_all([ms / 1000 if ms > 0 else 0.0 for ms in waits], label)
            again = sum([job.attempts > 1 for job in jobs])
            if again:
                metrics.retries.counts[label,] += again

    # path: ends measured
    def _ended(self, claims: Claims, state: State, now: int, count: int = 1) -> None:
        queue = self._metrics.label(claims.queue)
        self._metrics.ran.add(max(0, now - claims.started_at) / 1000, queue, count=count)
        if state is not State.PENDING:
            self._metrics.ended.counts[queue, state.value] += count

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        return self._engine.apply_within(connection, batch)

    def read(self, query: Query) -> Found:
        return self._engine.read(query)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._engine.listen(wake)

    def close(self) -> None:
        self._engine.close()


class MeasuredShards(Measured):
    """The same for an engine with shards."""

    def away(self) -> dict[str, str]:
        assert isinstance(self._engine, HasShards)
        return self._engine.away()


def measured(metrics: Metrics, engine: Engine, clock: Clock) -> Engine:
    """Wrap an engine with metrics; bind `metrics` and pass it as `connect(wrap=...)`."""
    if isinstance(engine, HasLog):
        metrics.log_of = engine
    if not isinstance(engine, HasShards):
        return Measured(engine, metrics, clock)
    metrics.shards = engine
    return MeasuredShards(engine, metrics, clock)
