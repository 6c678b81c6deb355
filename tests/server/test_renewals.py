"""A client of a service renews its leases while its other calls hang."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.model.ops import Op
from tenure.server.routes import make_app
from tests.crash.watched import PATIENCE, Watched, opened, start, until
from tests.server.host import host


class Store(Watched):
    """A store that holds up the jobs of one queue."""

    def __init__(self) -> None:
        super().__init__(MemoryEngine(SystemClock(), 1000), in_flight=4)
        self.held, self.go_on = threading.Event(), threading.Event()
        self.before = self._hold

    def _hold(self, batch: Sequence[Op]) -> None:
        for op in ops.flat(batch):
            if isinstance(op, ops.Enqueue) and op.jobs[0].queue == "slow":
                self.held.set()
                assert self.go_on.wait(PATIENCE)


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.go_on.set()


@pytest.fixture
def url(store: Store) -> Iterator[str]:
    with opened(store) as queue:
        name = f"renewals-{id(store)}"
        host().services[name] = make_app(queue)
        yield f"{host().url}/{name}"
        store.go_on.set()
        host().services.pop(name).news.close()


def test_a_renewal_does_not_wait_for_a_call_that_hangs(store: Store, url: str) -> None:
    with tenure.connect(url) as queue:
        queue.enqueue("q")
        (job,) = queue.claim("q", lease=30)
        hanging = start(queue.enqueue, "slow")
        assert store.held.wait(PATIENCE)
        start(queue.extend, job, 3600).result(PATIENCE)
        start(queue.claim, "q").result(PATIENCE)  # nor does a claim
        assert not hanging.done()
        store.go_on.set()
        hanging.result(PATIENCE)


def test_a_worker_keeps_its_leases_while_one_of_its_calls_hangs(store: Store, url: str) -> None:
    lease, ran, seen = 1.0, Counter[str](), set[int | None]()
    app = tenure.Tenure(url)

    @app.task(queue="q")
    async def work() -> None:
        ran["work"] += 1
        await asyncio.to_thread(app.queue.enqueue, "slow")

    async def main() -> None:
        await worker.start()
        await asyncio.to_thread(store.held.wait, PATIENCE)
        await asyncio.to_thread(until, renewed)
        store.go_on.set()
        await asyncio.to_thread(until, lambda: other.get(job.id).state == "done")
        await worker.stop()

    def renewed() -> bool:
        seen.add(other.get(job.id).lease_until)
        return len(seen) >= 6

    job = work.enqueue()
    worker = app.worker(lease=lease, schedule=False, poll_interval=0.1)
    with app, tenure.connect(url) as other:
        asyncio.run(main())
        assert other.get(job.id).attempts == 1
    assert ran["work"] == 1
