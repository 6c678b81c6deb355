"""A claim that stands is run in the commit of the enqueue that it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tenure import Queue, State
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.queue import store_of
from tenure.queue.committer import Standing
from tests.crash.watched import Watched, opened, start, until

CLAIM = ops.Claim(("q", "r"), "w", 60_000, 5)


@pytest.fixture
def engine() -> Watched:
    return Watched(MemoryEngine(SystemClock()))


@pytest.fixture
def queue(engine: Watched) -> Iterator[Queue]:
    with opened(engine) as queue:
        yield queue


def kinds(engine: Watched) -> list[list[str]]:
    return [[type(op).__name__ for op in batch] for batch in engine.batches]


async def ids(queue: Queue, standing: Standing) -> list[str]:
    return [job.id for job in await store_of(queue).withdraw(standing)]


def test_an_enqueue_and_the_claim_that_waits_for_it_share_a_commit(
    queue: Queue, engine: Watched
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        answered = asyncio.Event()
        standing.on_answer(answered.set)
        await queue.aenqueue("q", id="a")
        await asyncio.wait_for(answered.wait(), 30)
        assert await ids(queue, standing) == ["a"]
        assert standing.taken_at > 0

    asyncio.run(main())
    assert kinds(engine) == [["Enqueue", "Claim"]]
    assert queue.get("a").state is State.LEASED


def test_a_thread_that_enqueues_is_joined_too(queue: Queue, engine: Watched) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        await asyncio.to_thread(queue.enqueue, "r", id="a")
        assert await ids(queue, standing) == ["a"]

    asyncio.run(main())
    assert kinds(engine) == [["Enqueue", "Claim"]]


def test_who_withdrew_is_not_joined(queue: Queue, engine: Watched) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        assert await ids(queue, standing) == []
        await queue.aenqueue("q", id="a")

    asyncio.run(main())
    assert kinds(engine) == [["Enqueue"]]


def test_another_queues_enqueue_is_not_joined(queue: Queue, engine: Watched) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        await queue.aenqueue("another")
        assert await ids(queue, standing) == []

    asyncio.run(main())
    assert kinds(engine) == [["Enqueue"]]


def test_who_finds_nothing_stands_on(queue: Queue, engine: Watched) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        await queue.aenqueue("q", delay=60)
        await queue.aenqueue("q", id="a")
        assert await ids(queue, standing) == ["a"]

    asyncio.run(main())
    assert kinds(engine) == [["Enqueue", "Claim"]] * 2


def test_of_two_who_stand_one_finds_it_and_the_other_stands_on(queue: Queue) -> None:
    async def main() -> None:
        first, second = store_of(queue).stand(CLAIM), store_of(queue).stand(CLAIM)
        await queue.aenqueue("q", id="a")
        await queue.aenqueue("q", id="b")
        assert await ids(queue, first) == ["a"]
        assert await ids(queue, second) == ["b"]

    asyncio.run(main())


def test_who_withdraws_while_a_commit_is_under_way_gets_what_it_finds(
    queue: Queue, engine: Watched
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        engine.hold()
        enqueued = start(queue.enqueue, "q", id="a")
        await asyncio.to_thread(engine.arrived)
        withdrawn = asyncio.create_task(ids(queue, standing))
        await asyncio.sleep(0)
        engine.let_all()
        assert await withdrawn == ["a"]
        enqueued.result(30)

    asyncio.run(main())


def test_who_withdraws_while_a_commit_finds_nothing_waits_for_no_other(
    queue: Queue, engine: Watched
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        engine.hold()
        enqueued = start(queue.enqueue, "q", delay=60)
        await asyncio.to_thread(engine.arrived)
        withdrawn = asyncio.create_task(ids(queue, standing))
        await asyncio.sleep(0)
        engine.let_all()
        assert await asyncio.wait_for(withdrawn, 30) == []
        enqueued.result(30)
        await queue.aenqueue("q", id="a")

    asyncio.run(main())
    assert queue.get("a").state is State.PENDING


def test_who_leaves_while_withdrawing_gives_the_jobs_back(queue: Queue, engine: Watched) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        engine.hold()
        enqueued = start(queue.enqueue, "q", id="a")
        await asyncio.to_thread(engine.arrived)
        withdrawn = asyncio.create_task(ids(queue, standing))
        await asyncio.sleep(0)
        withdrawn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await withdrawn
        engine.let_all()
        await asyncio.to_thread(enqueued.result, 30)

    asyncio.run(main())
    until(lambda: queue.get("a").state is State.PENDING)
    assert queue.get("a").attempts == 0


def test_who_leaves_in_the_moment_of_the_answer_gives_the_jobs_back(
    queue: Queue, engine: Watched
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        standing.on_answer(lambda: withdrawn.cancel())  # before the task goes on with the answer
        engine.hold()
        enqueued = start(queue.enqueue, "q", id="a")
        await asyncio.to_thread(engine.arrived)
        withdrawn = asyncio.create_task(ids(queue, standing))
        await asyncio.sleep(0)
        engine.let_all()
        with pytest.raises(asyncio.CancelledError):
            await withdrawn
        await asyncio.to_thread(enqueued.result, 30)

    asyncio.run(main())
    until(lambda: queue.get("a").state is State.PENDING)
    assert queue.get("a").attempts == 0


def test_who_is_gone_with_its_loop_gives_the_jobs_back(queue: Queue) -> None:
    async def main() -> Standing:
        return store_of(queue).stand(CLAIM)

    asyncio.run(main())
    queue.enqueue("q", id="a")
    until(lambda: queue.get("a").state is State.PENDING and queue.get("a").attempts == 0)


def test_a_claim_that_fails_takes_no_enqueue_with_it(queue: Queue, engine: Watched) -> None:
    def refuse(batch: Any) -> None:
        if any(isinstance(op, ops.Claim) for op in batch):
            raise ZeroDivisionError

    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        engine.before = refuse
        await queue.aenqueue("q", id="a")
        engine.before = lambda batch: None
        assert await ids(queue, standing) == []

    asyncio.run(main())
    assert queue.get("a").state is State.PENDING


def test_who_stands_during_a_failed_commit_stands_on(queue: Queue, engine: Watched) -> None:
    def refuse(batch: Any) -> None:
        if any(isinstance(op, ops.Claim) for op in batch):
            raise ZeroDivisionError

    async def main() -> None:
        standing = store_of(queue).stand(CLAIM)
        engine.before = refuse
        await queue.aenqueue("q", id="a")
        engine.before = lambda batch: None
        await queue.aenqueue("q", id="b")
        assert await ids(queue, standing) == ["a", "b"]

    asyncio.run(main())


def test_who_stands_is_changed_only_under_the_lock(queue: Queue) -> None:
    """Or one who withdraws in between would wait for the next enqueue."""
    committer = store_of(queue).committer
    without_lock: list[str] = []

    class Watchful(list[Standing]):
        def append(self, one: Standing) -> None:
            if not committer._lock.locked():
                without_lock.append("append")
            super().append(one)

        def remove(self, one: Standing) -> None:
            if not committer._lock.locked():
                without_lock.append("remove")
            super().remove(one)

    async def main() -> None:
        committer._standing = Watchful()
        standing, other = store_of(queue).stand(CLAIM), store_of(queue).stand(CLAIM)
        await queue.aenqueue("q", delay=60)  # finds nothing
        await queue.aenqueue("q", id="a")
        assert await ids(queue, standing) == ["a"]
        assert await ids(queue, other) == []

    asyncio.run(main())
    assert without_lock == []


def test_closing_ends_what_stands(engine: Watched) -> None:
    async def main() -> None:
        queue = opened(engine)
        standing = store_of(queue).stand(CLAIM)
        await queue.aclose()
        assert await asyncio.wait_for(ids(queue, standing), 30) == []

    asyncio.run(main())
