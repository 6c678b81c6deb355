"""The sandbox for users' tests: jobs run when told to, time is moved by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenure import (
    InvalidInput,
    JobFailed,
    JobNotFound,
    State,
    Tenure,
    WaitTimeout,
    current_job,
    fixed,
)
from tenure.testing import CrashReport, ManualClock, Sandbox

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


# Durable steps ----------------------------------------------------------------------------------


def test_forward_moves_the_clock_over_everything_that_jobs_wait_for() -> None:
    app = Tenure("memory://")

    @app.cron("0 3 * * *")
    async def nightly() -> None: ...

    @app.task
    async def patient() -> list[Any]:
        run = current_job()
        await run.sleep("cool off", days=30)
        await run.sleep("moment", 4.9)  # in place, after the steps were read in a thread
        try:
            await run.wait_for("approval", timeout=60)
        except WaitTimeout:
            return ["nobody", await run.wait_for("at last")]
        return []

    with Sandbox(app) as box:
        handle = patient.using(delay=60).enqueue()
        began, began_for_real = box.clock.now_ms(), time.monotonic()
        box.drain(forward=True)
        moved = (box.clock.now_ms() - began) / 1000  # and a little for what runs in threads
        assert moved == pytest.approx(60 + 30 * 86_400 + 4.9 + 60, abs=2)
        assert time.monotonic() - began_for_real < 4
        assert handle.job().state == "pending"
        assert handle.signal("at last", {"by": "ann"})
        assert not handle.signal("at last", "again")
        assert handle.result() == ["nobody", {"by": "ann"}]
        assert not handle.signal("another")
        with pytest.raises(JobNotFound):
            box.queue.signal("nobody", "approval")


def test_an_eager_sandbox_runs_a_job_that_a_signal_wakes() -> None:
    app = Tenure("memory://")

    @app.task
    async def task() -> Any:
        return await current_job().wait_for("approval")

    async def main() -> Any:
        handle = await task.aenqueue()
        assert await handle.asignal("approval", 3)
        return (await handle.ajob()).result

    with Sandbox(app, eager=True):
        assert asyncio.run(main()) == 3


def test_a_job_that_cannot_be_suspended_fails_in_a_sandbox_too() -> None:
    app = Tenure("memory://")

    @app.task(unique=True, delay=60)
    async def child() -> None: ...

    @app.task(max_attempts=1)
    async def task() -> None:
        await current_job().gather("labels", [child.job()])

    with Sandbox(app) as box:
        child.enqueue()
        handle = task.enqueue()
        box.drain()
        assert "the job cannot wait at 'labels'" in str(handle.job().error)


def test_crashing_everywhere_leads_to_the_same_end() -> None:
    app = Tenure("memory://")
    charged: list[str] = []

    def charge(order: int, key: str) -> str:
        charged.append(key)
        return key

    @app.task
    async def label(n: int) -> int:
        return n

    @app.task
    async def refund(what: str) -> None: ...

    @app.task(max_attempts=1)
    async def fulfil(order: int) -> list[Any]:
        run = current_job()
        paid = await run.step(charge, order, run.idempotency_key("charge"))
        run.undo(refund, paid)
        both = await asyncio.gather(*(run.step(list, name="reserve", key=k) for k in "ab"))
        await run.sleep("cool off", days=3)
        approval = await run.wait_for("approval", timeout=60)
        return [*both, approval, await run.gather("labels", [label.job(n) for n in range(3)])]

    with Sandbox(app) as box:
        report = box.crash_everywhere(fulfil, 7, signals={"approval": "yes"})
        assert box.jobs() == []
    # Five checkpoints, two suspensions and the end.
    assert report == CrashReport(5 * 2 + 2 + 1, [])
    assert report.same
    assert len(set(charged)) == 1
    assert len(charged) == 1 + report.crashes + 1  # again only if it died before it was recorded


def test_crashing_everywhere_says_what_is_different() -> None:
    app = Tenure("memory://")
    orders: list[int] = []

    @app.task
    async def mail() -> None: ...

    @app.task(max_attempts=3)
    def careless() -> int:
        run = current_job()
        mail.enqueue()  # not in a step: a second time in the next attempt
        orders.append(1)
        run.step(lambda: len(orders), name="count")
        return len(orders)

    with Sandbox(app) as box:
        report = box.crash_everywhere(careless)
    assert report.crashes == 3
    assert not report.same
    assert len(report.differences) == 3 * 3  # the step, the job and the others
    assert report.differences[0] == (
        "after a crash before the step 'count': the step 'count': ('step', '3') instead of "
        "('step', '1')"
    )
    assert (
        "after a crash before its end: the other jobs: [('mail', '{}', 'done'), "
        in (report.differences[-1])
    )
