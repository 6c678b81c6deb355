"""Group commit: who shares a transaction, when callers are answered, and what becomes of those
who fail or come too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.errors import StoreReadOnly
from tenure.features.rates.counter import RateCounter
from tenure.model import ops
from tenure.model.job import NULL, JobSpec
from tenure.model.ops import Answer, Op
from tenure.model.records import PutRecords
from tenure.queue import store_of
from tenure.queue.committer import Committer, Ticket
from tenure.testing import ManualClock
from tests.crash.watched import PATIENCE, Watched, committers, handed_in, opened, start, until


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    if request.param == "memory":
        engine = Watched(MemoryEngine(SystemClock(), 1000))
    else:
        engine = Watched(SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock()))
    yield engine
    engine.close()  # some tests close only a committer


@pytest.fixture
def queue(engine: Watched) -> Iterator[tenure.Queue]:
    with opened(engine) as queue:
        yield queue
        engine.let_all()


# Sharing ----------------------------------------------------------------------------------------


def test_calls_of_64_threads_share_two_transactions(engine: Watched, queue: tenure.Queue) -> None:
    engine.hold()
    first = start(queue.enqueue, "mail", 0)
    engine.arrived()
    others = [start(queue.enqueue, "mail", n) for n in range(1, 64)]
    handed_in(queue, 63)
    engine.let_all()
    jobs = [call.result(PATIENCE) for call in [first, *others]]
    assert [len(batch) for batch in engine.batches] == [1, 63]
    assert sorted(job.payload for job in jobs) == list(range(64))
    assert queue.stats("mail").ready == 64


def test_calls_of_64_tasks_share_two_transactions(engine: Watched, queue: tenure.Queue) -> None:
    async def main() -> list[tenure.Job]:
        engine.hold()
        tasks = [asyncio.ensure_future(queue.aenqueue("mail", 0))]
        await asyncio.to_thread(engine.arrived)
        tasks += [asyncio.ensure_future(queue.aenqueue("mail", n)) for n in range(1, 64)]
        await asyncio.sleep(0)  # every task has run up to where it waits
        engine.let_all()
        return await asyncio.gather(*tasks)

    jobs = asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [1, 63]
    assert [job.payload for job in jobs] == list(range(64))
    assert queue.stats("mail").ready == 64


def test_calls_of_one_turn_of_a_loop_share_one_transaction(
    engine: Watched, queue: tenure.Queue
) -> None:
    async def main() -> None:
        await asyncio.gather(*[queue.aenqueue("mail", n) for n in range(64)])

    asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [64]


def test_more_than_a_transaction_may_hold_is_not_put_into_one(
    engine: Watched, queue: tenure.Queue
) -> None:
    async def main() -> None:
        await asyncio.gather(*[queue.aenqueue("mail", n) for n in range(2_500)])

    asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [2_000, 500]


def test_nobody_is_answered_before_the_commit(engine: Watched, queue: tenure.Queue) -> None:
    engine.hold()
    calls = [start(queue.enqueue, "mail", id="job-0")]
    engine.arrived()
    calls += [start(queue.enqueue, "mail", id=f"job-{n}") for n in range(1, 8)]

    async def awaits() -> None:
        task = asyncio.ensure_future(queue.aenqueue("mail", id="job-8"))
        await asyncio.to_thread(handed_in, queue, 8)
        assert not task.done()
        assert not any(call.done() for call in calls)
        with pytest.raises(tenure.NotFound):
            queue.get("job-0")
        engine.let_all()
        await task

    asyncio.run(awaits())
    for call in calls:
        assert queue.get(call.result(PATIENCE).id).state == "pending"


def test_what_frees_is_committed_before_what_takes(engine: Watched, queue: tenure.Queue) -> None:
    queue.limits.set("mail", concurrency=1)
    queue.enqueue_many([tenure.NewJob(queue="mail", payload=n) for n in range(2)])
    (job,) = queue.claim("mail")
    engine.hold()
    opener = start(queue.enqueue, "other")
    engine.arrived()
    claim = start(queue.claim, "mail")
    handed_in(queue, 1)
    ack = start(queue.ack, job)
    handed_in(queue, 2)
    engine.let_all()
    ack.result(PATIENCE)
    opener.result(PATIENCE)
    assert [job.payload for job in claim.result(PATIENCE)] == [1]


def test_threads_tasks_and_several_event_loops_share_one_handle(queue: tenure.Queue) -> None:
    barrier = threading.Barrier(6)

    def in_thread(name: str) -> None:
        barrier.wait(PATIENCE)
        for n in range(20):
            queue.enqueue("mail", id=f"{name}-{n}")

    def in_loop(name: str) -> None:
        async def main() -> None:
            await asyncio.gather(*(queue.aenqueue("mail", id=f"{name}-{n}") for n in range(20)))

        barrier.wait(PATIENCE)
        asyncio.run(main())

    names = [f"{kind}-{n}" for kind in ("thread", "loop") for n in range(3)]
    calls = [start(in_thread if name.startswith("thread") else in_loop, name) for name in names]
    for call in calls:
        call.result(PATIENCE)
    found = {job.id for job in queue.jobs(queue="mail", limit=1000).jobs}
    assert found == {f"{name}-{n}" for name in names for n in range(20)}


def test_claims_that_share_a_transaction_get_different_jobs(
    engine: Watched, queue: tenure.Queue
) -> None:
    queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(40)])
    engine.hold()
    opener = start(queue.enqueue, "other")
    engine.arrived()
    claims = [start(queue.claim, "mail", limit=1 + n % 3) for n in range(30)]
    handed_in(queue, 30)
    engine.let_all()
    opener.result(PATIENCE)
    got = [call.result(PATIENCE) for call in claims]
    ids = [job.id for jobs in got for job in jobs]
    assert len(ids) == len(set(ids)) == 40
    assert all(len(jobs) <= 1 + n % 3 for n, jobs in enumerate(got))
    assert queue.stats("mail").leased == 40


# Back-pressure ----------------------------------------------------------------------------------


def test_too_many_waiting_operations_are_refused_until_there_is_room(engine: Watched) -> None:
    with opened(engine, max_waiting=3) as queue:
        engine.hold()
        calls = [start(queue.enqueue, "mail")]
        engine.arrived()
        calls += [start(queue.enqueue, "mail") for _ in range(3)]
        handed_in(queue, 3)
        refused = [start(queue.enqueue, "mail"), start(asyncio.run, _aenqueue(queue))]
        until(lambda: all(one.done() for one in refused) or store_of(queue).committer._waiting > 3)
        engine.let_all()
        for one in refused:
            with pytest.raises(tenure.Busy, match="3 operations"):
                one.result(PATIENCE)
        for call in calls:
            call.result(PATIENCE)
        queue.enqueue("mail")
        assert queue.stats("mail").ready == 5


async def _aenqueue(queue: tenure.Queue, id: str | None = None) -> None:
    await queue.aenqueue("mail", id=id)


def test_too_many_waiting_bytes_are_refused_until_there_is_room(engine: Watched) -> None:
    with opened(engine, max_waiting_bytes=1000) as queue:
        engine.hold()
        calls = [start(queue.enqueue, "mail")]
        engine.arrived()
        calls += [start(queue.enqueue, "mail", "x" * 600) for _ in range(2)]
        handed_in(queue, 2)
        refused = start(queue.enqueue, "mail", "x" * 600)
        until(lambda: refused.done() or store_of(queue).committer._waiting > 2)
        engine.let_all()
        with pytest.raises(tenure.Busy, match="bytes"):
            refused.result(PATIENCE)
        for call in calls:
            call.result(PATIENCE)
        queue.enqueue("mail", "x" * 600)
        assert queue.stats("mail").ready == 4


def test_results_and_payloads_count_as_waiting_bytes() -> None:
    spec = JobSpec("a", "mail", msgspec.Raw(b'"12345"'))
    enqueue, ack = ops.Enqueue((spec, spec)), ops.Ack("a", 1, msgspec.Raw(b'"123"'), then=(spec,))
    assert Ticket([enqueue]).bytes == 14
    assert Ticket([ack]).bytes == 12
    assert Ticket([ack, enqueue, ops.Claim(("mail",), "w", 60_000), ack]).bytes == 38


def test_what_waits_is_counted_only_under_the_lock(engine: Watched) -> None:
    """Or of two who count at once, one would be forgotten, and room be lost for good."""
    without_lock: list[int] = []

    class Watchful(Committer):
        @property
        def _waiting(self) -> int:
            return self._counted

        @_waiting.setter
        def _waiting(self, count: int) -> None:
            if not self._lock.locked():
                without_lock.append(count)
            self._counted = count

    committer = Watchful(engine, 1000, 1000)
    without_lock.clear()  # while it was made, nobody else had it
    claim = ops.Claim(("mail",), "w", 60_000)
    assert committer.run([claim]) == [ops.Leased([])]
    assert asyncio.run(committer.arun([claim])) == [ops.Leased([])]
    committer.close()
    assert committer._counted == 0
    assert without_lock == []


# Faults -----------------------------------------------------------------------------------------


def test_an_unexpected_error_of_one_call_does_not_reach_its_neighbours(
    engine: Watched, queue: tenure.Queue
) -> None:
    def fault(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Enqueue) and op.jobs[0].id == "bad" for op in batch):
            raise ZeroDivisionError("a bug")

    engine.before = fault
    engine.hold()
    calls = {"first": start(queue.enqueue, "mail", id="first")}
    engine.arrived()
    for name in ("a", "bad", "b", "c"):
        calls[name] = start(queue.enqueue, "mail", id=name)
    handed_in(queue, 4)
    engine.let_all()
    for name in ("first", "a", "b", "c"):
        assert calls[name].result(PATIENCE).id == name
    with pytest.raises(ZeroDivisionError):
        calls["bad"].result(PATIENCE)
    assert sorted(engine.enqueued()) == ["a", "b", "c", "first"]
    queue.enqueue("mail", id="later")


def test_a_fault_of_the_store_reaches_all_who_shared_the_transaction(
    engine: Watched, queue: tenure.Queue
) -> None:
    def fault(batch: Sequence[Op]) -> None:
        if len(batch) > 1:
            raise tenure.StoreFull("no space")

    engine.before = fault
    engine.hold()
    first = start(queue.enqueue, "mail", id="first")
    engine.arrived()

    async def awaits() -> None:
        with pytest.raises(tenure.StoreFull):
            await queue.aenqueue("mail", id="task")

    calls: list[Future[Any]] = [start(queue.enqueue, "mail", id=f"{n}") for n in range(5)]
    calls.append(start(asyncio.run, awaits()))
    handed_in(queue, 6)
    engine.let_all()
    first.result(PATIENCE)
    for call in calls[:5]:
        with pytest.raises(tenure.StoreFull, match="no space"):
            call.result(PATIENCE)
    calls[5].result(PATIENCE)
    assert engine.enqueued() == ["first"]
    queue.enqueue("mail", id="later")
    assert queue.stats("mail").ready == 2


def test_a_committer_whose_thread_could_not_start_tries_again(
    queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError, match="can't start"):
            asyncio.run(_aenqueue(queue, "first"))
    start(asyncio.run, _aenqueue(queue, "second")).result(5)
    assert [job.id for job in queue.jobs().jobs] == ["second"]


# Closing ----------------------------------------------------------------------------------------


def test_close_commits_what_was_handed_in(engine: Watched) -> None:
    queue = opened(engine)
    engine.hold()
    calls = [start(queue.enqueue, "mail", id="job-0")]
    engine.arrived()
    calls += [start(queue.enqueue, "mail", id=f"job-{n}") for n in range(1, 10)]
    handed_in(queue, 9)
    closing = start(queue.close)
    until(lambda: store_of(queue).committer._closed)
    with pytest.raises(tenure.Closed):
        queue.enqueue("mail")
    assert not closing.done()
    engine.let_all()
    closing.result(PATIENCE)
    for call in calls:
        call.result(PATIENCE)
    assert sorted(engine.enqueued()) == [f"job-{n}" for n in range(10)]


def test_close_commits_what_a_loop_has_not_come_to_hand_in(engine: Watched) -> None:
    queue = opened(engine)

    async def main() -> None:
        task = asyncio.ensure_future(queue.aenqueue("mail", id="a"))
        await asyncio.sleep(0)  # the call is made, and the loop's next turn has not begun
        queue.close()
        assert (await task).id == "a"

    asyncio.run(main())
    assert engine.enqueued() == ["a"]


def test_what_a_loop_did_not_come_to_hand_in_does_not_count_as_waiting(
    queue: tenure.Queue,
) -> None:
    loop = asyncio.new_event_loop()
    left = loop.create_task(queue.aenqueue("mail", id="a"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    start(asyncio.run, _aenqueue(queue, "b")).result(PATIENCE)
    assert store_of(queue).committer._waiting == 0
    assert [job.id for job in queue.jobs().jobs] == ["b"]
    left._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_closed_handle_says_so_to_everyone(queue: tenure.Queue) -> None:
    job = queue.enqueue("mail")
    queue.close()
    for call in (
        lambda: queue.enqueue("mail"),
        lambda: queue.claim("mail"),
        lambda: queue.get(job.id),
        lambda: queue.stats(),
        lambda: asyncio.run(_aenqueue(queue)),
    ):
        with pytest.raises(tenure.Closed):
            call()
    assert repr(queue).endswith(" closed>")


def test_whoever_comes_while_the_handle_is_closed_is_told_so(engine: Watched) -> None:
    """The handle looked open to them, so they are not told by the handle."""
    committer = store_of(opened(engine)).committer
    committer.close()
    enqueue: list[Op] = [ops.Enqueue((JobSpec("a", "mail", NULL),))]
    claim = ops.Claim(("mail",), "w", 60_000)

    async def stand() -> None:
        committer.stand(claim, lambda: 0.0)

    for call in (
        lambda: committer.run(enqueue),
        lambda: committer.run([claim]),
        lambda: asyncio.run(committer.arun(enqueue)),
        lambda: asyncio.run(stand()),
    ):
        with pytest.raises(tenure.Closed):
            start(call).result(PATIENCE)
    assert engine.batches == []


def test_closing_twice_is_closing_once(engine: Watched) -> None:
    queue = opened(engine)
    queue.enqueue("mail")
    queue.close()
    queue.close()
    asyncio.run(queue.aclose())
    unused = opened(Watched(MemoryEngine(SystemClock(), 1000)))
    unused.close()
    unused.close()


def test_no_thread_is_left_after_close(engine: Watched) -> None:
    before = committers()
    with opened(engine) as queue:
        assert committers() == before  # none until there is something to commit
        queue.enqueue("mail")
        asyncio.run(_aenqueue(queue))
        assert len(committers()) == len(before) + 1
    assert committers() == before


def test_an_async_handle_is_closed_at_the_end_of_its_block(engine: Watched) -> None:
    async def main() -> tenure.Queue:
        async with opened(engine) as queue:
            await queue.aenqueue("mail")
        return queue

    queue = asyncio.run(main())
    with pytest.raises(tenure.Closed):
        queue.enqueue("mail")


def test_calls_that_failed_together_count_as_waiting_no_longer(
    engine: Watched, queue: tenure.Queue
) -> None:
    def fault(batch: Sequence[Op]) -> None:
        raise ZeroDivisionError("a bug")

    engine.hold()
    first = start(queue.enqueue, "mail", id="first")
    engine.arrived()
    calls = [start(queue.enqueue, "mail", "x" * 100, id=f"{n}") for n in range(4)]
    handed_in(queue, 4)
    engine.before = fault
    engine.let_all()
    for call in calls:
        with pytest.raises(ZeroDivisionError):
            call.result(PATIENCE)
    with pytest.raises(ZeroDivisionError):
        first.result(PATIENCE)
    until(
        lambda: (
            (store_of(queue).committer._waiting, store_of(queue).committer._waiting_bytes) == (0, 0)
        )
    )


def test_the_call_of_a_task_that_leaves_in_time_is_not_carried_out(
    engine: Watched, queue: tenure.Queue
) -> None:
    async def main() -> None:
        engine.hold()
        first = asyncio.create_task(_aenqueue(queue, "first"))
        await asyncio.to_thread(engine.arrived)
        leaves = asyncio.create_task(_aenqueue(queue, "leaves"))
        stays = asyncio.create_task(_aenqueue(queue, "stays"))
        await asyncio.to_thread(handed_in, queue, 2)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        engine.let_all()
        await asyncio.wait_for(asyncio.gather(first, stays), PATIENCE)

    asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [1, 1]
    assert queue.get("stays").state is tenure.State.PENDING
    with pytest.raises(tenure.JobNotFound):
        queue.get("leaves")


def test_a_claim_whose_task_leaves_before_it_begins_claims_nothing(
    engine: Watched, queue: tenure.Queue
) -> None:
    queue.enqueue("mail", id="a")

    async def main() -> None:
        waits = store_of(queue).committer.submitted([ops.Claim(("mail",), "w", 60_000)])
        task = asyncio.ensure_future(waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [len(batch) for batch in engine.batches] == [1]
    assert queue.get("a").state is tenure.State.PENDING


def test_a_claim_whose_task_leaves_when_the_answer_is_there_gives_its_jobs_back(
    queue: tenure.Queue,
) -> None:
    queue.enqueue("mail", id="a")

    async def main() -> None:
        task = asyncio.ensure_future(store_of(queue).ado([ops.Claim(("mail",), "w", 60_000)]))
        resolve = store_of(queue).committer._resolve

        def resolve_and_leave(tickets: list[Ticket]) -> None:
            resolve(tickets)
            task.cancel()  # before it runs again

        store_of(queue).committer._resolve = resolve_and_leave  # type: ignore[assignment, method-assign]
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    until(lambda: queue.get("a").state is tenure.State.PENDING)
    assert queue.get("a").attempts == 0


def test_a_caller_who_left_with_more_than_a_claim_gives_its_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    enqueue = ops.Enqueue((JobSpec("a", "mail", NULL),))
    claim = ops.Claim(("mail",), "w", 60_000, 1)

    async def main() -> None:
        engine.hold()
        leaves = asyncio.create_task(store_of(queue).committer.arun([enqueue, claim]))
        stays = asyncio.create_task(_aenqueue(queue, "b"))
        await asyncio.to_thread(engine.arrived)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        engine.let_all()
        await asyncio.wait_for(stays, PATIENCE)

    asyncio.run(main())
    until(lambda: queue.get("a").state is tenure.State.PENDING)
    assert queue.get("a").attempts == 0


def test_a_caller_who_leaves_after_the_close_gives_its_jobs_back(
    engine: Watched, queue: tenure.Queue
) -> None:
    queue.enqueue("mail", id="a")

    async def main() -> None:
        engine.hold()
        claims = asyncio.create_task(queue.aclaim("mail"))
        await asyncio.to_thread(engine.arrived)
        engine.let_all()
        store_of(queue).committer.close()  # in the loop, which cannot pass the answer on meanwhile
        claims.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claims

    asyncio.run(main())
    assert queue.get("a").state is tenure.State.PENDING
    assert queue.get("a").attempts == 0


class WithoutRecords(MemoryEngine):
    """A store that rejects every batch with records."""

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        if any(isinstance(op, PutRecords) for op in batch):
            raise StoreReadOnly("no table for records")
        return super().apply(batch)


def test_a_batch_does_not_suffer_from_rates_that_cannot_be_stored() -> None:
    clock = ManualClock()
    engine = WithoutRecords(clock)
    committer = Committer(engine, 1_000, 1_000_000, rates=RateCounter(clock))
    for n in range(3):
        (answer,) = committer.run([ops.Enqueue((JobSpec(f"job-{n}", "q", NULL),))])
        assert isinstance(answer, ops.Enqueued)
        clock.advance(60)
    committer.close()


def test_a_claim_beside_others_does_not_wait_for_them() -> None:
    engine = Watched(MemoryEngine(SystemClock(), 1000), in_flight=4)
    claim = ops.Claim(("mail",), "w", 60_000, 1)

    async def main(queue: tenure.Queue) -> None:
        queue.sign(by="ann")
        engine.hold()
        waiting = [asyncio.create_task(store_of(queue).ado([claim])) for _ in range(2)]
        beside = asyncio.create_task(
            store_of(queue).ado_beside([claim, ops.SetLimit("mail", None, None, 5)])
        )
        for _ in range(2):  # one of the first two, or both together, and the one beside them
            await asyncio.to_thread(engine.arrived)
        engine.let_all()
        await asyncio.gather(*waiting, beside)

    with opened(engine) as queue:
        asyncio.run(main(queue))
    noted = [op.note for batch in engine.batches for op in batch if isinstance(op, ops.SetLimit)]
    assert noted == [ops.Note("ann", "")]
