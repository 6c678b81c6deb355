"""Every call has a twin for tasks: the same, but awaited."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest

import tenure
from tenure import (
    Busy,
    Closed,
    Duplicate,
    InvalidInput,
    Job,
    JobNotFound,
    LeaseLost,
    NewJob,
    Queue,
    State,
)
from tenure.features.errors.calls import ErrorCalls
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.queue.limit_calls import LimitCalls
from tenure.queue.schedule_calls import ScheduleCalls
from tenure.queue.slot_calls import SlotCalls
from tests.conformance.conftest import OpenQueue
from tests.conformance.moves import BIG, fill, ids
from tests.conformance.state import all_jobs, dump, nothing_changes
from tests.crash.watched import until

pytestmark = pytest.mark.over_http

SIGNS = {"sign", "audited"}  # which do nothing by themselves
PARTS = {"schedules": ScheduleCalls, "limits": LimitCalls, "slots": SlotCalls, "errors": ErrorCalls}
PUBLIC = [
    (kind, name)
    for kind in (Queue, *PARTS.values())
    for name in dir(kind)
    if not name.startswith("_") and name not in {*SIGNS, *(PARTS if kind is Queue else ())}
]
SYNC = [one for one in PUBLIC if not inspect.iscoroutinefunction(getattr(*one))]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's tasks; what hangs is an error."""

    async def bounded() -> None:
        await asyncio.wait_for(main(), 30)

    asyncio.run(bounded())


# Twins ------------------------------------------------------------------------------------------


def test_every_call_has_a_twin_and_every_twin_a_call() -> None:
    assert {*SYNC, *((kind, "a" + name) for kind, name in SYNC)} == set(PUBLIC)
    assert {"enqueue", "claim", "ack", "stats", "maintain", "close"} < {name for _, name in SYNC}
    assert {(kind, "list") for kind in PARTS.values()} < set(SYNC)


@pytest.mark.parametrize(("kind", "name"), SYNC)
def test_twins_are_called_alike(kind: type, name: str) -> None:
    call, twin = getattr(kind, name), getattr(kind, "a" + name)
    assert inspect.signature(call) == inspect.signature(twin)
    assert (call.__name__, twin.__name__) == (name, "a" + name)
    assert inspect.iscoroutinefunction(twin)


@pytest.mark.parametrize(("kind", "name"), SYNC)
def test_twins_are_documented(kind: type, name: str) -> None:
    assert inspect.getdoc(getattr(kind, name))
    assert inspect.getdoc(getattr(kind, "a" + name))


def test_the_calls_of_a_part_are_reached_through_the_queue() -> None:
    with tenure.connect("memory://") as queue:
        for name, kind in PARTS.items():
            assert type(getattr(queue, name)) is kind


# The same, awaited ------------------------------------------------------------------------------


def test_a_job_lives_its_life_in_tasks(queue: Queue) -> None:
    async def main() -> None:
        job = await queue.aenqueue("q", BIG, id="a", tenant="acme", group="g", max_attempts=5)
        assert await queue.aenqueue_many([NewJob(queue="q", id="b", after=["a"])]) == ["b"]
        assert (await queue.aget("a")).payload == job.payload == BIG
        (job,) = await queue.aclaim("q", worker="w")
        await queue.aextend(job, 50)
        assert await queue.aextend_many([job], 60) == [None]
        await queue.aprogress(job, 50, "halfway")
        await queue.arelease(job)
        (job,) = await queue.aclaim("q", worker="w")
        assert await queue.afail(job, "boom", retry_in=0) is State.PENDING
        (job,) = await queue.aclaim("q")
        assert await queue.afail_many([job], retry_in=0) == [None]
        (job,) = await queue.aclaim("q")
        await queue.aack(job, "fine", then=[NewJob(queue="q", id="c")])
        assert (await queue.aget("a")).result == "fine"
        jobs = await queue.aclaim("q", limit=5)
        assert ids(jobs) == ["b", "c"]
        assert await queue.aack_many(jobs, results=[1, 2]) == [None, None]
        assert ids((await queue.ajobs(state="done")).jobs) == ["c", "b", "a"]
        assert (await queue.astats("q")).done == 3
        assert [one.tenant for one in await queue.atenants("q")] == ["", "acme"]
        assert [one.group for one in await queue.agroups("q", tenant="acme")] == ["g"]

    run(main)


