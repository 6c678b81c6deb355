"""The sandbox for users' tests: jobs run when told to, time is moved by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from tenure import InvalidInput, JobFailed, State, Tenure, WaitTimeout, current_job, fixed
from tenure.testing import ManualClock, Sandbox

app = Tenure("sqlite:////nowhere/that/can/be/opened.db")


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
def enqueue_another(n: int) -> int:
    return add.enqueue(n, n).result() if n else 0


@app.task(max_attempts=2, backoff=fixed(60))
async def flaky() -> str:
    if current_job().job.attempts == 1:
        raise ConnectionError("not yet")
    return "ok"


@app.task
async def naps(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.task
async def asks_a_thread() -> str:
    return await asyncio.to_thread(lambda: "answer")


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(app) as box:
        yield box


def test_nothing_runs_until_it_is_told_to(box: Sandbox) -> None:
    handle = add.enqueue(1, 2)
    assert handle.job().state is State.PENDING
    assert box.drain() == 1
    assert handle.result() == 3
    assert box.drain() == 0


def test_the_app_has_its_own_store_back_afterwards() -> None:
    with Sandbox(app) as box:
        assert app.queue is box.queue
        with pytest.raises(InvalidInput, match="already in a sandbox"):
            Sandbox(app).__enter__()
    assert app.sandbox is None


def test_time_is_moved_by_hand_or_by_draining_forward(box: Sandbox) -> None:
    handle = flaky.enqueue()
    assert box.drain() == 1
    assert (handle.job().state, handle.job().error) == (State.PENDING, "not yet")
    assert box.drain(forward=59) == 0
    box.clock.advance(60)
    assert box.drain() == 1
    assert handle.result() == "ok"
    began = box.clock.now_ms()
    again = flaky.enqueue()
    assert box.drain(forward=3600) == 2
    assert again.result() == "ok"
    assert box.clock.now_ms() == began + 60_000


def test_sleeping_takes_no_time_and_moves_the_clock(box: Sandbox) -> None:
    began, real = box.clock.now_ms(), time.monotonic()
    naps.enqueue(86_400.0)
    box.drain()
    assert box.clock.now_ms() == began + 86_400_000
    assert time.monotonic() - real < 60


def test_a_thread_is_waited_for_in_real_time(box: Sandbox) -> None:
    assert asks_a_thread.using(timeout=30).enqueue().result() == "answer"


def test_eager_calls_run_before_they_return() -> None:
    with Sandbox(app, eager=True) as box:
        handle = add.enqueue(1, 2)
        assert handle.job().state is State.DONE
        assert [h.job().state for h in add.enqueue_many([(1, 1), (2, 2)])] == ["done", "done"]
        assert app.chain(add.job(1, 1), add.job(2, 2))[1].job().state is State.DONE
        add.using(delay=5).enqueue(1, 1)
        assert box.queue.stats().delayed == 1


def test_eager_calls_run_from_asyncio_too() -> None:
    async def main() -> None:
        handle = await add.aenqueue(1, 2)
        assert (await handle.ajob()).state is State.DONE
        assert add.enqueue(3, 4).job().state is State.DONE
        assert (await app.achain(add.job(1, 1), add.job(2, 2)))[1].job().state is State.DONE
        assert len(await app.afan_out([add.job(1, 1)], then=add.job(2, 2))) == 2

    with Sandbox(app, eager=True):
        asyncio.run(main())


def test_an_error_can_be_raised_where_the_test_is(box: Sandbox) -> None:
    flaky.enqueue()
    box.reraise = True
    with pytest.raises(ConnectionError, match="not yet"):
        box.drain()
    assert box.jobs()[0].error == "not yet"
    assert box.drain(forward=60) == 1


def test_waiting_in_a_sandbox_drains_it(box: Sandbox) -> None:
    assert add.enqueue(1, 2).result() == 3


def test_waiting_for_a_job_that_is_not_due_says_how_to_move_the_clock(box: Sandbox) -> None:
    with pytest.raises(WaitTimeout, match=r"drain\(forward=SECONDS\)"):
        flaky.enqueue().result()


def test_a_job_cannot_wait_for_one_that_only_it_could_run(box: Sandbox) -> None:
    with pytest.raises(JobFailed, match="is pending"):
        enqueue_another.using(max_attempts=1).enqueue(1).result()


def test_the_jobs_are_listed_in_order(box: Sandbox) -> None:
    add.enqueue_many([(n, n) for n in range(2500)])
    flaky.enqueue()
    assert [job.payload["a"] for job in box.jobs(kind="add")] == list(range(2500))
    assert len(box.jobs(kind="flaky")) == 1


def test_a_clock_can_be_shared() -> None:
    clock = ManualClock(5_000_000)
    with Sandbox(app, clock=clock) as box:
        assert add.enqueue(1, 1).job().created_at == 5_000_000
        assert box.clock is clock


def test_the_fixture_is_found_by_itself(tenure_sandbox: Callable[..., Sandbox]) -> None:
    box = tenure_sandbox(app, eager=True)
    assert add.enqueue(2, 3).result() == 5
    assert box.eager
