"""Durable steps: what a task has done it does not do again, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tenure
from tenure import Handle, Job, LeaseLost, State, Tenure, current_job
from tenure.clock import SystemClock
from tenure.engines.sqlite.engine import SqliteEngine
from tenure.features.steps.data import Checkpoint
from tenure.model.ops import Op
from tenure.testing import ManualClock
from tenure.worker.handler import HandlerSpec
from tenure.worker.post import Post
from tenure.worker.worker import Worker
from tests.crash.watched import Watched, opened
from tests.support import postgres
from tests.workers.conftest import PATIENCE, work_off

DAY = 86_400
NOW = tenure.fixed(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Tenure]:
    """An app whose time only moves when a test says so."""
    on_postgres = request.param == "postgres"
    url = postgres.url_of(tmp_path) if on_postgres else f"sqlite:///{tmp_path}/jobs.db"
    with Tenure(url, clock=clock) as app:
        yield app
    if on_postgres:
        postgres.drop(tmp_path)


only_sqlite = pytest.mark.parametrize("app", ["sqlite"], indirect=True)


class Calls:
    """What the steps of a test have done, in order."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def charge(self, order: int) -> dict[str, int]:
        self.made.append(f"charge {order}")
        return {"paid": order}

    def reserve(self, sku: str) -> str:
        self.made.append(f"reserve {sku}")
        return sku.upper()


@pytest.fixture
def calls() -> Calls:
    return Calls()


def recorded(app: Tenure, handle: Handle[Any]) -> dict[str, Any]:
    """The results of the steps of a job."""
    steps = app.queue.steps(handle.id).steps
    return {step.name + step.key: msgspec.json.decode(step.result) for step in steps}


def send(app: Tenure, handle: Handle[Any], name: str, value: Any = None) -> None:
    assert app.queue.signal(handle.id, name, value)


def end(app: Tenure, handle: Handle[Any]) -> tuple[Any, ...]:
    """Work off what is ready. Returns what has become of the job."""
    work_off(app)
    job = handle.job()
    return job.state, job.attempts, job.result if job.state is State.DONE else job.error


# Steps --------------------------------------------------------------------------------------------


def test_a_recorded_step_does_not_run_again(app: Tenure, calls: Calls) -> None:
    @app.task(max_attempts=3, backoff=NOW)
    async def fulfil(order: int) -> list[Any]:
        run = current_job()
        paid = await run.step(calls.charge, order)
        skus = [await run.step(calls.reserve, sku, key=sku) for sku in "ab"]
        if run.job.attempts < 3:
            raise RuntimeError("boom")
        return [paid, *skus]

    handle = fulfil.enqueue(7)
    assert end(app, handle) == ("done", 3, [{"paid": 7}, "A", "B"])
    assert calls.made == ["charge 7", "reserve a", "reserve b"]
    assert recorded(app, handle) == {"charge": {"paid": 7}, "reservea": "A", "reserveb": "B"}


def test_a_plain_function_in_a_thread_has_blocking_steps(app: Tenure, calls: Calls) -> None:
    @app.task(max_attempts=2, backoff=NOW)
    def fulfil(order: int) -> list[Any]:
        run = current_job()
        paid = run.step(calls.charge, order)  # async functions, too
        sku = run.step(calls.reserve, "a")
        if run.job.attempts == 1:
            raise RuntimeError("boom")
        return [paid, sku]

    handle = fulfil.enqueue(7)
    assert end(app, handle) == ("done", 2, [{"paid": 7}, "A"])
    assert calls.made == ["charge 7", "reserve a"]


processes = Tenure("memory://")  # a test moves it to its own file


@processes.task(process=True, max_attempts=2, backoff=NOW)
def in_a_process(path: str) -> list[Any]:
    run = current_job()

    def note(what: str) -> str:
        with Path(path).open("a") as file:
            file.write(f"{what}\n")
        return what.upper()

    said = run.step(note, "one")
    try:
        waited = run.wait_for("go", timeout=0.01)
    except tenure.WaitTimeout:
        waited = "nobody"
    if run.job.attempts == 1:
        raise RuntimeError("boom")
    return [said, waited, run.step(note, "two", key="2")]


