"""Enqueueing: what Django's contract says of enqueue() and aenqueue()."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test.utils import override_settings
from django.utils import timezone

import tenure
from tenure.django.framework import InvalidTask, TaskResultStatus, task
from tests.django import tasks
from tests.django.project import Project

READY = TaskResultStatus.READY


@pytest.fixture(params=["enqueue", "aenqueue"])
def enqueue(request: pytest.FixtureRequest) -> Any:
    """Both forms."""

    def sync(of: Any, *args: Any, **kwargs: Any) -> Any:
        return of.enqueue(*args, **kwargs)

    def awaited(of: Any, *args: Any, **kwargs: Any) -> Any:
        async def main() -> Any:
            return await of.aenqueue(*args, **kwargs)

        return asyncio.run(main())

    return sync if request.param == "enqueue" else awaited


@pytest.mark.parametrize("of", [tasks.add, tasks.add_async], ids=["sync", "async"])
def test_a_call_is_ready_and_says_so(project: Project, enqueue: Any, of: Any) -> None:
    before = timezone.now() - timedelta(milliseconds=1)
    result = enqueue(of, 1, b=2)
    assert (result.status, result.is_finished, result.attempts) == (READY, False, 0)
    assert (result.args, result.kwargs) == ([1], {"b": 2})
    assert (result.task, result.backend) == (of, "default")
    assert (result.errors, result.worker_ids) == ([], [])
    assert before <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    with pytest.raises(ValueError, match="not finished yet"):
        _ = result.return_value


def test_it_is_a_job_that_anybody_can_read(project: Project, enqueue: Any) -> None:
    result = enqueue(tasks.send, "a@example.com")
    job = project.queue.get(result.id)
    assert (job.kind, job.queue, job.state) == ("tests.django.tasks.send", "mail", "pending")
    assert job.payload == {"args": ["a@example.com"], "kwargs": {}, "backend": "default"}
    assert (job.priority, job.max_attempts) == (-7, 1)


def test_arguments_are_made_json_before_they_are_stored(project: Project, enqueue: Any) -> None:
    result = enqueue(tasks.echo, (1, 2), b"text", deep={"a": ({"b": None},)}, numbers={1: 2})
    assert result.args == [[1, 2], "text"]
    assert result.kwargs == {"deep": {"a": [{"b": None}]}, "numbers": {"1": 2}}
    assert project.backend().get_result(result.id) == result


@pytest.mark.parametrize("wrong", [datetime(2026, 1, 1, tzinfo=UTC), object(), {1}, 1j])
def test_what_cannot_be_json_is_refused(project: Project, enqueue: Any, wrong: object) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(tasks.echo, wrong)
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(tasks.echo, deep=[{"a": wrong}])
    assert project.queue.jobs().jobs == []


@pytest.mark.parametrize("wrong", [float("nan"), b"\xff", "\ud800"])
def test_what_json_has_no_word_for_is_refused(
    project: Project, enqueue: Any, wrong: object
) -> None:
    with pytest.raises(ValueError, match=r"JSON|Unsupported|surrogates"):
        enqueue(tasks.echo, wrong)
    assert project.queue.jobs().jobs == []


@pytest.mark.parametrize("of", [tasks.add, tasks.add_async], ids=["sync", "async"])
def test_arguments_that_the_function_does_not_take_are_refused(
    project: Project, enqueue: Any, of: Any
) -> None:
    for args, kwargs in (((1, 2, 3), {}), ((), {}), ((1,), {"c": 1})):
        with pytest.raises(TypeError, match=r"add(_async)?\(\)"):
            enqueue(of, *args, **kwargs)
    assert project.queue.jobs().jobs == []


def test_a_context_is_not_an_argument_of_the_caller(project: Project, enqueue: Any) -> None:
    assert enqueue(tasks.describe, "word").status == "READY"
    with pytest.raises(TypeError, match=r"describe\(\) missing a required argument"):
        enqueue(tasks.describe)


def test_a_payload_over_the_limit_is_refused(project: Project, enqueue: Any) -> None:
    with pytest.raises(tenure.PayloadTooLarge, match="store a reference"):
        enqueue(tasks.echo, "x" * 2_000_000)


def test_a_call_can_be_deferred(project: Project, enqueue: Any) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = enqueue(tasks.add.using(run_after=later), 1)
    assert result.task.run_after == later
    assert project.queue.get(result.id).run_at == round(later.timestamp() * 1000)
    assert project.backend().get_result(result.id) == result
    assert project.work() == 0


def test_without_time_zones_a_time_is_the_servers(project: Project, enqueue: Any) -> None:
    with override_settings(USE_TZ=False):
        later = datetime(2040, 7, 1, 12, 0)  # noqa: DTZ001  # as Django's now() gives them here
        result = enqueue(tasks.add.using(run_after=later), 1)
        run_at = project.queue.get(result.id).run_at
        assert run_at == datetime(2040, 7, 1, 10, 0, tzinfo=UTC).timestamp() * 1000
        assert result.task.run_after == later
        assert timezone.is_naive(result.enqueued_at)
        now = datetime.now(timezone.get_default_timezone()).replace(tzinfo=None)
        assert abs(now - result.enqueued_at) < timedelta(minutes=1)
        assert project.backend().get_result(result.id) == result


def test_a_naive_time_is_refused_where_times_have_zones(project: Project) -> None:
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        tasks.add.using(run_after=datetime(2040, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("priority", [-101, 101, 3.5])
def test_a_priority_out_of_range_is_refused(project: Project, priority: float) -> None:
    with pytest.raises(InvalidTask, match="whole number between -100 and 100"):
        tasks.add.using(priority=priority)


def test_an_unknown_queue_is_refused_when_it_is_named(project: Project) -> None:
    with pytest.raises(InvalidTask, match="Queue 'other' is not valid for backend"):
        tasks.add.using(queue_name="other")


def test_and_when_the_call_is_enqueued(backends: dict[str, Any], enqueue: Any) -> None:
    anywhere = {"default": {**backends["default"], "QUEUES": []}}
    with override_settings(TASKS=anywhere):
        elsewhere = tasks.add.using(queue_name="other")
        assert enqueue(elsewhere, 1).status == READY
    with (
        override_settings(TASKS=backends),
        pytest.raises(InvalidTask, match="Queue 'other' is not valid for backend"),
    ):
        enqueue(elsewhere, 1)


def test_a_function_that_no_worker_could_find_is_refused(project: Project, enqueue: Any) -> None:
    with pytest.raises(InvalidTask, match="must be defined at a module level"):
        task()(lambda: None)
    with pytest.raises(InvalidTask, match="undecorated is not a Django task"):
        enqueue(tasks.hidden)
    assert project.queue.jobs().jobs == []


def test_a_task_of_the_main_module_is_refused(project: Project, enqueue: Any) -> None:
    def function() -> None: ...

    function.__module__, function.__qualname__ = "__main__", "function"
    with pytest.raises(InvalidTask, match="cannot import __main__"):
        enqueue(task()(function))


def test_context_must_be_the_first_argument(project: Project) -> None:
    with pytest.raises(InvalidTask, match="first argument of 'context'"):
        task(takes_context=True)(tasks.add.func)


def test_the_signal_is_sent_once_the_job_is_there(project: Project, enqueue: Any) -> None:
    with project.heard() as signals:
        enqueue(tasks.add, 1)
    assert signals == [("enqueued", "READY")]


def test_the_options_are_those_of_each_job(project: Project, enqueue: Any) -> None:
    backoff = tenure.fixed(9)
    with project.options(max_attempts=5, timeout=30, backoff=backoff, expires_in=60):
        job = project.queue.get(enqueue(tasks.add, 1).id)
    assert (job.max_attempts, job.timeout_ms, job.backoff) == (5, 30_000, backoff)
    assert job.expires_at == job.created_at + 60_000


def test_many_may_enqueue_at_once(project: Project) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(*(tasks.add.aenqueue(n) for n in range(100)))

    ids = {result.id for result in asyncio.run(main())}
    assert len(ids) == 100
    assert project.queue.stats("default").ready == 100