@pytest.mark.queue_limit
def test_an_operator_may_be_a_task(queue: Queue) -> None:
    async def main() -> None:
        fill(queue, 3)
        assert await queue.acancel("0") == 1
        assert await queue.acancel(queue="q") == 2
        assert await queue.areplay(queue="q", state="cancelled") == 3
        assert await queue.adelete(["0"]) == 1
        assert await queue.adelete(queue="q") == 2
        assert await queue.apurge(0) == 0
        await queue.limits.aset("q", concurrency=1)
        await queue.apause("q")
        assert [one.paused for one in await queue.limits.alist()] == [True]
        await queue.aresume("q")
        await queue.limits.aclear("q")
        assert await queue.limits.alist("q") == []
        assert (await queue.slots.atake("scope", "key", "a", 10)).held
        assert len(await queue.slots.alist("scope", "key")) == 1
        assert await queue.slots.areconcile("scope", "key") == 0
        assert await queue.slots.adrop("scope", "key", "a") == 0
        await queue.schedules.aput("s", "* * * * *", NewJob(queue="q"))
        (schedule,) = await queue.schedules.alist()
        assert await queue.schedules.afire(schedule) is False
        await queue.schedules.adrop("s")
        assert (await queue.amaintain()).total == 0
        assert await queue.areconcile("q") == {}

    run(main)


def test_a_task_meets_the_same_errors(queue: Queue) -> None:
    queue.enqueue("q", id="held")
    (job,) = queue.claim("q")
    queue.ack(job)

    calls: list[tuple[type[Exception], Callable[[], Awaitable[object]]]] = [
        (Duplicate, lambda: queue.aenqueue("q", id="held")),
        (InvalidInput, lambda: queue.aenqueue("")),
        (InvalidInput, lambda: queue.aclaim("q", limit=0)),
        (JobNotFound, lambda: queue.aget("nobody")),
        (JobNotFound, lambda: queue.acancel("nobody")),
        (LeaseLost, lambda: queue.arelease(job)),
        (LeaseLost, lambda: queue.aprogress(job, 5)),
    ]

    async def main() -> None:
        for error, call in calls:
            with pytest.raises(error):
                await call()

    with nothing_changes(queue):
        run(main)


def test_many_tasks_work_at_once(queue: Queue) -> None:
    async def work() -> list[str]:
        seen: list[str] = []
        while jobs := await queue.aclaim("q", limit=5):
            seen += ids(jobs)
            await asyncio.gather(*[queue.aack(job) for job in jobs])
        return seen

    async def main() -> None:
        made = await asyncio.gather(*[queue.aenqueue("q") for _ in range(100)])
        seen = await asyncio.gather(*[work() for _ in range(10)])
        assert sorted(one for some in seen for one in some) == sorted(ids(made))

    run(main)
    assert queue.stats().done == 100


def test_tasks_and_threads_share_a_handle(queue: Queue) -> None:
    async def main() -> None:
        await asyncio.gather(
            *[queue.aenqueue("q") for _ in range(20)],
            *[asyncio.to_thread(queue.enqueue, "q") for _ in range(20)],
        )

    run(main)
    run(main)  # a second loop on the same handle
    assert queue.stats().ready == 80


def test_a_handle_closes_itself_after_an_async_with(queue: Queue) -> None:
    async def main() -> None:
        async with queue as same:
            assert same is queue
            await queue.aenqueue("q")
        with pytest.raises(Closed):
            await queue.astats()
        await queue.aclose()

    run(main)


# Cancellation -----------------------------------------------------------------------------------