def test_a_function_in_a_process_has_blocking_steps_and_is_suspended(tmp_path: Path) -> None:
    processes.move_to(f"sqlite:///{tmp_path}/processes.db")
    with processes:
        handle = in_a_process.enqueue(str(tmp_path / "said"))
        while handle.job().state is State.PENDING:
            work_off(processes)
        assert (handle.job().state, handle.job().result) == ("done", ["ONE", "nobody", "TWO"])
        assert handle.job().attempts == 2
    assert (tmp_path / "said").read_text().split() == ["one", "two"]


def test_a_process_that_does_not_share_the_store_says_what_to_do() -> None:
    processes.move_to("memory://")
    with processes:
        handle = in_a_process.using(max_attempts=1).enqueue("nowhere")
        work_off(processes)
        assert "use a file such as sqlite:///jobs.db" in str(handle.job().error)


@only_sqlite
def test_class_based_and_plain_handlers_have_steps(app: Tenure, calls: Calls) -> None:
    class Mail(tenure.Handler):
        queue = "mail"

        async def handle(self, payload: Any, job: Job) -> Any:
            return await current_job().step(calls.charge, payload)

    class Text(tenure.Handler):
        queue = "text"

        def handle(self, payload: Any, job: Job) -> Any:
            return current_job().step(calls.reserve, payload)

    app.register(Mail())
    app.register(Text())
    app.queue.enqueue("mail", 3, id="mail")
    app.queue.enqueue("text", "a", id="text")
    work_off(app)
    assert [app.queue.get(id).result for id in ("mail", "text")] == [{"paid": 3}, "A"]
    assert [app.queue.get(id).has_steps for id in ("mail", "text")] == [True, True]


@only_sqlite
def test_a_job_without_steps_reads_and_stores_none(app: Tenure) -> None:
    @app.task
    async def quick() -> bool:
        return current_job().uses_steps

    handle = quick.enqueue()
    assert end(app, handle) == ("done", 1, False)
    assert not handle.job().has_steps


@dataclass
class Receipt:
    cents: int


@only_sqlite
def test_a_result_is_decoded_to_the_return_type_in_every_attempt(app: Tenure) -> None:
    async def pay() -> Receipt:
        return Receipt(300)

    def sizes() -> tuple[int, ...]:
        return (1, 2)

    seen: list[Any] = []

    @app.task(max_attempts=2, backoff=NOW)
    async def task() -> None:
        run = current_job()
        seen.append((await run.step(pay), await run.step(sizes), await run.step(list, name="n")))
        if run.job.attempts == 1:
            raise RuntimeError("boom")

    assert end(app, task.enqueue())[0] == "done"
    assert seen == [(Receipt(300), (1, 2), [])] * 2


def unfit() -> int:
    return "seven"  # type: ignore[return-value]


@only_sqlite
@pytest.mark.parametrize(
    ("func", "options", "says"),
    [
        (unfit, {}, "the step 'unfit'.unfit: the result does not fit: Expected `int`, got `str`"),
        (object, {"name": "o"}, "the step 'o'.result: is not JSON: a value of type object"),
        (lambda: 1, {}, "has no name of its own: give the step one with name="),
        (lambda: "x" * 1_100_000, {"name": "much"}, "the step 'much'.result: is 1,100,002 bytes"),
    ],
)
def test_what_every_attempt_would_meet_makes_the_job_dead_at_once(
    app: Tenure, func: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    @app.task(max_attempts=5)
    async def task() -> None:
        await current_job().step(func, **options)

    state, attempts, error = end(app, task.enqueue())
    assert (state, attempts) == ("dead", 1)
    assert says in error


@only_sqlite
@pytest.mark.parametrize("at_once", [True, False])
def test_a_name_that_repeats_needs_a_key(app: Tenure, calls: Calls, at_once: bool) -> None:
    @app.task(max_attempts=5)
    async def task() -> None:
        run = current_job()
        if at_once:
            await asyncio.gather(run.step(calls.reserve, "a"), run.step(calls.reserve, "b"))
        await run.step(calls.reserve, "a")
        await run.step(calls.reserve, "b")

    handle = task.enqueue()
    says = "name: the step 'reserve' was named twice in one run: give each its own key= or name"
    assert end(app, handle) == ("dead", 1, says)
    assert calls.made == ["reserve a"]


@only_sqlite
def test_a_step_that_fails_spends_an_attempt_and_can_be_tried_again_by_hand(app: Tenure) -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionError("down")
        return len(tries)

    @app.task(max_attempts=3, backoff=NOW)
    async def task() -> int:
        run = current_job()
        try:
            return int(await run.step(flaky))
        except ConnectionError:
            return int(await run.step(flaky))

    assert end(app, task.enqueue()) == ("done", 2, 4)


@pytest.mark.parametrize("blocks", [True, False])
@only_sqlite
def test_retries_of_a_step_take_place_within_the_attempt(app: Tenure, blocks: bool) -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) % 3:
            raise ConnectionError("down")
        return len(tries)

    async def in_the_loop() -> int:
        return int(await current_job().step(flaky, retries=2, backoff=NOW))

    def in_a_thread() -> int:
        return int(current_job().step(flaky, retries=2, backoff=NOW))

    task = app.task(in_a_thread if blocks else in_the_loop)
    assert end(app, task.enqueue()) == ("done", 1, 3)
    assert end(app, task.using(max_attempts=1).enqueue()) == ("done", 1, 6)
    tries.append(1)

    @app.task(max_attempts=1)
    async def gives_up() -> Any:
        return await current_job().step(flaky, name="once", retries=0)

    assert end(app, gives_up.enqueue()) == ("dead", 1, "down")


