"""Renewals of leases wait for no other call of the same handle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.features.rates.counter import RateCounter
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Op
from tenure.queue import store_of
from tests.crash.watched import PATIENCE, Watched, handed_in, opened, start
from tests.support.sizes import let

AT_ONCE = pytest.mark.parametrize("in_flight", [1, 2, 4])


class Slow(Watched):
    """A store that holds up everything but renewals."""

    def __init__(self, in_flight: int) -> None:
        super().__init__(MemoryEngine(SystemClock(), 1000), in_flight)
        self.go_on = threading.Event()
        self.held = threading.Semaphore(0)
        self.before = self._hold

    def _hold(self, batch: Sequence[Op]) -> None:
        if not any(isinstance(op, ops.Extend) for op in batch) and not self.go_on.is_set():
            self.held.release()
            assert self.go_on.wait(2 * PATIENCE)  # longer than any test waits for an answer


@pytest.fixture
def engine(in_flight: int) -> Iterator[Slow]:
    engine = Slow(in_flight)
    yield engine
    engine.go_on.set()


@contextmanager
def held_up(engine: Slow, **options: int) -> Iterator[tenure.Queue]:
    """A queue of this store, which is closed when nothing hangs any more."""
    with opened(engine, **options) as queue:
        try:
            yield queue
        finally:
            engine.go_on.set()


def claimed(queue: tenure.Queue) -> Job:
    queue.enqueue("mail")
    (job,) = queue.claim("mail")
    return job


def slowed(engine: Slow, queue: tenure.Queue, waiting: int = 20) -> Job:
    """A claimed job, while all lines are full of calls that hang."""
    engine.go_on.set()
    job = claimed(queue)
    engine.go_on.clear()
    for _ in range(max(1, engine.in_flight - 1)):
        start(queue.enqueue, "mail")
        assert engine.held.acquire(timeout=PATIENCE)
    if engine.in_flight > 1:
        start(queue.claim, "mail")
        assert engine.held.acquire(timeout=PATIENCE)
    for _ in range(waiting):
        start(queue.enqueue, "mail")
    handed_in(queue, waiting)
    return job


@AT_ONCE
def test_a_renewal_does_not_wait_for_calls_that_hang(engine: Slow) -> None:
    with held_up(engine) as queue:
        job = slowed(engine, queue)
        start(queue.extend, job, 60).result(PATIENCE)
        asyncio.run(asyncio.wait_for(queue.aextend_many([job], 60), PATIENCE))


@AT_ONCE
def test_a_renewal_is_not_rejected_because_too_much_else_waits(engine: Slow) -> None:
    with held_up(engine, max_waiting=10) as queue:
        job = slowed(engine, queue, waiting=10)
        with pytest.raises(tenure.Busy):
            queue.enqueue("mail")
        assert queue.extend_many([job], 60) == [None]
        assert asyncio.run(asyncio.wait_for(queue.aextend_many([job], 60), PATIENCE)) == [None]


@pytest.mark.parametrize("in_flight", [2])
def test_a_renewal_that_hangs_does_not_delay_the_next(engine: Slow) -> None:
    first = threading.Event()

    def before(batch: Sequence[Op]) -> None:
        if isinstance(batch[0], ops.Extend) and not first.is_set():
            first.set()
            assert engine.go_on.wait(PATIENCE)

    with opened(engine) as queue:
        engine.go_on.set()
        job = claimed(queue)
        engine.go_on.clear()
        engine.before = before
        hanging = start(queue.extend, job, 60)
        assert first.wait(PATIENCE)
        start(queue.extend, job, 60).result(PATIENCE)
        asyncio.run(asyncio.wait_for(queue.aextend_many([job], 60), PATIENCE))
        assert not hanging.done()
        engine.go_on.set()
        hanging.result(PATIENCE)


def test_a_renewal_carries_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their records are of other jobs, and perhaps on a shard that is away."""
    let(monkeypatch, seconds_between_counts_of_rates=0.0)
    engine, clock = Watched(MemoryEngine(SystemClock(), 1000)), SystemClock()
    with tenure.Queue(engine, tenure.Settings(), clock, rates=RateCounter(clock)) as queue:
        job = claimed(queue)
        queue.extend(job, 60)
        queue.enqueue("mail")
    kinds = [[type(op).__name__ for op in batch] for batch in engine.batches]
    assert kinds[2] == ["Extend"]
    assert kinds[3][1:] == ["PutRecords"]


@pytest.mark.parametrize("in_flight", [4])
def test_what_is_sent_aside_delays_nobody_and_is_not_delayed(engine: Slow) -> None:
    with opened(engine) as queue:
        queue.sign(by="ann")
        engine.go_on.set()
        job = claimed(queue)
        engine.go_on.clear()
        engine.before = lambda batch: (
            isinstance(batch[0], ops.SetLimit) and engine.go_on.wait(PATIENCE)
        )
        aside = start(store_of(queue).do_aside, [ops.SetLimit("mail", None, None, 5)])
        queue.extend(job, 60)
        for _ in range(8):
            queue.enqueue("mail")
        assert not aside.done()
        closed = start(queue.close)
        engine.go_on.set()
        closed.result(PATIENCE)
        assert any(isinstance(batch[0], ops.SetLimit) for batch in engine.batches)
        assert aside.result(PATIENCE) == [ops.Ok()]
        with pytest.raises(tenure.Closed):
            store_of(queue).do_aside([ops.Ack(job.id, job.token)])
    noted = [op.note for batch in engine.batches for op in batch if isinstance(op, ops.SetLimit)]
    assert noted == [ops.Note("ann", "")]
