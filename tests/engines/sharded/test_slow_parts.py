"""A shard that does not respond delays its own tenants, and not what others commit meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import tenure
from tenure import Busy, Queue
from tenure.engines.sharded.placing import Placing
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Op
from tenure.queue import store_of
from tenure.worker.job_log import JobLog
from tenure.worker.kept_outcomes import KeptOutcomes
from tenure.worker.post import Post
from tests.crash.watched import PATIENCE, committers, handed_in, start, until
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_worker_on_shards import Work
from tests.support.sizes import let

Called = Callable[[], None]  # waits until a call is held


@contextmanager
def held(
    queue: Queue, number: int, of: Callable[[Sequence[Op]], bool] = lambda batch: True
) -> Iterator[Called]:
    """Batches of a shard wait until the end."""
    store: Any = shards_of(queue)[number].store
    apply, goes_on, entered = store.apply, threading.Event(), threading.Semaphore(0)

    def wait(batch: Sequence[Op], *given: object) -> object:
        if of(batch):
            entered.release()
            assert goes_on.wait(2 * PATIENCE)
        return apply(batch, *given)

    def called() -> None:
        assert entered.acquire(timeout=PATIENCE)

    store.apply = wait
    try:
        yield called
    finally:
        goes_on.set()
        store.apply = apply


def test_enqueues_of_other_shards_do_not_wait(queue: Queue, tenants: Tenants) -> None:
    async def enqueue(tenant: str) -> None:
        await asyncio.gather(*(queue.aenqueue("q", tenant=tenant) for _ in range(5)))

    with held(queue, 0) as called:
        stuck = [start(queue.enqueue, "q", tenant=tenants.here)]
        called()
        stuck.append(start(queue.enqueue, "q", tenant=tenants.here_too))
        for _ in range(5):
            start(queue.enqueue, "q", tenant=tenants.there).result(PATIENCE)
        start(asyncio.run, enqueue(tenants.there)).result(PATIENCE)
        assert not any(one.done() for one in stuck)
    for one in stuck:
        one.result(PATIENCE)
    assert queue.stats().ready == 12


def test_acks_of_other_shards_do_not_wait(queue: Queue, tenants: Tenants) -> None:
    for tenant in (tenants.here, *[tenants.there] * 5):
        queue.enqueue("q", tenant=tenant)
    jobs = queue.claim("q", limit=6)
    (mine,) = [job for job in jobs if job.tenant == tenants.here]
    with held(queue, 0) as called:
        stuck = start(queue.ack, mine)
        called()
        for job in jobs:
            if job is not mine:
                start(queue.ack, job).result(PATIENCE)
        assert not stuck.done()
    stuck.result(PATIENCE)
    assert queue.stats().done == 6


def test_keyed_calls_of_other_shards_do_not_wait(queue: Queue, tenants: Tenants) -> None:
    def keyed(key: str, tenant: str) -> ops.Once:
        spec = JobSpec(key, "q", NULL, tenant=tenant, made_up_id=True)
        return ops.Once(key, (ops.Enqueue((spec,)),))

    with held(queue, 0) as called:
        stuck = start(store_of(queue).do, [keyed("a", tenants.here)])
        called()
        (answer,) = start(store_of(queue).do, [keyed("b", tenants.there)]).result(PATIENCE)
        assert isinstance(answer, ops.Answers)
        assert not stuck.done()
    stuck.result(PATIENCE)


def test_what_waits_for_one_shard_leaves_room_for_the_others(url: str, tenants: Tenants) -> None:
    settings = tenure.Settings(url=url, max_waiting=8)
    with tenure.connect(settings=settings) as queue, held(queue, 0) as called:
        stuck = [start(queue.enqueue, "q", tenant=tenants.here)]
        called()
        for n in range(1, 5):
            stuck.append(start(queue.enqueue, "q", tenant=tenants.here))
            handed_in(queue, n)
        with pytest.raises(Busy, match="4 operations"):
            queue.enqueue("q", tenant=tenants.here)
        start(queue.enqueue, "q", tenant=tenants.there).result(PATIENCE)
    for one in stuck:
        one.result(PATIENCE)


def test_a_commit_does_not_wait_for_counts_that_another_shard_stores(
    url: str, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_counts_of_rates=0.0)
    monkeypatch.setattr(Placing, "of_record", lambda *_: 0)
    with tenure.connect(url) as queue:
        with held(queue, 0) as called:
            start(queue.enqueue, "q", tenant=tenants.there).result(PATIENCE)
            start(queue.enqueue, "q", tenant=tenants.there).result(PATIENCE)
            called()
        queue.enqueue("q", tenant=tenants.there)
    with tenure.connect(url) as queue:
        assert sum(point.enqueued for point in queue.rates().queues["q"].points) == 3


def test_an_enqueue_does_not_wait_for_the_claim_of_an_idle_worker(
    queue: Queue, tenants: Tenants
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(ops.Claim(("q",), "w", 60_000, 5))
        with held(queue, 0):
            await asyncio.wait_for(queue.aenqueue("q", tenant=tenants.there), PATIENCE)
            assert await store_of(queue).withdraw(standing) == []

    asyncio.run(main())


def test_a_call_that_has_to_ask_all_shards_does_not_delay_those_that_have_not(
    queue: Queue, tenants: Tenants
) -> None:
    with held(queue, 0) as called:
        stuck = start(queue.pause, "q")
        called()
        start(queue.enqueue, "q", tenant=tenants.there).result(PATIENCE)
        assert not stuck.done()
    stuck.result(PATIENCE)


def test_close_commits_what_waits_for_a_slow_shard_and_ends_all_threads(
    url: str, tenants: Tenants
) -> None:
    before = committers()
    queue = tenure.connect(url)
    with held(queue, 0) as called:
        stuck = [start(queue.enqueue, "q", tenant=tenants.here)]
        called()
        stuck += [start(queue.enqueue, "q", tenant=tenants.here) for _ in range(3)]
        handed_in(queue, 3)
        closing = start(queue.close)
        until(lambda: store_of(queue).committer._closed)
        assert not closing.done()
    closing.result(PATIENCE)
    for one in stuck:
        one.result(PATIENCE)
    assert committers() == before
    with tenure.connect(url) as queue:
        assert queue.stats().ready == 4


def is_no_claim(batch: Sequence[Op]) -> bool:
    return not all(isinstance(op, ops.Claim | ops.Extend) for op in batch)


def test_a_worker_goes_on_while_it_cannot_store_the_outcome_of_a_job(
    queue: Queue, tenants: Tenants
) -> None:
    """With one attempt only: if the lease were lost meanwhile, the finished job would be dead."""
    mine = queue.enqueue("q", tenant=tenants.here, max_attempts=1)
    work = Work(queue, waits=tenants.here, lease=0.6)

    def test() -> None:
        until(lambda: work.ran[mine.id] == 1)
        with held(queue, 0, is_no_claim) as called:
            work.may_end.set()
            called()
            for _ in range(3):
                job = queue.enqueue("q", tenant=tenants.there)
                until(lambda job=job: queue.get(job.id).state == "done")  # type: ignore[misc]
            until(lambda: [lease.id for lease in work.post.unstored] == [mine.id])
            renewed = queue.get(mine.id).lease_until
            until(lambda: queue.get(mine.id).lease_until != renewed)
        until(lambda: queue.get(mine.id).state == "done")

    work.during(test)
    assert (queue.stats().done, work.ran[mine.id]) == (4, 1)


def test_a_worker_that_stops_waits_until_a_slow_shard_has_stored_its_outcomes(
    queue: Queue, tenants: Tenants
) -> None:
    job = queue.enqueue("q", tenant=tenants.here)
    work = Work(queue, waits=tenants.here)
    with ExitStack() as stack:

        def test() -> None:
            until(lambda: work.ran[job.id] == 1)
            called = stack.enter_context(held(queue, 0, is_no_claim))
            work.may_end.set()
            called()
            start(let_go)

        def let_go() -> None:
            until(lambda: work.worker._stopping)
            stack.close()

        work.during(test)
    assert queue.get(job.id).state == "done"


def test_a_worker_keeps_only_so_many_outcomes_that_it_cannot_store(
    queue: Queue, tenants: Tenants
) -> None:
    for _ in range(20):
        queue.enqueue("q", tenant=tenants.here)
    work = Work(queue, waits=tenants.here)

    def test() -> None:
        with held(queue, 0, is_no_claim):
            work.may_end.set()
            # An outcome may be seen twice while it is handed on.
            until(lambda: (work.post.room, len(work.post.unstored)) == (0, 6))
            assert (work.post.concurrency, sum(work.ran.values())) == (3, 6)
        until(lambda: queue.stats().done == 20)

    work.during(test)
    assert set(work.ran.values()) == {1}


@pytest.mark.parametrize("number", [0, 1])
def test_outcomes_that_a_worker_keeps_wait_for_no_other_shard(
    queue: Queue, tenants: Tenants, number: int
) -> None:
    for tenant in (tenants.here, tenants.there):
        queue.enqueue("q", tenant=tenant)
    mine, other = sorted(
        queue.claim("q", limit=2), key=lambda job: job.tenant != tenants[2 * number]
    )
    post = Post(["q"], 3, {})
    kept = KeptOutcomes(queue, [post], JobLog(queue.clock), lambda post: None)
    with held(queue, number, is_no_claim) as called:
        kept.send(post, ops.Ack(mine.id, mine.token))
        called()
        kept.send(post, ops.Ack(other.id, other.token))
        until(lambda: [id for id, _ in post.kept] == [mine.id])
        assert queue.get(other.id).state == "done"
    kept.wait(PATIENCE)
    assert (queue.stats().done, post.kept) == (2, {})
