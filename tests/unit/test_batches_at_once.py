"""Several batches at once, for engines that gain from it: what is sent off at once, what waits to
go together, and that one does not suffer from another."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.memory import MemoryEngine
from tenure.model import ops
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.queue.committer import Committer
from tests.crash.watched import PATIENCE, Watched, committers, handed_in, opened, start, until

AT_ONCE = 3  # of what does not claim


@pytest.fixture
def engine() -> Watched:
    return Watched(MemoryEngine(SystemClock(), 1000), in_flight=AT_ONCE + 1)


@pytest.fixture
def queue(engine: Watched) -> Iterator[tenure.Queue]:
    with opened(engine) as queue:
        yield queue
        engine.let_all()


def sizes(engine: Watched) -> list[int]:
    return sorted(len(batch) for batch in engine.batches)


# Sending off, and collecting --------------------------------------------------------------------


def test_calls_of_threads_are_sent_off_until_enough_are_under_way_and_then_collected(
    engine: Watched, queue: tenure.Queue
) -> None:
    engine.hold()
    calls = []
    for n in range(AT_ONCE):
        calls.append(start(queue.enqueue, "mail", n))
        engine.arrived()
    calls += [start(queue.enqueue, "mail", n) for n in range(AT_ONCE, 64)]
    handed_in(queue, 64 - AT_ONCE)
    engine.let_all()
    assert sorted(call.result(PATIENCE).payload for call in calls) == list(range(64))
    assert sizes(engine) == [1] * AT_ONCE + [64 - AT_ONCE]


def test_calls_of_tasks_are_sent_off_until_enough_are_under_way_and_then_collected(
    engine: Watched, queue: tenure.Queue
) -> None:
    async def main() -> list[tenure.Job]:
        engine.hold()
        tasks = []
        for n in range(AT_ONCE):
            tasks.append(asyncio.ensure_future(queue.aenqueue("mail", n)))
            await asyncio.to_thread(engine.arrived)
        tasks += [asyncio.ensure_future(queue.aenqueue("mail", n)) for n in range(AT_ONCE, 64)]
        await asyncio.sleep(0)  # every task has run up to where it waits
        engine.let_all()
        return await asyncio.gather(*tasks)

    assert [job.payload for job in asyncio.run(main())] == list(range(64))
    assert sizes(engine) == [1] * AT_ONCE + [64 - AT_ONCE]


def test_who_is_done_does_not_wait_for_who_is_slow(engine: Watched, queue: tenure.Queue) -> None:
    slow = threading.Event()

    def hold_the_slow_one(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Enqueue) and op.jobs[0].id == "slow" for op in batch):
            assert slow.wait(PATIENCE)

    engine.before = hold_the_slow_one
    first = start(queue.enqueue, "mail", id="slow")
    engine.arrived()
    for n in range(10):
        start(queue.enqueue, "mail", id=f"{n}").result(PATIENCE)
        asyncio.run(_aenqueue(queue, f"task-{n}"))
    assert not first.done()
    slow.set()
    assert first.result(PATIENCE).id == "slow"


async def _aenqueue(queue: tenure.Queue, id: str | None = None) -> None:
    await queue.aenqueue("mail", id=id)


def test_there_are_never_more_at_once_than_the_engine_asked_for(engine: Watched) -> None:
    lock = threading.Lock()
    inside = most = 0

    def enter(batch: Sequence[Op]) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)

    def leave(batch: Sequence[Op]) -> None:
        nonlocal inside
        with lock:
            inside -= 1

    engine.before, engine.after = enter, leave
    with opened(engine) as queue:

        def in_thread(name: str) -> None:
            for n in range(50):
                queue.enqueue("mail", id=f"{name}-{n}")

        def in_loop(name: str) -> None:
            async def main() -> None:
                await asyncio.gather(*(queue.aenqueue("mail", id=f"{name}-{n}") for n in range(50)))

            asyncio.run(main())

        calls = [start(in_thread if n % 2 else in_loop, f"{n}") for n in range(12)]
        for call in calls:
            call.result(PATIENCE)
        assert queue.stats("mail").ready == 600
    assert 1 <= most <= AT_ONCE + 1
    assert inside == 0


def test_a_caller_sees_what_it_did_before(engine: Watched, queue: tenure.Queue) -> None:
    async def caller(name: str) -> None:
        for n in range(20):
            job = await queue.aenqueue(name, n)
            (mine,) = await queue.aclaim(name)
            assert mine.id == job.id
            await queue.aack(mine)

    async def main() -> None:
        await asyncio.gather(*(caller(f"q{n}") for n in range(10)))

    asyncio.run(main())
    assert queue.stats().done == 200


def test_only_what_waits_counts_towards_too_much(engine: Watched) -> None:
    with opened(engine, max_waiting=2) as queue:
        engine.hold()
        calls = []
        for _ in range(AT_ONCE):
            calls.append(start(queue.enqueue, "mail"))
            engine.arrived()
        calls += [start(queue.enqueue, "mail") for _ in range(2)]
        handed_in(queue, 2)
        with pytest.raises(tenure.Busy, match="2 operations"):
            queue.enqueue("mail")
        engine.let_all()
        for call in calls:
            call.result(PATIENCE)
        queue.enqueue("mail")
        assert queue.stats("mail").ready == AT_ONCE + 3


# Faults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), tenure.StoreFull("no space")])
def test_a_batch_that_fails_does_not_reach_the_others(
    engine: Watched, queue: tenure.Queue, error: Exception
) -> None:
    def fault(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Enqueue) and op.jobs[0].id == "bad" for op in batch):
            raise error

    engine.before = fault
    engine.hold()
    calls = {}
    for name in ("a", "bad", "b"):
        calls[name] = start(queue.enqueue, "mail", id=name)
        engine.arrived()
    engine.let_all()
    for name in ("a", "b"):
        assert calls[name].result(PATIENCE).id == name
    with pytest.raises(type(error)):
        calls["bad"].result(PATIENCE)
    asyncio.run(_aenqueue(queue, "later"))
    assert sorted(engine.enqueued()) == ["a", "b", "later"]


def test_a_claim_whose_caller_left_is_given_back_while_others_are_under_way(
    engine: Watched, queue: tenure.Queue
) -> None:
    queue.enqueue("mail", id="a")

    async def main() -> None:
        engine.hold()
        first = start(queue.enqueue, "other")
        await asyncio.to_thread(engine.arrived)
        claim = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.to_thread(engine.arrived)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        engine.let_all()
        await asyncio.to_thread(first.result, PATIENCE)
        await asyncio.to_thread(until, given_back)

    def given_back() -> bool:
        """It was pending before the claim, too."""
        released = any(isinstance(op, ops.Release) for batch in engine.batches for op in batch)
        job = queue.get("a")
        return released and (job.state, job.attempts) == (tenure.State.PENDING, 0)

    asyncio.run(main())


# Claims -----------------------------------------------------------------------------------------


def test_claims_are_collected_while_another_is_under_way_and_hold_nobody_else_up(
    engine: Watched, queue: tenure.Queue
) -> None:
    queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(20)])
    engine.batches.clear()
    engine.hold()
    claims = [start(queue.claim, "mail")]
    engine.arrived()
    claims += [start(queue.claim, "mail") for _ in range(9)]
    handed_in(queue, 9)
    enqueued = start(queue.enqueue, "mail", id="another")
    engine.arrived()
    engine.let_all()
    assert enqueued.result(PATIENCE).id == "another"
    assert len({job.id for call in claims for job in call.result(PATIENCE)}) == 10
    assert sizes(engine) == [1, 1, 9]


def test_claims_under_a_key_are_collected_like_others(engine: Watched, queue: tenure.Queue) -> None:
    engine.hold()
    claims = [ops.Once(f"{n}", (ops.Claim(("mail",), "w", 60_000, 1),)) for n in range(5)]
    calls = [start(store_of(queue).do, [claims[0]])]
    engine.arrived()
    calls += [start(store_of(queue).do, [claim]) for claim in claims[1:]]
    handed_in(queue, 4)
    engine.let_all()
    for call in calls:
        assert call.result(PATIENCE) == [ops.Answers([ops.Leased([])])]
    assert sizes(engine) == [1, 4]


def test_what_several_callers_want_is_put_like_to_like(
    engine: Watched, queue: tenure.Queue
) -> None:
    """Each caller's own operations stay in order."""
    queue.enqueue_many([tenure.NewJob(queue=name) for name in "abcd" for _ in range(2)])
    jobs = {name: queue.claim(name)[0] for name in "abcd"}
    engine.batches.clear()
    engine.hold()
    opener = start(queue.claim, "nothing")
    engine.arrived()
    calls = []
    for n, (name, job) in enumerate(jobs.items(), 1):
        claim = ops.Claim((name,), "w", 60_000, 1)
        ack = ops.Ack(job.id, job.token)
        report = ops.Progress(job.id, job.token, 50, None)
        calls.append(
            start(store_of(queue).do, [claim, ack] if name == "d" else [report, ack, claim])
        )
        handed_in(queue, 3 * n - (name == "d"))
    engine.let_all()
    opener.result(PATIENCE)
    answers = [call.result(PATIENCE) for call in calls]
    assert [type(op).__name__ for op in engine.batches[-1]] == [
        *["Progress"] * 3,
        *["Ack"] * 3,
        *["Claim"] * 3,
        *["Claim", "Ack"],  # of one who wants it so
    ]
    for name, mine in zip("abc", answers, strict=False):
        assert mine[:2] == [ops.Ok(), ops.Ok()]
        assert [job.queue for job in mine[2].jobs] == [name]
    assert [job.queue for job in answers[3][0].jobs] == ["d"]
    assert queue.stats().done == 4