@only_sqlite
def test_an_idempotency_key_is_the_same_in_every_attempt_and_nowhere_else(app: Tenure) -> None:
    seen: list[tuple[str, ...]] = []

    @app.task(max_attempts=2, backoff=NOW)
    async def task() -> None:
        run = current_job()
        wanted = [("charge", ""), ("charge", "1"), ("refund", "")]
        seen.append(tuple(run.idempotency_key(*one) for one in wanted))
        if run.job.attempts == 1:
            raise RuntimeError("boom")

    task.enqueue()
    task.enqueue()
    work_off(app)
    assert len(seen) == 4
    assert len(set(seen)) == 2
    assert len({key for one in seen for key in one}) == 6


@only_sqlite
def test_steps_in_gather_run_at_the_same_time(app: Tenure) -> None:
    here: list[asyncio.Event] = []

    async def meet(n: int) -> int:
        here.append(asyncio.Event())
        if len(here) == 3:
            for one in here:
                one.set()
        await here[n].wait()
        return n

    @app.task
    async def task() -> list[int]:
        run = current_job()
        return list(await asyncio.gather(*(run.step(meet, n, key=str(n)) for n in range(3))))

    assert end(app, task.enqueue()) == ("done", 1, [0, 1, 2])


# Sleeps -------------------------------------------------------------------------------------------


def test_a_sleeping_job_is_no_workers_and_spends_no_attempt(
    app: Tenure, clock: ManualClock, calls: Calls
) -> None:
    @app.task(max_attempts=1)
    async def task() -> str:
        run = current_job()
        await run.step(calls.charge, 1)
        await run.sleep("cool off", days=3)
        await run.sleep("again", 3600)
        return "rested"

    handle = task.enqueue()
    assert end(app, handle) == ("pending", 0, None)
    assert handle.job().run_at == clock.now_ms() + 3 * DAY * 1000
    assert handle.job().worker == ""
    clock.advance(3 * DAY - 1)
    assert end(app, handle) == ("pending", 0, None)
    clock.advance(1)
    assert end(app, handle) == ("pending", 0, None)
    clock.advance(3600)
    assert end(app, handle) == ("done", 1, "rested")
    assert calls.made == ["charge 1"]


@only_sqlite
@pytest.mark.parametrize("blocks", [True, False])
def test_a_short_sleep_takes_place_in_the_worker_once(
    app: Tenure, clock: ManualClock, blocks: bool
) -> None:
    async def in_the_loop() -> list[int]:
        run = current_job()
        await run.sleep("moment", 0.02)
        if run.job.attempts == 1:
            raise RuntimeError("boom")
        return [run.job.attempts]

    def in_a_thread() -> list[int]:
        run = current_job()
        before = clock.now_ms()
        run.sleep("moment", 4.9)
        slept = clock.now_ms() - before
        if run.job.attempts == 1:
            assert slept == 4_900
            raise RuntimeError("boom")
        return [run.job.attempts, slept]

    task = app.task(max_attempts=2, backoff=NOW)(in_a_thread if blocks else in_the_loop)
    handle = task.enqueue()
    assert end(app, handle) == ("done", 2, [2, 0] if blocks else [2])
    (step,) = app.queue.steps(handle.id).steps
    assert (step.name, step.kind, step.took_ms) == ("moment", "step", 4_900 if blocks else 20)


# Signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [True, False])
def test_a_signal_is_waited_for_without_a_worker(app: Tenure, blocks: bool) -> None:
    async def in_the_loop() -> Any:
        return await current_job().wait_for("approval")

    def in_a_thread() -> Any:
        return current_job().wait_for("approval")

    task = app.task(in_a_thread if blocks else in_the_loop)
    handle = task.using(max_attempts=1).enqueue()
    assert end(app, handle) == ("pending", 0, None)
    send(app, handle, "another")
    assert end(app, handle) == ("pending", 0, None)
    send(app, handle, "approval", {"by": "ann"})
    assert end(app, handle) == ("done", 1, {"by": "ann"})


def test_a_signal_that_comes_first_is_there(app: Tenure) -> None:
    @app.task
    async def task() -> Any:
        run = current_job()
        await run.step(list, name="first")
        return [await run.wait_for("one"), await run.wait_for("two", timeout=10)]

    handle = task.enqueue()
    send(app, handle, "one", 1)
    send(app, handle, "two", 2)
    assert end(app, handle) == ("done", 1, [1, 2])


def test_a_wait_that_is_over_stays_over(app: Tenure, clock: ManualClock) -> None:
    @app.task(max_attempts=2, backoff=NOW)
    async def task() -> list[Any]:
        run = current_job()
        try:
            await run.wait_for("approval", timeout=60)
        except tenure.WaitTimeout as error:
            said = str(error)
        await run.sleep("later", 60)
        if run.job.attempts == 1:
            raise RuntimeError("boom")
        return [said]

    handle = task.enqueue()
    assert end(app, handle) == ("pending", 0, None)
    clock.advance(60)
    assert end(app, handle) == ("pending", 0, None)
    send(app, handle, "approval", "too late")
    clock.advance(60)
    says = f"no signal 'approval' was sent to job {handle.id!r} in time"
    assert end(app, handle) == ("done", 2, [says])


@only_sqlite
def test_a_signal_that_came_before_the_end_of_a_wait_was_noticed_counts(
    app: Tenure, clock: ManualClock
) -> None:
    @app.task
    async def task() -> Any:
        run = current_job()

        async def hear() -> None:
            await asyncio.to_thread(send, app, handle, "approval", "just in time")

        if run.job.run_at > began:
            await run.step(hear)
        return await run.wait_for("approval", timeout=60)

    began = clock.now_ms()
    handle = task.enqueue()
    assert end(app, handle) == ("pending", 0, None)
    clock.advance(60)
    assert end(app, handle) == ("done", 1, "just in time")


# Other jobs ---------------------------------------------------------------------------------------


def test_jobs_are_waited_for_and_their_results_kept(app: Tenure) -> None:
    made: list[int] = []

    @app.task
    async def label(n: int) -> Receipt:
        made.append(n)
        return Receipt(n)

    @app.task(max_attempts=2, backoff=NOW)
    async def task() -> Any:
        run = current_job()
        assert await run.gather("none", []) == []
        found = await run.gather("labels", [label.job(n) for n in range(3)])
        if run.job.attempts == 1:
            raise RuntimeError("boom")
        return [type(one).__name__ for one in found] + [one.cents for one in found]

    handle = task.enqueue()
    assert end(app, handle) == ("done", 2, ["Receipt"] * 3 + [0, 1, 2])
    assert sorted(made) == [0, 1, 2]


def test_a_job_that_fails_is_named_and_counts_once_it_was_replayed(app: Tenure) -> None:
    broken = [True]

    @app.task(max_attempts=1)
    def child(n: int) -> int:
        if n and broken:
            raise ValueError("no ink")
        return n

    @app.task(max_attempts=1)
    def task() -> Any:
        return current_job().gather("labels", [child.job(0), child.job(1)])

    handle = task.enqueue()
    state, _, error = end(app, handle)
    (failed,) = [job for job in app.queue.jobs(kind="child").jobs if job.state is State.DEAD]
    assert (state, error) == ("dead", f"the step 'labels': job {failed.id!r} is dead: no ink")
    assert handle.job().errors[-1].type == "tenure.errors.ChildFailed"
    broken.clear()
    app.queue.replay([failed.id, handle.id])
    assert end(app, handle) == ("done", 1, [0, 1])


