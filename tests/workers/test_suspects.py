"""Jobs that were running when their process died are started one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tenure
from tenure import NewJob, Tenure
from tenure.model import ops
from tenure.model.job import NULL, Failure, Job
from tenure.model.ops import Answer, Op
from tenure.model.states import LEASE_RAN_OUT
from tenure.queue import store_of
from tenure.queue.committer import Committer
from tenure.worker import suspects
from tenure.worker.handler import HandlerSpec
from tenure.worker.post import Post
from tenure.worker.suspects import WORKER_DIED, is_suspect
from tenure.worker.worker import Worker
from tests.support.sizes import let
from tests.workers.conftest import running, work_off
from tests.workers.life import until


def make_suspects(queue: tenure.Queue, jobs: Sequence[NewJob]) -> list[str]:
    """Jobs whose process has died."""
    ids = queue.enqueue_many(jobs)
    claimed = queue.claim("default", limit=len(jobs))
    assert [job.id for job in claimed] == ids
    message = "the worker process died while it ran this job"
    store_of(queue).do(
        [ops.Fail(job.id, job.token, message, WORKER_DIED, "", 0) for job in claimed]
    )
    return ids


class Watch:
    """Which jobs run at the same time."""

    def __init__(self, app: Tenure) -> None:
        self.now: set[str] = set()
        self.seen: list[frozenset[str]] = []
        self.told = asyncio.Event()

        @app.task(name="work")
        async def work(seconds: float = 0.0) -> None:
            self._begin()
            await asyncio.sleep(seconds)
            self.now.discard(tenure.current_job().job.id)

        @app.task(name="wait")
        async def wait() -> None:
            self._begin()
            await self.told.wait()
            self.now.discard(tenure.current_job().job.id)

        self.work: Any = work
        self.wait: Any = wait

    def _begin(self) -> None:
        self.now.add(tenure.current_job().job.id)
        self.seen.append(frozenset(self.now))

    def met(self, ids: Sequence[str]) -> bool:
        """Whether two of these jobs ran at the same time."""
        return any(len(some & set(ids)) > 1 for some in self.seen)


@pytest.fixture
def watch(app: Tenure) -> Watch:
    return Watch(app)


def test_suspects_run_one_after_another(app: Tenure, watch: Watch) -> None:
    ids = make_suspects(app.queue, [watch.work.job(0.01) for _ in range(5)])
    fresh = app.queue.enqueue_many([watch.work.job(0.01) for _ in range(5)])
    worker = work_off(app, concurrency=10, schedule=False)
    assert worker.handled == 10
    assert not watch.met(ids)
    assert watch.met(fresh)
    for id in ids:  # nor beside any other job
        assert frozenset({id}) in watch.seen


def test_suspects_that_wait_for_a_long_one_are_released_whole(
    app: Tenure, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_that_suspects_are_held=0.05)
    let(monkeypatch, milliseconds_until_a_worker_is_away=3_600_000)

    async def main() -> None:
        ids = make_suspects(app.queue, [watch.wait.job() for _ in range(3)])
        async with running(app, concurrency=10, schedule=False):
            await until_true(lambda: states(app, ids) == ["leased", "pending", "pending"])
            assert [job.attempts for job in jobs_of(app, ids)] == [2, 1, 1]
            (fresh,) = app.queue.enqueue_many([watch.work.job()])
            await until_true(lambda: states(app, [fresh]) == ["done"])  # the worker goes on
            watch.told.set()
        assert states(app, ids) == ["done", "pending", "pending"]

    asyncio.run(main())


def test_a_suspect_that_runs_for_long_holds_up_others_for_a_while_only(
    app: Tenure, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUIET_SECONDS", "HOLD_SECONDS", "ALONE_SECONDS", "LAST_SECONDS"):
        monkeypatch.setattr(suspects, name, 0.05)
    let(monkeypatch, milliseconds_until_a_worker_is_away=50)

    async def main() -> None:
        ids = make_suspects(app.queue, [watch.wait.job() for _ in range(3)])
        async with running(app, concurrency=10, schedule=False):
            await until_true(lambda: watch.now == set(ids))
            watch.told.set()

    asyncio.run(main())


def test_a_worker_with_max_jobs_counts_only_what_it_starts(
    app: Tenure, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_that_suspects_are_held=0.02)
    let(monkeypatch, milliseconds_until_a_worker_is_away=20)
    ids = make_suspects(app.queue, [watch.work.job(0.1) for _ in range(3)])
    worker = app.worker(concurrency=10, schedule=False, max_jobs=3)
    asyncio.run(asyncio.wait_for(worker.run(), 30))
    assert (worker.handled, states(app, ids)) == (3, ["done"] * 3)


def test_a_worker_that_is_stopped_gives_waiting_suspects_back(app: Tenure, watch: Watch) -> None:
    async def main() -> None:
        ids = make_suspects(app.queue, [watch.wait.job() for _ in range(3)])
        async with running(app, concurrency=10, schedule=False, grace=0):
            await until_true(lambda: bool(watch.now))
        jobs = jobs_of(app, ids)
        assert [(job.state, job.attempts) for job in jobs] == [("pending", 1)] * 3

    asyncio.run(main())


def test_a_suspect_starts_when_the_outcomes_of_others_are_stored(app: Tenure, watch: Watch) -> None:
    (id,) = make_suspects(app.queue, [watch.wait.job()])
    fresh = app.queue.enqueue_many([watch.work.job() for _ in range(5)])

    async def main() -> None:
        async with running(app, concurrency=10, schedule=False):
            await until_true(lambda: watch.now == {id})
            assert states(app, fresh) == ["done"] * 5
            watch.told.set()

    asyncio.run(main())


def test_a_suspect_also_starts_after_the_outcomes_of_suspects_before_it_are_stored(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_of_quiet_for_suspects=0.05)
    let(monkeypatch, seconds_that_suspects_are_held=30.0)
    ended: list[str] = []
    unstored: list[str] = []

    @app.task(name="look")
    async def look() -> None:
        unstored.extend(id for id in ended if app.queue.get(id).state != "done")
        await asyncio.sleep(0.02)
        ended.append(tenure.current_job().job.id)

    ids = make_suspects(app.queue, [look.job() for _ in range(10)])
    work_off(app, concurrency=10, schedule=False)
    assert (sorted(ended), unstored) == (sorted(ids), [])


def hold_back(monkeypatch: pytest.MonkeyPatch, is_held: Callable[[Op], bool]) -> None:
    """Let the store be unable to apply some operations."""
    apply = Committer._apply_to

    def part(committer: Committer, batch: Sequence[Op], into: list[Answer] | None) -> list[Answer]:
        others = iter(apply(committer, [op for op in batch if not is_held(op)], into))
        return [tenure.Busy("locked") if is_held(op) else next(others) for op in batch]

    monkeypatch.setattr(Committer, "_apply_to", part)


def test_an_outcome_that_cannot_be_stored_holds_up_neither_suspects_nor_others_for_long(
    app: Tenure, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUIET_SECONDS", "HOLD_SECONDS"):
        monkeypatch.setattr(suspects, name, 0.1)
    ids = make_suspects(app.queue, [watch.work.job() for _ in range(3)])
    (stuck,) = app.queue.enqueue_many([watch.work.job()])
    locked = True
    hold_back(monkeypatch, lambda op: locked and isinstance(op, ops.Ack) and op.id == stuck)

    async def main() -> None:
        nonlocal locked
        async with running(app, concurrency=10, schedule=False):
            await until_true(lambda: states(app, ids) == ["done"] * 3)
            (fresh,) = app.queue.enqueue_many([watch.work.job()])
            await until_true(lambda: states(app, [fresh]) == ["done"])
            assert states(app, [stuck]) == ["leased"]
            locked = False
            await until_true(lambda: states(app, [stuck]) == ["done"])

    asyncio.run(main())
    assert not watch.met(ids)


def worker_of(queue: tenure.Queue, run: Callable[[Job], Any], **options: Any) -> Worker:
    """A worker of the queue default, and of another one beside it."""
    handler = HandlerSpec(run, "loop", "run")
    posts = [Post([name], 10, {}, default=handler) for name in ("default", "other")]
    return Worker(queue, posts, schedule=False, **options)


def test_a_released_suspect_may_be_replaced_by_a_job_of_any_queue_of_a_worker_with_max_jobs(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_that_suspects_are_held=0.05)
    let(monkeypatch, milliseconds_until_a_worker_is_away=3_600_000)
    queue, told = app.queue, asyncio.Event()

    async def run(job: Job) -> None:
        if job.queue == "default":
            await told.wait()

    async def main() -> None:
        ids = make_suspects(queue, [NewJob(queue="default") for _ in range(2)])
        worker = worker_of(queue, run, max_jobs=2)
        await worker.start()
        await until_true(lambda: states(app, ids) == ["leased", "pending"])
        (other,) = queue.enqueue_many([NewJob(queue="other")])
        await until_true(lambda: states(app, [other]) == ["done"])
        told.set()
        await asyncio.wait_for(worker.wait(), 30)
        await worker.stop()
        assert states(app, ids) == ["done", "pending"]

    asyncio.run(main())


def jobs_of(app: Tenure, ids: Sequence[str]) -> list[Job]:
    return [app.queue.get(id) for id in ids]


def states(app: Tenure, ids: Sequence[str]) -> list[str]:
    return [str(job.state) for job in jobs_of(app, ids)]


async def until_true(condition: Any) -> None:
    await asyncio.to_thread(until, condition)


LOST = Failure(1, 1, LEASE_RAN_OUT)
DIED = Failure(1, 1, "the worker process died (SIGSEGV) while it ran this job", WORKER_DIED)
RAISED = Failure(1, 1, "no such file", "OSError")


@pytest.mark.parametrize(
    ("errors", "attempts", "expected"),
    [
        ((), 1, False),
        ((RAISED,), 2, False),
        ((DIED,), 2, True),
        ((DIED, RAISED), 3, False),  # it ran to an end since
        ((LOST,), 2, False),  # the store may have been away
        ((RAISED, LOST), 3, False),
        ((LOST, LOST), 3, True),
        ((RAISED, LOST), 5, True),  # it would be dead
    ],
)
def test_who_is_suspected(errors: tuple[Failure, ...], attempts: int, expected: bool) -> None:
    job = Job(
        *("id", "q", tenure.State.LEASED, NULL, 0, 0, 0, 0, attempts, 5),
        errors=errors,
    )
    assert is_suspect(job) is expected
