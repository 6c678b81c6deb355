"""A store that cannot commit for a while, or meets what nobody thought of, costs no job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.model import ops, queries
from tenure.model.job import Job
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query
from tenure.queue.open_store import OpenStore
from tenure.worker.handler import HandlerSpec
from tenure.worker.post import Post
from tenure.worker.worker import Worker
from tests.crash.watched import PATIENCE, Watched, opened
from tests.support.sizes import let
from tests.workers import errands
from tests.workers.life import Place, WorkerProcess, a_place, until

TROUBLES = pytest.mark.parametrize(
    "trouble",
    [tenure.Busy("locked"), tenure.StoreError("disk I/O error")],
    ids=lambda error: type(error).__name__,
)


@pytest.fixture
def engine(tmp_path: Path) -> Watched:
    return Watched(SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock()))


@pytest.fixture
def queue(engine: Watched) -> Iterator[tenure.Queue]:
    with opened(engine) as queue:
        yield queue


@pytest.fixture
def rival(tmp_path: Path) -> Iterator[tenure.Queue]:
    """Another handle on the same file, which meets no trouble."""
    with tenure.connect(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        yield queue


class Work:
    """Jobs that a worker runs, and how often each was."""

    def __init__(self, queue: tenure.Queue, lease: float = 30.0) -> None:
        self.queue = queue
        self.ran: Counter[str] = Counter()
        self.began = threading.Event()
        post = Post(["mail"], 10, {}, default=HandlerSpec(self._run, "loop", "mail"))
        self.worker = Worker(
            queue, [post], lease=lease, schedule=False, poll_interval=0.05, name="ours"
        )

    async def _run(self, job: Job) -> None:
        self.ran[job.id] += 1
        self.began.set()

    def until(self, over: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
        """Run until something has happened, doing something in another thread."""

        async def main() -> None:
            await self.worker.start()
            deadline = time.monotonic() + PATIENCE
            while not await asyncio.to_thread(over):
                assert time.monotonic() < deadline, "it never happened"
                await asyncio.to_thread(meanwhile)
                await asyncio.sleep(0.005)
            await self.worker.stop()

        asyncio.run(main())


def all_done(queue: tenure.Queue) -> bool:
    return queue.stats("mail").unfinished == 0


@TROUBLES
def test_results_go_through_when_the_store_can_commit_again(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue, trouble: tenure.TenureError
) -> None:
    ids = queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(20)])
    work = Work(queue)
    away_until: list[float] = []

    def before(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Ack) for op in batch) and not away_until:
            away_until.append(time.monotonic() + 0.5)
        if away_until and time.monotonic() < away_until[0]:
            raise trouble

    engine.before = before
    work.until(lambda: all_done(rival), lambda: None)
    assert away_until != []
    assert work.ran == dict.fromkeys(ids, 1)
    assert rival.stats("mail").done == 20


@TROUBLES
def test_a_job_whose_result_cannot_be_told_for_several_leases_is_not_run_again(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue, trouble: tenure.TenureError
) -> None:
    """Its lease is kept until the store knows."""
    lease = 0.3
    ids = queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(5)])
    work = Work(queue, lease)
    told_at: list[float] = []
    got: list[tenure.Job] = []

    def before(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Extend) for op in batch):
            return  # a renewal may share the commit; that it works is what this is about
        if any(isinstance(op, ops.Ack) for op in batch):
            told_at.append(time.monotonic())
            if time.monotonic() < told_at[0] + 4 * lease:
                raise trouble

    def meanwhile() -> None:
        if work.began.is_set():
            got.extend(rival.claim("mail", lease=60))

    engine.before = before
    work.until(lambda: all_done(rival), meanwhile)
    assert got == []
    assert work.ran == dict.fromkeys(ids, 1)
    assert [rival.get(id).attempts for id in ids] == [1] * 5


def test_what_the_store_rejects_for_one_job_takes_no_other_down(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue
) -> None:
    """Its result is lost, so it is run again when its lease has ended; at least once, that is."""
    fault = tenure.StoreRejected("not that")
    ids = queue.enqueue_many([tenure.NewJob(queue="mail", id=f"{n}") for n in range(10)])
    work = Work(queue, lease=0.3)

    def before(batch: Sequence[Op]) -> None:
        for op in batch:
            if isinstance(op, ops.Ack) and op.id == "5" and work.ran["5"] == 1:
                raise fault

    engine.before = before
    work.until(lambda: all_done(rival), lambda: None)
    assert work.ran == dict.fromkeys(ids, 1) | {"5": 2}
    assert rival.stats("mail").done == 10


def test_what_nobody_thought_of_delays_one_outcome_and_loses_none(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue
) -> None:
    ids = queue.enqueue_many([tenure.NewJob(queue="mail", id=f"{n}") for n in range(10)])
    work, tries = Work(queue), [0]

    def before(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Ack) and op.id == "5" for op in batch):
            tries[0] += 1
            if tries[0] <= 4 or rival.stats("mail").done < 9:
                raise ZeroDivisionError("nobody thought of this")

    engine.before = before
    work.until(lambda: all_done(rival), lambda: None)
    assert work.ran == dict.fromkeys(ids, 1)
    assert rival.stats("mail").done == 10


class Doubtful(Watched):
    """An engine that answers acks with an error the first times."""

    def __init__(self, inner: SqliteEngine, error: tenure.TenureError) -> None:
        super().__init__(inner)
        self.error = error
        self.left = 3

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        acks = [op for op in batch if isinstance(op, ops.Ack)]
        if not acks or not self.left:
            return super().apply(batch)
        self.left -= 1
        if isinstance(self.error, tenure.OutcomeUnknown):  # it was applied, and nobody knows
            answers = super().apply(batch)
        else:
            answers = super().apply([op for op in batch if op not in acks])
        others = iter(answers)
        if len(answers) == len(batch):
            return [self.error if op in acks else a for op, a in zip(batch, answers, strict=True)]
        return [self.error if op in acks else next(others) for op in batch]


@pytest.mark.parametrize(
    "error",
    [
        tenure.Busy("locked"),
        tenure.StoreError("shard '1' is away"),
        tenure.StoreFull("no space"),
        tenure.OutcomeUnknown("the answer was lost"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_outcome_that_is_answered_with_an_error_is_sent_again(
    tmp_path: Path,
    rival: tenure.Queue,
    error: tenure.TenureError,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock())
    with opened(Doubtful(inner, error)) as queue:
        ids = queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(3)])
        work = Work(queue)
        work.until(lambda: all_done(rival), lambda: None)
    assert work.ran == dict.fromkeys(ids, 1)
    assert rival.stats("mail").done == 3
    said = [one for one in caplog.records if "is kept until" in one.getMessage()]
    assert len(said) == 1
    assert "no longer leased" not in caplog.text


def test_an_outcome_that_makes_others_fail_does_not_do_so_for_ever(
    tmp_path: Path, rival: tenure.Queue
) -> None:
    """As on a shard that meets an error nobody thought of: it is the answer to the whole batch."""

    class Poisoned(Watched):
        def apply(self, batch: Sequence[Op]) -> list[Answer]:
            acks = [op for op in batch if isinstance(op, ops.Ack)]
            if not any(op.id == "5" for op in acks) or (
                len(batch) == 1 and rival.stats("mail").done == 11
            ):
                return super().apply(batch)
            answers = iter(super().apply([op for op in batch if op not in acks]))
            error = tenure.StoreError("shard '1': ZeroDivisionError()")
            return [error if op in acks else next(answers) for op in batch]

    inner = SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock())
    with opened(Poisoned(inner)) as queue:
        jobs = [tenure.NewJob(queue="mail", id=f"{n}") for n in range(12)]
        ids = queue.enqueue_many(jobs)
        work = Work(queue)
        work.worker._posts[0].concurrency = 12
        work.until(lambda: all_done(rival), lambda: None)
    assert work.ran == dict.fromkeys(ids, 1)


def test_an_outcome_that_hangs_holds_up_no_other_job(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue
) -> None:
    """Nor the outcome of one whose handler does not end after its timeout, nor any lease."""
    may_end, go_on, hangs = threading.Event(), threading.Event(), threading.Event()
    renewals: Counter[str] = Counter()

    def before(batch: Sequence[Op]) -> None:
        renewals.update(op.id for op in batch if isinstance(op, ops.Extend))
        if any(isinstance(op, ops.Fail) for op in batch):
            hangs.set()
            go_on.wait(PATIENCE)

    def block(job: Job) -> None:
        may_end.wait(PATIENCE)

    engine.before = before
    queue.enqueue("slow", id="late", timeout=0.01, max_attempts=1)
    queue.enqueue("slow", id="long")
    work = Work(queue, lease=2)
    slow = Post(["slow"], 2, {}, default=HandlerSpec(block, "thread", "slow"))
    work.worker._posts.append(slow)

    def meanwhile() -> None:
        if hangs.is_set() and not go_on.is_set():
            before_it = renewals["long"]
            ids = [rival.enqueue("mail").id for _ in range(3)]
            until(lambda: all(rival.get(id).state == "done" for id in ids))
            until(lambda: renewals["long"] >= before_it + 4 and renewals["late"] >= 2)
            go_on.set()
            until(lambda: rival.get("late").state == "dead")
            may_end.set()

    work.until(lambda: rival.stats("slow").unfinished == 0, meanwhile)
    assert rival.get("long").attempts == 1


def test_a_claim_that_the_store_cannot_do_is_tried_again(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue
) -> None:
    ids = queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(3)])
    work, tries = Work(queue), [0]

    def before(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Claim) for op in batch):
            tries[0] += 1
            if tries[0] <= 3:
                raise ZeroDivisionError("nobody thought of this")

    engine.before = before
    work.until(lambda: all_done(rival), lambda: None)
    assert work.ran == dict.fromkeys(ids, 1)


@pytest.mark.parametrize(
    "trouble", [tenure.StoreError("disk I/O error"), ZeroDivisionError("nobody thought of this")]
)
def test_a_worker_that_cannot_look_ahead_goes_on(
    engine: Watched,
    queue: tenure.Queue,
    rival: tenure.Queue,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception,
) -> None:
    read, looked = engine.read, threading.Event()

    def refuse(query: Query) -> Found:
        if isinstance(query, queries.NextDue):
            looked.set()
            raise trouble
        return read(query)

    monkeypatch.setattr(engine, "read", refuse)
    work = Work(queue)
    ids: list[str] = []

    def meanwhile() -> None:
        if looked.is_set() and len(ids) < 3:
            ids.append(rival.enqueue("mail").id)
            looked.clear()

    work.until(lambda: len(ids) == 3 and all_done(rival), meanwhile)
    assert work.ran == dict.fromkeys(ids, 1)


def test_a_runner_can_be_stopped_while_the_store_is_away(
    engine: Watched, queue: tenure.Queue, rival: tenure.Queue
) -> None:
    """What it could not tell is lost to it; the lease runs out, and another runs the job."""
    job = queue.enqueue("mail")
    work = Work(queue, lease=0.3)

    def before(batch: Sequence[Op]) -> None:
        if work.began.is_set():
            raise tenure.Busy("locked")

    async def main() -> None:
        await work.worker.start()
        while not work.began.is_set():
            await asyncio.sleep(0.005)
        await asyncio.wait_for(work.worker.stop(grace=0.1), PATIENCE)

    engine.before = before
    asyncio.run(main())
    until(lambda: rival.claim("mail", lease=60) != [])
    assert rival.get(job.id).attempts == 2


# Across processes -------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path) as place:
        yield place


def test_an_idle_worker_begins_what_another_process_enqueues_soon(
    place: Place, record_property: Callable[[str, object], None]
) -> None:
    """Within 50 ms on a machine that has nothing else to do."""
    waits: list[int] = []
    with place.queue() as queue:
        WorkerProcess(place, "--no-schedule").ready()
        for n in range(1, 16):
            time.sleep(0.05 + n % 7 / 100)  # it has gone to sleep again, at another moment
            enqueued_at = time.time_ns() // 1_000_000
            (id,) = queue.enqueue_many([errands.quick.job()])
            (event,) = place.wait_for("began", id=id)
            waits.append(event.at - enqueued_at)
    waits.sort()
    record_property("milliseconds", waits)
    assert waits[-1] < 1000, waits


def test_outcomes_that_a_service_does_not_answer_keep_nothing_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be of a shard that is slow. No claim waits for them, and outcomes of other jobs go
    with a claim meanwhile."""
    monkeypatch.setattr(OpenStore, "is_service", True)
    let(monkeypatch, seconds_until_outcomes_are_held_up=0.01)
    engine = Watched(SqliteEngine(tmp_path / "jobs.db", tenure.Settings(), SystemClock()), 2)
    goes_on, held = threading.Event(), threading.Event()

    def before(batch: Sequence[Op]) -> None:
        if any(isinstance(op, ops.Ack) and op.id == stuck.id for op in batch):
            held.set()
            assert goes_on.wait(10 * PATIENCE)

    async def main() -> None:
        post.look = False
        post.to_tell = [ops.Ack(stuck.id, stuck.token)]
        await asyncio.wait_for(worker._exchange(post, 0), PATIENCE)
        assert await asyncio.to_thread(held.wait, PATIENCE)
        await asyncio.to_thread(until, lambda: worker._apart.is_held_up(post))
        assert [lease.id for lease in post.unstored] == [stuck.id]
        post.to_tell = [ops.Ack(other.id, other.token)]
        working = asyncio.create_task(worker._work(post))
        await asyncio.to_thread(until, lambda: queue.get(other.id).state == "done")
        assert queue.get(stuck.id).state == "leased"
        goes_on.set()
        await asyncio.to_thread(until, lambda: queue.get(stuck.id).state == "done")
        worker.stop_soon()
        await asyncio.wait_for(working, PATIENCE)

    engine.before = before
    post = Post(["mail"], 4, {})
    with opened(engine) as queue:
        queue.enqueue_many([tenure.NewJob(queue="mail") for _ in range(2)])
        stuck, other = queue.claim("mail", limit=2)
        worker = Worker(queue, [post], schedule=False, name="ours")
        try:
            asyncio.run(main())
        finally:
            goes_on.set()