def test_failures_are_returned_on_request_and_kept(app: Tenure) -> None:
    @app.task(max_attempts=1)
    async def child(n: int) -> int:
        if n:
            raise ValueError("no ink")
        return n

    seen: list[Any] = []

    @app.task(max_attempts=2, backoff=NOW)
    async def task() -> None:
        run = current_job()
        found = await run.gather("all", [child.job(0), child.job(1)], return_exceptions=True)
        seen.append([found[0], type(found[1]), found[1].state])
        if run.job.attempts == 1:
            app.queue.replay(found[1].job_id)
            raise RuntimeError("boom")

    assert end(app, task.enqueue())[0] == "done"
    assert seen == [[0, tenure.ChildFailed, "dead"]] * 2


@only_sqlite
def test_a_job_that_was_deleted_is_not_waited_for(app: Tenure) -> None:
    @app.task(delay=60)
    async def child() -> None: ...

    @app.task(max_attempts=1)
    async def task() -> None:
        await current_job().gather("labels", [child.job()])

    handle = task.enqueue()
    assert end(app, handle)[0] == "waiting"
    (found,) = app.queue.jobs(kind="child").jobs
    app.queue.cancel(found.id)
    app.queue.delete(found.id)
    state, _, error = end(app, handle)
    assert state == "dead"
    assert error.endswith("is deleted: it was deleted before its result was read")


@only_sqlite
def test_a_job_that_cannot_be_suspended_fails_and_does_not_wait_for_nothing(app: Tenure) -> None:
    @app.task(unique=True, delay=60)
    async def child() -> None: ...

    @app.task(max_attempts=2, backoff=NOW)
    async def task() -> None:
        await current_job().gather("labels", [child.job()])

    child.enqueue()
    handle = task.enqueue()
    work_off(app)
    assert handle.job().attempts == 2
    assert handle.job().state == "dead"
    assert "the job cannot wait at 'labels': unique_key" in str(handle.job().error)
    with pytest.raises(tenure.InvalidInput, match=r"jobs\[0\]: must be a job made with task.job"):
        Durably(app).gather("labels", [child])  # type: ignore[list-item]


def Durably(app: Tenure) -> tenure.CurrentJob:
    """A run outside of a worker."""
    app.queue.enqueue("other", id="outside")
    (job,) = app.queue.claim("other")
    return tenure.CurrentJob(job, app.queue, lambda *told: None, lambda job: job.result)


# Suspension ---------------------------------------------------------------------------------------


@only_sqlite
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("instead", ["returned 'well'", "raised ValueError('no')"])
def test_a_handler_that_swallows_a_suspension_is_dead_and_told_why(
    app: Tenure, blocks: bool, instead: str
) -> None:
    def ends() -> str:
        if "raised" in instead:
            raise ValueError("no")
        return "well"

    async def in_the_loop() -> str:
        try:
            await current_job().sleep("nap", days=1)
        except BaseException:
            return ends()
        return "slept"

    def in_a_thread() -> str:
        try:
            current_job().sleep("nap", days=1)
        except BaseException:
            return ends()
        return "slept"

    task = app.task(max_attempts=5)(in_a_thread if blocks else in_the_loop)
    handle = task.enqueue()
    state, attempts, error = end(app, handle)
    assert (state, attempts) == ("dead", 1)
    told = "it returned" if "returned" in instead else "it raised ValueError('no')"
    assert error == (
        f"the task caught tenure.Suspended at 'nap', and {told}: raise it again, "
        "or catch Exception instead of BaseException; then replay the job"
    )
    assert handle.job().errors[-1].type == "Suspended"