def put_before(
    queue: Queue, apply: Callable[[Sequence[Op]], list[Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have another `apply` called, by one thread at a time, whatever the engine could do."""
    monkeypatch.setattr(store_of(queue).engine, "apply", apply)
    monkeypatch.setattr(store_of(queue).engine, "in_flight", 1)
    store_of(queue).committer.start_anew()


class Gate:
    """Holds an engine's next batch up, so that a test can act while it is under way."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self._apply: Callable[[Sequence[Op]], list[Answer]] = store_of(queue).engine.apply
        self.begun, self.open = threading.Event(), threading.Event()
        put_before(queue, self.apply, monkeypatch)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        self.begun.set()
        assert self.open.wait(30)
        return self._apply(batch)


@pytest.fixture
def gate(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Gate:
    queue.enqueue("q", id="a", max_attempts=1)
    return Gate(queue, monkeypatch)


async def until_given(queue: Queue) -> Job:
    """Claim until the job is there; the clock stands still, so no lease runs out."""
    while True:
        for job in await queue.aclaim("q"):
            return job


async def cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_claim_that_is_cancelled_under_way_gives_its_jobs_back(queue: Queue, gate: Gate) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(queue.aclaim("q"))
        await asyncio.to_thread(gate.begun.wait, 30)
        await cancel(task)
        gate.open.set()
        job = await until_given(queue)
        assert (job.id, job.attempts, job.errors) == ("a", 1, ())
        await queue.aack(job)

    run(main)


def test_a_claim_that_is_cancelled_before_it_begun_takes_nothing(queue: Queue, gate: Gate) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(queue.aenqueue("other"))
        await asyncio.to_thread(gate.begun.wait, 30)
        task = asyncio.ensure_future(queue.aclaim("q"))
        await asyncio.sleep(0)  # it is handed in, and waits for the first
        await cancel(task)
        gate.open.set()
        await first
        (job,) = await queue.aclaim("q")
        assert job.id == "a"

    run(main)


def test_a_claim_that_is_cancelled_once_it_is_done_gives_its_jobs_back(
    queue: Queue, gate: Gate
) -> None:
    async def main() -> None:
        gate.open.set()
        task = asyncio.ensure_future(queue.aclaim("q"))
        for _ in range(2):  # turns of the loop: it is called, and then handed in
            await asyncio.sleep(0)
        # The loop is kept from resuming the task until its job is leased.
        assert any(queue.get("a").state is State.LEASED for _ in range(100_000))
        await cancel(task)
        assert (await until_given(queue)).id == "a"

    run(main)


def test_a_claim_that_times_out_gives_its_jobs_back(queue: Queue, gate: Gate) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.aclaim("q"), 0.01)
        gate.open.set()
        assert (await until_given(queue)).id == "a"

    run(main)


def test_an_enqueue_that_is_cancelled_before_it_begun_does_not_happen(
    queue: Queue, gate: Gate
) -> None:
    before = dump(queue)

    async def main() -> None:
        first = asyncio.ensure_future(queue.acancel(["nobody"]))
        await asyncio.to_thread(gate.begun.wait, 30)
        task = asyncio.ensure_future(queue.aenqueue("q"))
        await asyncio.sleep(0)
        await cancel(task)
        gate.open.set()
        await first
        await queue.acancel(["nobody"])

    run(main)
    assert dump(queue) == before


def test_a_task_that_is_cancelled_hurts_no_other(queue: Queue, gate: Gate) -> None:
    async def main() -> None:
        first = asyncio.ensure_future(queue.acancel(["nobody"]))
        await asyncio.to_thread(gate.begun.wait, 30)
        tasks = [asyncio.ensure_future(queue.aenqueue("r", id=str(n))) for n in range(6)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            await cancel(task)
        gate.open.set()
        await first
        await asyncio.gather(*tasks[1::2])

    run(main)
    assert sorted(ids(all_jobs(queue, queue="r"))) == ["1", "3", "5"]


# When much is waiting ---------------------------------------------------------------------------


class Steps:
    """Lets an engine's batches through one by one."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self._apply: Callable[[Sequence[Op]], list[Answer]] = store_of(queue).engine.apply
        self._begun, self._go = threading.Semaphore(0), threading.Semaphore(0)
        put_before(queue, self.apply, monkeypatch)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        self._begun.release()
        assert self._go.acquire(timeout=30)
        return self._apply(batch)

    def until_begun(self) -> None:
        assert self._begun.acquire(timeout=30)

    def go(self, batches: int = 1) -> None:
        self._go.release(batches)


@pytest.fixture
def full(open_queue: OpenQueue) -> Queue:
    """A queue where one operation may wait."""
    queue = open_queue(max_waiting=1)
    queue.enqueue("q", id="a")
    return queue


def wait_in_line(queue: Queue) -> threading.Thread:
    """Another caller, whose operation waits for the one under way, as soon as it may wait."""

    def call() -> None:
        while True:
            with suppress(Busy):
                queue.cancel(["nobody"])
                return

    other = threading.Thread(target=call, daemon=True)
    other.start()
    until(lambda: store_of(queue).committer._waiting > 0)
    return other


def test_a_cancelled_claim_gives_its_jobs_back_though_no_more_may_wait(
    full: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(full, monkeypatch)

    async def main() -> None:
        task = asyncio.ensure_future(full.aclaim("q"))
        await asyncio.to_thread(steps.until_begun)
        second = asyncio.ensure_future(full.acancel(["nobody"]))
        await asyncio.sleep(0)
        await cancel(task)
        steps.go()
        steps.until_begun()  # the second is under way, and this loop stands still until
        other = wait_in_line(full)  # a third waits
        await asyncio.sleep(0)
        steps.go(1_000)
        await second
        await asyncio.to_thread(other.join, 30)
        given = [job for _ in range(100) for job in await full.aclaim("q")]
        assert ids(given) == ["a"]

    run(main)


def test_a_loop_that_is_gone_hurts_no_other_caller_though_no_more_may_wait(
    full: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(full, monkeypatch)
    left: list[asyncio.Future[list[Job]]] = []

    async def main() -> None:
        left.append(asyncio.ensure_future(full.aclaim("q")))
        await asyncio.to_thread(steps.until_begun)

    run(main)  # which cancels the claim and closes its loop while the commit is under way
    other = wait_in_line(full)
    steps.go(1_000)
    other.join(10)
    assert not other.is_alive()
    given = [job for _ in range(100) for job in full.claim("q")]
    assert ids(given) == ["a"]