# A claim that stands ----------------------------------------------------------------------------


def test_a_claim_that_stands_is_in_one_batch_at_a_time(
    engine: Watched, queue: tenure.Queue
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(ops.Claim(("mail",), "w", 60_000, 5))
        engine.hold()
        calls = []
        for n in range(2):
            calls.append(start(queue.enqueue, "mail", n))
            await asyncio.to_thread(engine.arrived)
        engine.let_all()
        for call in calls:
            await asyncio.to_thread(call.result, PATIENCE)
        assert await store_of(queue).withdraw(standing)

    asyncio.run(main())
    assert sorted(len(batch) for batch in engine.batches) == [1, 2]


def test_who_found_nothing_stands_on_though_others_were_under_way(
    engine: Watched, queue: tenure.Queue
) -> None:
    async def main() -> None:
        standing = store_of(queue).stand(ops.Claim(("mail",), "w", 60_000, 5))
        engine.hold()
        delayed = start(queue.enqueue, "mail", delay=60)
        await asyncio.to_thread(engine.arrived)
        engine.let_one()
        await asyncio.to_thread(delayed.result, PATIENCE)
        engine.let_all()
        await queue.aenqueue("mail", id="a")
        assert [job.id for job in await store_of(queue).withdraw(standing)] == ["a"]

    asyncio.run(main())


# Closing and being interrupted ------------------------------------------------------------------


def test_close_waits_for_every_batch_and_commits_what_was_handed_in(engine: Watched) -> None:
    before = committers()
    queue = opened(engine)
    engine.hold()
    calls = []
    for n in range(AT_ONCE):
        calls.append(start(queue.enqueue, "mail", id=f"{n}"))
        engine.arrived()
    calls += [start(queue.enqueue, "mail", id=f"{n}") for n in range(AT_ONCE, 10)]
    handed_in(queue, 10 - AT_ONCE)
    closing = start(queue.close)
    until(lambda: store_of(queue).committer._closed)
    for _ in range(AT_ONCE):
        assert not closing.done()
        engine.let_one()
    engine.arrived()  # what was handed in, as one batch
    assert not closing.done()
    engine.let_all()
    closing.result(PATIENCE)
    for call in calls:
        call.result(PATIENCE)
    assert sorted(engine.enqueued()) == [f"{n}" for n in range(10)]
    assert committers() == before


def test_what_callers_left_behind_is_given_back_before_close_ends(engine: Watched) -> None:
    queue = opened(engine)
    queue.enqueue("mail", id="a")

    async def main() -> None:
        engine.hold()
        claim = asyncio.ensure_future(queue.aclaim("mail"))
        await asyncio.to_thread(engine.arrived)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        closing = start(queue.close)
        await asyncio.to_thread(until, lambda: store_of(queue).committer._closed)
        engine.let_all()
        await asyncio.to_thread(closing.result, PATIENCE)

    asyncio.run(main())
    assert [type(op) for op in engine.batches[-1]] == [ops.Release]


class Nothing:
    """An engine that does nothing, and that cannot be hurt by an interruption."""

    in_flight = 1

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        return [ops.Ok() for _ in batch]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def test_a_caller_who_is_interrupted_at_any_point_leaves_its_turn_to_the_next() -> None:
    committer = Committer(Nothing(), 1000, 1_000_000)
    batch = [ops.DropSlot("scope", "key", "holder")]

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    times = 0
    try:
        while times < 2000:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 + times % 97 * 1e-7)
                for _ in range(1000):
                    committer.run(batch)
            except Interrupted:
                times += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert committer._line.free_turns == 1
    assert committer.run(batch) == [ops.Ok()]
    committer.close()