@only_sqlite
def test_what_runs_beside_a_wait_is_recorded_before_the_job_is_suspended(app: Tenure) -> None:
    ran: list[str] = []

    async def slow() -> str:
        ran.append("slow")
        await asyncio.sleep(0.02)
        return "done"

    async def both() -> Any:
        run = current_job()
        return list(await asyncio.gather(run.step(slow), run.wait_for("go")))

    async def in_a_group() -> Any:
        run = current_job()
        async with asyncio.TaskGroup() as group:
            one = group.create_task(run.step(slow, key="group"))
            await one
            two = group.create_task(run.wait_for("go"))
        return [one.result(), two.result()]

    for task in (app.task(both), app.task(in_a_group)):
        handle = task.enqueue()
        assert end(app, handle) == ("pending", 0, None)
        assert list(recorded(app, handle).values()) == ["done", None]
        send(app, handle, "go", 1)
        assert end(app, handle) == ("done", 1, ["done", 1])
    assert ran == ["slow", "slow"]


@only_sqlite
def test_no_step_begins_after_the_run_was_suspended(app: Tenure, calls: Calls) -> None:
    @app.task
    async def task() -> str:
        run = current_job()
        try:
            await run.sleep("nap", days=1)
        finally:
            await run.step(calls.reserve, "in finally")
        return "well"

    handle = task.enqueue()
    assert end(app, handle) == ("pending", 0, None)
    assert calls.made == []


