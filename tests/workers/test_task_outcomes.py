"""What becomes of a task's result, its errors, its progress and its timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, assert_type

import pytest

import tenure
from tenure import Handle, InvalidInput, JobFailed, State, Tenure, current_job
from tests.workers.conftest import PATIENCE, running, work_off

in_processes = Tenure("memory://")  # each test moves it to its own file


@in_processes.task(process=True, max_attempts=3)
def misfit() -> int:
    return "seven"  # type: ignore[return-value]


@in_processes.task(process=True, max_attempts=3, no_retry_on=ValueError)
def picky(name: str) -> None:
    raise {"KeyError": KeyError, "ValueError": ValueError}[name]


@pytest.fixture
def process_app(tmp_path: Path) -> Iterator[Tenure]:
    in_processes.move_to(f"sqlite:///{tmp_path}/processes.db")
    with in_processes:
        yield in_processes


# Results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_result_that_is_not_json_makes_the_job_dead_at_once(app: Tenure, kind: str) -> None:
    @app.task(max_attempts=5)
    async def unwritable() -> Any:
        return object()

    @app.task(max_attempts=5)
    def unwritable_in_a_thread() -> Any:
        return object()

    handle = (unwritable if kind == "async" else unwritable_in_a_thread).enqueue()
    work_off(app)
    job = handle.job()
    assert (job.state, job.attempts) == (State.DEAD, 1)
    assert job.error == "result: is not JSON: a value of type object cannot be written as JSON"
    assert job.errors[-1].traceback == f"tenure.errors.InvalidPayload: {job.error}\n"


def test_a_result_that_does_not_fit_the_annotation_fails_in_the_worker(app: Tenure) -> None:
    def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    def missing() -> int:
        return None  # type: ignore[return-value]

    def right() -> int:
        return 7

    def unknown() -> Any:
        return "seven"

    handles = [app.task(one).enqueue() for one in (wrong, missing, right, unknown)]
    work_off(app)
    jobs = [handle.job() for handle in handles]
    assert [job.state for job in jobs] == ["dead", "dead", "done", "done"]
    assert jobs[0].error == "wrong: the result does not fit: Expected `int`, got `str`"
    assert jobs[1].error == "missing: the result does not fit: Expected `int`, got `null`"


@pytest.mark.parametrize("kind", ["in_the_loop", "in_a_thread"])
def test_a_payload_that_does_not_fit_makes_the_job_dead_at_once(app: Tenure, kind: str) -> None:
    @app.task
    async def in_the_loop(n: int) -> None: ...

    @app.task
    def in_a_thread(n: int) -> None: ...

    id = app.queue.enqueue("default", {"n": "x"}, kind=kind, max_attempts=5).id
    work_off(app)
    job = app.queue.get(id)
    assert (job.state, job.attempts) == (State.DEAD, 1)
    assert job.error == f"{kind}: the payload does not fit: Expected `int`, got `str` at `n`"
    assert job.errors[-1].traceback == f"tenure.errors.InvalidInput: {job.error}\n"


def test_an_error_that_the_task_meets_in_tenure_is_tried_again(app: Tenure) -> None:
    @app.task(max_attempts=5)
    def other(n: int) -> None: ...

    @app.task(max_attempts=5)
    def calls_it_wrongly() -> None:
        other.enqueue("x")  # type: ignore[arg-type]

    handle = calls_it_wrongly.enqueue()
    work_off(app)
    assert handle.job().state == State.PENDING
    assert "in calls_it_wrongly" in handle.job().errors[-1].traceback


def test_a_payload_in_a_process_must_fit_too(process_app: Tenure) -> None:
    id = process_app.queue.enqueue("default", {"x": 1}, kind="misfit", max_attempts=5).id
    work_off(process_app)
    assert (process_app.queue.get(id).state, process_app.queue.get(id).attempts) == ("dead", 1)


def test_a_result_in_a_process_must_fit_too(process_app: Tenure) -> None:
    handle = misfit.enqueue()
    work_off(process_app)
    assert handle.job().state is State.DEAD
    assert "the result does not fit" in str(handle.job().error)


def test_the_results_of_parents_are_typed_as_those_of_wait(app: Tenure) -> None:
    seen: list[Any] = []

    @app.task
    def day() -> date:
        return date(2026, 11, 17)

    @app.task(max_attempts=1)
    def broken() -> date:
        raise ValueError

    @app.task(if_parent_fails="run")
    def collect() -> None:
        seen.extend(current_job().results())

    first, *_ = app.fan_out([day.job(), broken.job(), day.job()], then=collect.job())
    work_off(app)
    assert first.result(timeout=0) == date(2026, 11, 17)
    assert seen == [date(2026, 11, 17), None, date(2026, 11, 17)]


def test_a_group_may_have_more_than_a_thousand_jobs(app: Tenure) -> None:
    @app.task
    async def one(n: int) -> int:
        return n

    @app.task
    async def total() -> int:
        return sum(await current_job().aresults())

    *_, last = app.fan_out([one.job(n) for n in range(1_200)], then=total.job())
    work_off(app, concurrency=100)
    assert last.result(timeout=0) == sum(range(1_200))


# Errors -----------------------------------------------------------------------------------------


class Flaky(ConnectionError): ...


@pytest.mark.parametrize(
    ("options", "error", "retried"),
    [
        ({"retry_on": ConnectionError}, Flaky(), True),
        ({"retry_on": (ConnectionError, OSError)}, ValueError(), False),
        ({"no_retry_on": ValueError}, ValueError(), False),
        ({"no_retry_on": (ValueError,)}, KeyError(), True),
        ({"retry_on": ConnectionError, "no_retry_on": Flaky}, Flaky(), False),
        ({"retry_on": ()}, KeyError(), False),
        ({"retry_on": ValueError}, tenure.Retry(after=5), True),
        ({}, KeyError(), True),
    ],
    ids=str,
)
def test_only_some_errors_are_retried(
    app: Tenure, options: Any, error: Exception, retried: bool
) -> None:
    @app.task(max_attempts=3, **options)
    async def work() -> None:
        raise error

    handle = work.enqueue()
    work_off(app)
    assert handle.job().state is (State.PENDING if retried else State.DEAD)
    assert handle.job().attempts == 1


@pytest.mark.parametrize(("retry_on", "state"), [(TimeoutError, "pending"), (KeyError, "dead")])
def test_a_timeout_is_a_timeout_error(app: Tenure, retry_on: Any, state: str) -> None:
    @app.task(max_attempts=3, timeout=0.05, retry_on=retry_on)
    async def work() -> None:
        await asyncio.sleep(60)

    handle = work.enqueue()
    work_off(app)
    assert handle.job().state == state


def test_the_errors_of_a_process_follow_the_same_rules(process_app: Tenure) -> None:
    handles = [picky.enqueue(one) for one in ("KeyError", "ValueError")]
    work_off(process_app)
    assert [handle.job().state for handle in handles] == ["pending", "dead"]


@pytest.mark.parametrize("wrong", ["ValueError", [ValueError], int, (ValueError, 5)], ids=str)
def test_what_is_no_exception_class_is_refused_where_it_is_declared(
    app: Tenure, wrong: Any
) -> None:
    for option in ("retry_on", "no_retry_on"):
        with pytest.raises(InvalidInput, match=f"{option}: must be an exception class"):
            app.task(**{option: wrong})(lambda: None)


# Progress, waiting and timeouts -----------------------------------------------------------------


def test_progress_is_rounded(app: Tenure) -> None:
    @app.task
    async def work() -> list[int | None]:
        seen: list[int | None] = []
        for percent in (12.4, 99.6, 100.0):
            current_job().progress(percent)
            await asyncio.sleep(0.05)
            seen.append((await app.queue.aget(current_job().job.id)).progress)
        return seen

    handle = work.enqueue()
    work_off(app)
    assert handle.result(timeout=0) == [12, 100, 100]
    app.queue.enqueue("q")
    (job,) = app.queue.claim("q")
    app.queue.progress(job, 33.3)
    assert app.queue.get(job.id).progress == 33
    for wrong in (float("nan"), 101.0, "50"):
        with pytest.raises(InvalidInput, match="percent"):
            app.queue.progress(job, wrong)  # type: ignore[arg-type]


def test_wait_in_a_running_loop_raises_with_a_hint(app: Tenure) -> None:
    handle = app.task(name="work")(lambda: None).enqueue()

    async def main() -> None:
        with pytest.raises(InvalidInput, match=r"use `await handle.aresult\(\)`"):
            handle.result(timeout=5)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_task_that_blocks_past_its_timeout_fails_within_about_a_second(
    app: Tenure, kind: str
) -> None:
    @app.task(timeout=0.2, max_attempts=1)
    def blocks() -> None:
        time.sleep(6)

    @app.task(timeout=0.2, max_attempts=1)
    async def blocks_the_loop() -> None:
        time.sleep(6)

    async def main() -> float:
        async with running(app, lease=30, grace=0):
            handle = (blocks if kind == "thread" else blocks_the_loop).enqueue()
            return await asyncio.to_thread(_seconds_until_dead, handle)

    assert 1 < asyncio.run(main()) < 4


def _seconds_until_dead(handle: Handle[None]) -> float:
    began = time.monotonic()
    with pytest.raises(JobFailed, match=r"timeout of 0\.2 s"):
        handle.result(timeout=PATIENCE)
    return time.monotonic() - began


# Types, which mypy checks -----------------------------------------------------------------------


def test_a_direct_call_is_typed_as_the_function(app: Tenure) -> None:
    @app.task
    def plain(n: int) -> str:
        return str(n)

    @app.task(queue="q", retry_on=OSError)
    async def awaitable(n: int) -> str:
        return str(n)

    @app.cron("* * * * *")
    @app.task
    def both() -> int:
        return 1

    async def main() -> str:
        return assert_type(await awaitable(2), str)

    assert assert_type(plain(1), str) == "1"
    assert asyncio.run(main()) == "2"
    assert assert_type(both(), int) == 1
    assert_type(plain.enqueue(1), Handle[str])
    assert_type(awaitable.using(priority=1).enqueue(1), Handle[str])
    with pytest.raises(InvalidInput):
        plain.enqueue("1")  # type: ignore[arg-type]


def test_enqueue_many_takes_jobs_whose_arguments_are_checked(app: Tenure) -> None:
    @app.task
    def plain(n: int) -> int:
        return n

    other = app.task(name="other")(lambda: None)
    handles = plain.enqueue_many(plain.job(n) for n in range(3))
    plain.enqueue_many([(4,), {"n": 5}, plain.using(priority=1).job(6)])
    assert [handle.job().payload for handle in handles] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with pytest.raises(InvalidInput, match=r"calls\[1\]\.kind: is a job of 'other'"):
        plain.enqueue_many([plain.job(1), other.job()])
    with pytest.raises(InvalidInput):
        plain.enqueue_many([plain.job("1")])  # type: ignore[arg-type]


def test_a_job_shows_its_payload_and_has_datetimes(app: Tenure) -> None:
    job = app.queue.enqueue("mail", {"to": "ann", "text": "x" * 1_000}, kind="send")
    assert repr(job).startswith(f"Job(id={job.id!r}, queue='mail', state='pending', payload=")
    assert 'payload={"to":"ann","text":"xxx' in repr(job)
    assert "kind='send'" in repr(job)
    assert len(repr(job)) < 400
    assert job.times.created_at == datetime.fromtimestamp(job.created_at / 1000, UTC)
    assert job.times.run_at == job.times.updated_at == job.times.created_at
    assert job.times.finished_at is None
