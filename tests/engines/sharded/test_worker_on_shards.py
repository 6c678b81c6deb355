"""A worker on shards: one that is away or slow costs no job of the others, and no finished job."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tenure
from tenure import Queue
from tenure.model import ops
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.worker.handler import HandlerSpec
from tenure.worker.post import Post
from tenure.worker.worker import Worker
from tests.crash.watched import PATIENCE, until
from tests.engines.sharded.conftest import Tenants, shards_of
from tests.engines.sharded.test_away import away
from tests.support.sizes import let


@pytest.fixture(autouse=True)
def _stop_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, seconds_after_the_grace=0.2)


class Work:
    """A worker whose jobs of one tenant end when they are told to."""

    def __init__(self, queue: Queue, waits: str, lease: float = 30.0) -> None:
        self.ran: Counter[str] = Counter()
        self._waits = waits
        self.may_end = threading.Event()
        self.post = Post(["q"], 3, {}, default=HandlerSpec(self._run, "loop", "work"))
        self.worker = Worker(
            queue, [self.post], lease=lease, schedule=False, poll_interval=0.05, name="ours"
        )

    async def _run(self, job: Job) -> str:
        self.ran[job.id] += 1
        while job.tenant == self._waits and not self.may_end.is_set():
            await asyncio.sleep(0.005)
        return "result"

    def during(self, test: Callable[[], None], grace: float = 30.0) -> None:
        async def main() -> None:
            await self.worker.start()
            try:
                await asyncio.to_thread(test)
            finally:
                self.may_end.set()
                await asyncio.wait_for(self.worker.stop(grace), PATIENCE)

        asyncio.run(main())


def kept_said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "is kept until" in one.getMessage()]


def test_the_outcome_of_a_job_is_stored_when_its_shard_is_back(
    queue: Queue, tenants: Tenants, caplog: pytest.LogCaptureFixture
) -> None:
    """With one attempt only: if the outcome were lost, the finished job would be dead."""
    job = queue.enqueue("q", tenant=tenants.there, max_attempts=1)
    work = Work(queue, waits=tenants.there)

    def test() -> None:
        until(lambda: work.ran[job.id] == 1)
        with away(queue):
            work.may_end.set()
            until(lambda: len(work.post.unstored) == 1)
            ids = [queue.enqueue("q", tenant=tenants.here).id for _ in range(20)]
            until(lambda: all(queue.get(id).state == "done" for id in ids))
            assert job.id in [lease.id for lease in work.post.unstored]
        until(lambda: queue.get(job.id).state == "done")

    work.during(test)
    found = queue.get(job.id)
    assert (found.result, found.attempts, work.ran[job.id]) == ("result", 1, 1)
    assert 1 <= len(kept_said(caplog)) <= 2  # and not at each try


def test_an_outcome_is_dropped_when_another_worker_has_its_job(
    queue: Queue, url: str, tenants: Tenants, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue("q", tenant=tenants.there)
    work = Work(queue, waits=tenants.there, lease=0.3)
    taken: list[Job] = []

    def claims(other: Queue) -> bool:
        taken.extend(other.claim("q", lease=60))
        return taken != []

    def test() -> None:
        until(lambda: work.ran[job.id] == 1)
        with tenure.connect(url) as other, away(queue):
            work.may_end.set()
            until(lambda: len(work.post.unstored) == 1)
            until(lambda: claims(other))
        until(lambda: not work.post.unstored)

    work.during(test)
    assert queue.get(job.id).token == taken[0].token
    assert work.ran[job.id] == 1
    assert "no longer leased" in caplog.text


def test_outcomes_are_kept_even_if_the_worker_must_end(
    queue: Queue, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its next claim says that it is not allowed to work."""
    job = queue.enqueue("q", tenant=tenants.there)
    work = Work(queue, waits=tenants.there)
    apply = store_of(queue).engine.apply

    def refuse(batch: Sequence[Op]) -> list[Answer]:
        answers = apply(batch)
        claims = [isinstance(op, ops.Claim) for op in batch]
        error = tenure.Forbidden("this token may not work")
        return [error if claim else a for claim, a in zip(claims, answers, strict=True)]

    async def main() -> None:
        await work.worker.start()
        await asyncio.to_thread(until, lambda: work.ran[job.id] == 1)
        with away(queue):
            work.may_end.set()
            await asyncio.to_thread(until, lambda: len(work.post.unstored) == 1)
            monkeypatch.setattr(store_of(queue).engine, "apply", refuse)
            with pytest.raises(tenure.Forbidden):
                await asyncio.wait_for(work.worker.wait(), PATIENCE)
            assert [lease.id for lease in work.post.unstored] == [job.id]
            with pytest.raises(tenure.Forbidden):
                await asyncio.wait_for(work.worker.stop(grace=0.05), PATIENCE)

    let(monkeypatch, seconds_to_be_let_in=0.0)
    asyncio.run(main())


def test_a_post_keeps_at_most_twice_as_many_outcomes_as_it_runs_jobs() -> None:
    post = Post(["q"], 3, {})
    rooms = []
    for n in range(8):
        rooms.append(post.room)
        post.kept[f"{n}", 1] = ops.Ack(f"{n}", 1)
    assert rooms == [3, 3, 3, 3, 2, 1, 0, 0]


def test_a_worker_says_which_outcomes_it_could_not_store(
    queue: Queue, tenants: Tenants, caplog: pytest.LogCaptureFixture
) -> None:
    job = queue.enqueue("q", tenant=tenants.there)
    work = Work(queue, waits=tenants.there)

    async def main() -> None:
        await work.worker.start()
        await asyncio.to_thread(until, lambda: work.ran[job.id] == 1)
        with away(queue):
            work.may_end.set()
            await asyncio.to_thread(until, lambda: len(work.post.unstored) == 1)
            await asyncio.wait_for(work.worker.stop(grace=0.05), PATIENCE)

    asyncio.run(main())
    assert f"could not be stored: the outcomes of 1 job: {job.id}" in caplog.text


def test_a_shard_that_does_not_answer_costs_no_other_shard_its_leases(
    queue: Queue, url: str, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = queue.enqueue("q", tenant=tenants.there)
    quick = queue.enqueue("q", tenant=tenants.here)
    work = Work(queue, waits=tenants.here, lease=2)
    store = shards_of(queue)[1].store
    assert store is not None
    apply, go_on, held = store.apply, threading.Event(), threading.Event()

    def hangs(batch: Sequence[Op], *fence: Any) -> list[Answer]:
        if any(isinstance(op, ops.Extend) for op in batch):
            held.set()
            go_on.wait(PATIENCE)
        return apply(batch, *fence)

    async def wait_for_both(job: Job) -> None:
        work.ran[job.id] += 1
        while not work.may_end.is_set():
            await asyncio.sleep(0.005)

    monkeypatch.setattr(store, "apply", hangs)
    work.post._default = HandlerSpec(wait_for_both, "loop", "work")
    seen: set[int | None] = set()

    def renewed() -> bool:
        with_lease = other.get(quick.id)
        seen.add(with_lease.lease_until)
        return len(seen) >= 6

    def test() -> None:
        until(lambda: work.ran == {slow.id: 1, quick.id: 1})
        assert held.wait(PATIENCE)
        until(renewed)
        go_on.set()

    with tenure.connect(url) as other:
        try:
            work.during(test)
        finally:
            go_on.set()
    assert work.ran[quick.id] == 1
    assert queue.get(quick.id).attempts == 1