@only_sqlite
def test_a_suspended_run_is_logged_as_neither_failed_nor_done(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def task() -> None:
        await current_job().sleep("nap", days=1)

    caplog.set_level(logging.INFO, "tenure.worker")
    handle = task.enqueue()
    work_off(app)
    (said,) = [one for one in caplog.records if handle.id in one.getMessage()]
    assert said.levelname == "INFO"
    assert f"job {handle.id} (task) is suspended after" in said.getMessage()
    assert said.__dict__["step"] == "nap"
    assert said.__dict__["state"] == "pending"


# Undo ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("ending", ["done", "dead", "cancelled"])
def test_undos_run_last_first_if_the_job_ends_dead_or_cancelled(
    app: Tenure, blocks: bool, ending: str
) -> None:
    undone: list[str] = []

    @app.task(unique=True)
    def take_back(what: str) -> None:
        undone.append(what)

    def over() -> None:
        if ending == "dead":
            raise RuntimeError("boom")
        if ending == "cancelled":
            raise tenure.Cancel("no longer")

    async def in_the_loop() -> None:
        run = current_job()
        run.undo(take_back, "one")
        await run.undo(take_back, "two")
        run.undo(take_back, "three")
        over()

    def in_a_thread() -> None:
        run = current_job()
        for what in ("one", "two", "three"):
            run.undo(take_back, what)
        over()

    task = app.task(max_attempts=2, backoff=NOW)(in_a_thread if blocks else in_the_loop)
    handle = task.enqueue()
    assert end(app, handle)[0] == ending
    assert undone == ([] if ending == "done" else ["three", "two", "one"])
    assert len(app.queue.steps(handle.id).steps) == 3  # not more in the second attempt


@only_sqlite
def test_an_undo_of_a_suspended_job_runs_when_it_is_cancelled(app: Tenure) -> None:
    undone: list[str] = []

    @app.task
    async def take_back(what: str) -> None:
        undone.append(what)

    @app.task
    async def task() -> None:
        run = current_job()
        run.undo(take_back, "all", key="mine")
        await run.wait_for("never")

    handle = task.enqueue()
    assert end(app, handle)[0] == "pending"
    handle.cancel()
    work_off(app)
    assert undone == ["all"]


# Leases and trouble -------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [True, False])
def test_nothing_is_recorded_after_the_lease_was_lost(app: Tenure, blocks: bool) -> None:
    raised: list[str] = []

    async def in_the_loop() -> None:
        run = current_job()
        await app.queue.acancel(run.job.id)
        try:
            await run.step(list, name="late")
        except LeaseLost as error:
            raised.append(error.state)
            raise

    def in_a_thread() -> None:
        run = current_job()
        app.queue.cancel(run.job.id)
        try:
            run.step(list, name="late")
        except LeaseLost as error:
            raised.append(error.state)
            raise

    handle = app.task(in_a_thread if blocks else in_the_loop).enqueue()
    assert end(app, handle)[0] == "cancelled"
    assert raised == ["cancelled"]
    assert app.queue.steps(handle.id).steps == []


@only_sqlite
def test_a_timeout_keeps_what_was_recorded(app: Tenure, calls: Calls) -> None:
    async def endless() -> None:
        await asyncio.Event().wait()

    @app.task(timeout=0.05, max_attempts=2, backoff=NOW)
    async def task() -> str:
        run = current_job()
        await run.step(calls.charge, 1)
        if run.job.attempts == 1:
            await asyncio.gather(run.step(endless), run.wait_for("never"))
        return "well"

    handle = task.enqueue()
    assert end(app, handle) == ("done", 2, "well")
    assert handle.job().errors[0].type == "tenure.worker.outcome.Timeout"
    assert calls.made == ["charge 1"]


def test_a_short_sleep_that_was_interrupted_is_not_recorded(tmp_path: Path) -> None:
    with Tenure(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task(timeout=0.05, max_attempts=1)
        def task() -> None:
            current_job().sleep("nap", 4.9)

        handle = task.enqueue()
        work_off(app)
        assert handle.job().errors[-1].type == "tenure.worker.outcome.Timeout"
        assert app.queue.steps(handle.id).steps == []


@only_sqlite
def test_steps_in_other_threads_are_recorded_before_the_job_is_suspended(app: Tenure) -> None:
    ran: list[str] = []

    def slow(go: threading.Event) -> str:
        ran.append("slow")
        go.set()
        time.sleep(0.02)
        return "done"

    async def in_the_loop() -> Any:
        run, go = current_job(), threading.Event()
        beside = asyncio.create_task(asyncio.to_thread(run.step, slow, go))
        await asyncio.to_thread(go.wait, 0.5)
        waited = await run.wait_for("go")
        return [await beside, waited]

    def in_a_thread() -> Any:
        run, go = current_job(), threading.Event()
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(run.step, slow, go)
            go.wait(0.5)
            waited = run.wait_for("go")
            return [beside.result(), waited]

    for function in (in_the_loop, in_a_thread):
        handle = app.task(function).enqueue()
        assert end(app, handle) == ("pending", 0, None)
        assert recorded(app, handle) == {"slow": "done", "go": None}
        send(app, handle, "go", 1)
        assert end(app, handle) == ("done", 1, ["done", 1])
    assert ran == ["slow", "slow"]


@only_sqlite
def test_an_undo_that_was_not_recorded_fails_the_attempt(app: Tenure) -> None:
    @app.task
    async def take_back() -> None: ...

    async def inner() -> None:
        current_job().undo(take_back)

    @app.task(max_attempts=1)
    def task() -> str:
        asyncio.run(inner())
        return "well"

    says = "undo: was not recorded before its event loop ended: await it"
    assert end(app, task.enqueue()) == ("dead", 1, says)

    async def outer() -> str:
        run = current_job()
        await app.queue.acancel(run.job.id)
        run.undo(take_back)
        return "well"

    assert end(app, app.task(outer).enqueue())[0] == "cancelled"


@pytest.fixture
def engine(tmp_path: Path) -> Watched:
    return Watched(SqliteEngine(tmp_path / "watched.db", tenure.Settings(), SystemClock()))


def run_one(engine: Watched, handler: Callable[[Job], Any]) -> Job:
    """Let a worker run one job on this engine."""
    with opened(engine) as queue:
        queue.enqueue("mail", id="a", max_attempts=1)
        post = Post(["mail"], 10, {}, default=HandlerSpec(handler, "loop", "mail"))
        worker = Worker(queue, [post], schedule=False, burst=True)
        asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
        return queue.get("a")


def test_checkpoints_that_end_together_share_a_commit(engine: Watched) -> None:
    batches: list[int] = []

    def before(batch: Sequence[Op]) -> None:
        batches.append(sum(isinstance(op, Checkpoint) for op in batch))

    engine.before = before
    go = asyncio.Event()

    async def together(n: int) -> int:
        if n == 49:
            go.set()
        await go.wait()
        return n

    async def handler(job: Job) -> int:
        run = current_job()
        return sum(await asyncio.gather(*(run.step(together, n, key=str(n)) for n in range(50))))

    assert run_one(engine, handler).result == sum(range(50))
    assert sum(batches) == 50
    assert len([count for count in batches if count]) <= 3


@pytest.mark.parametrize("error", [tenure.Busy("locked"), tenure.StoreError("disk I/O error")])
def test_what_a_step_has_done_is_recorded_when_the_store_can_commit_again(
    engine: Watched, error: tenure.TenureError
) -> None:
    ran: list[str] = []
    refused: list[str] = []

    def before(batch: Sequence[Op]) -> None:
        if any(isinstance(op, Checkpoint) for op in batch) and len(refused) < 3:
            refused.append("once more")
            raise error

    engine.before = before

    async def once() -> str:
        ran.append("once")
        return "well"

    async def handler(job: Job) -> Any:
        return await current_job().step(once)

    assert run_one(engine, handler).result == "well"
    assert (len(ran), len(refused)) == (1, 3)


# Changed code -------------------------------------------------------------------------------------


@pytest.fixture
def deploy(app: Tenure, clock: ManualClock) -> Iterator[Callable[[Callable[..., Any]], Tenure]]:
    """Programs that have another version of the task, on the same store."""
    opened: list[Tenure] = []

    def other(function: Callable[..., Any]) -> Tenure:
        new = Tenure(app.url, clock=clock)
        new.task(name="task", max_attempts=2, backoff=NOW)(function)
        opened.append(new)
        return new

    yield other
    for one in opened:
        one.close()


def test_changed_code_goes_on_with_suspended_jobs(
    app: Tenure, deploy: Callable[[Callable[..., Any]], Tenure], calls: Calls
) -> None:
    @app.task(name="task", max_attempts=2)
    async def old() -> None:
        run = current_job()
        await run.step(calls.reserve, "old", name="removed")
        await run.step(calls.reserve, "a", name="before")
        await run.step(calls.charge, 1)
        await run.wait_for("go")

    async def new() -> list[Any]:
        run = current_job()
        moved = await run.step(calls.charge, 2)  # recorded: the order does not matter
        renamed = await run.step(calls.reserve, "b", name="after")
        added = await run.step(calls.reserve, "c", name="added")
        return [moved, renamed, added, await run.wait_for("go")]

    handle = old.enqueue()
    assert end(app, handle)[0] == "pending"
    send(app, handle, "go", "now")
    changed = deploy(new)
    work_off(changed)
    assert handle.job().result == [{"paid": 1}, "B", "C", "now"]
    assert calls.made == ["reserve old", "reserve a", "charge 1", "reserve b", "reserve c"]
    names = ["removed", "before", "charge", "go", "after", "added"]
    assert [step.name for step in app.queue.steps(handle.id).steps] == names


@only_sqlite
def test_a_result_that_no_longer_fits_names_its_step_unless_it_is_upgraded(
    app: Tenure, deploy: Callable[[Callable[..., Any]], Tenure]
) -> None:
    def pay() -> int:
        return 300

    @app.task(name="task", max_attempts=2)
    async def old() -> None:
        run = current_job()
        await run.step(pay)
        await run.wait_for("go")

    def pay_now() -> Receipt:
        raise AssertionError("it was recorded")

    async def new() -> int:
        return int((await current_job().step(pay_now, name="pay")).cents)

    async def newer() -> int:
        run = current_job()
        return int((await run.step(pay_now, name="pay", upgrade=Receipt)).cents)

    handle = old.enqueue()
    assert end(app, handle)[0] == "pending"
    send(app, handle, "go")
    work_off(deploy(new))
    assert handle.job().state is State.DEAD
    assert handle.job().error == (
        "the step 'pay': the result does not fit: Expected `object`, got `int`; "
        "it was recorded earlier: convert it with upgrade="
    )
    app.queue.replay(handle.id)
    work_off(deploy(newer))
    assert handle.job().result == 300


@only_sqlite
def test_a_name_that_now_means_something_else_is_an_error(
    app: Tenure, deploy: Callable[[Callable[..., Any]], Tenure]
) -> None:
    @app.task(name="task")
    async def old() -> None:
        await current_job().wait_for("go")

    async def new() -> None:
        await current_job().step(list, name="go")

    handle = old.enqueue()
    assert end(app, handle)[0] == "pending"
    send(app, handle, "go")
    work_off(deploy(new))
    says = "name: 'go' was recorded as a wait for a signal: give this its own name"
    assert handle.job().error == says
