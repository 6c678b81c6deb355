"""Reading results: get_result(), refresh() and what they say in each state of a job."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from tenure.django.framework import TaskResultDoesNotExist, TaskResultMismatch
from tests.django import tasks
from tests.django.project import Project


def read(project: Project, id: Any) -> Any:
    """What both forms say, which is the same."""

    async def aread() -> Any:
        return await project.backend().aget_result(id)

    result = project.backend().get_result(id)
    assert asyncio.run(aread()) == result
    return result


def test_a_result_can_be_read_back(project: Project) -> None:
    result = tasks.add.using(priority=5).enqueue(1, b=2)
    assert read(project, result.id) == result
    assert tasks.add.get_result(result.id) == result
    assert asyncio.run(tasks.add.aget_result(result.id)) == result


def test_refreshing_what_did_not_change_changes_nothing(project: Project) -> None:
    result = tasks.add.enqueue(1)
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before
    asyncio.run(result.arefresh())
    assert dataclasses.asdict(result) == before


@pytest.mark.parametrize("id", ["123", "", "x" * 10_000, "a\0b", 123, None])
def test_an_unknown_id_is_an_error_of_djangos(project: Project, id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        project.backend().get_result(id)
    with pytest.raises(TaskResultDoesNotExist):
        asyncio.run(project.backend().aget_result(id))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("welcome", {"to": "a@example.com"}),
        ("welcome", {"args": [], "kwargs": {}}),
        ("tests.django.tasks.add", None),
        ("tests.django.tasks.add", {"args": 5, "kwargs": {}}),
        ("tests.django.tasks.undecorated", {"args": [], "kwargs": {}}),
        ("tests.django.nowhere.add", {"args": [], "kwargs": {}}),
        ("", None),
    ],
)
def test_a_job_that_is_not_a_django_task_is_no_result(
    project: Project, kind: str, payload: Any
) -> None:
    job = project.queue.enqueue("default", payload, kind=kind)
    with pytest.raises(TaskResultDoesNotExist, match="not a Django task"):
        project.backend().get_result(job.id)
    with pytest.raises(TaskResultDoesNotExist, match="not a Django task"):
        asyncio.run(project.backend().aget_result(job.id))


def test_a_job_that_was_enqueued_without_django_can_be_one(project: Project) -> None:
    payload = {"args": [1], "kwargs": {"b": 2}}
    job = project.queue.enqueue("default", payload, kind="tests.django.tasks.add")
    assert read(project, job.id).backend == "default"
    project.work()
    assert read(project, job.id).return_value == 3


def test_a_result_of_another_task_does_not_match(project: Project) -> None:
    result = tasks.add_async.enqueue(1)
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        tasks.add.get_result(result.id)
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        asyncio.run(tasks.add.aget_result(result.id))


def test_a_claimed_job_is_running(project: Project) -> None:
    result = tasks.add.enqueue(1)
    project.queue.claim("default", worker="w1")
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == ("RUNNING", 1, ["w1"])
    assert result.started_at == result.last_attempted_at >= result.enqueued_at
    with pytest.raises(ValueError, match="not finished yet"):
        _ = result.return_value


def test_a_job_that_was_given_back_is_as_if_it_had_not_begun(project: Project) -> None:
    result = tasks.add.enqueue(1)
    (job,) = project.queue.claim("default")
    project.queue.release(job)
    before = dataclasses.asdict(result)
    result.refresh()
    assert dataclasses.asdict(result) == before


def test_a_job_that_waits_for_its_next_attempt_is_ready_and_has_its_errors(
    project: Project,
) -> None:
    with project.options(max_attempts=3):
        result = tasks.add.enqueue(1)
        (job,) = project.queue.claim("default", worker="w1")
        project.queue.fail(job, KeyError("a"))
        result.refresh()
        assert (result.status, result.worker_ids, result.finished_at) == ("READY", ["w1"], None)
        assert [error.exception_class for error in result.errors] == [KeyError]
        assert result.enqueued_at <= result.last_attempted_at <= result.started_at


def test_each_attempt_has_its_worker(project: Project) -> None:
    with project.options(max_attempts=20):
        result = tasks.add.enqueue(1)
        for n in range(1, 13):
            (job,) = project.queue.claim("default", worker=f"w{n}")
            project.queue.fail(job, "no", retry_in=0)
        (job,) = project.queue.claim("default", worker="last")
        result.refresh()
        assert result.attempts == 13
        kept = [f"w{n}" for n in range(3, 13)]  # Tenure keeps ten failures
        assert result.worker_ids == ["unknown", "unknown", *kept, "last"]
        assert result.started_at <= result.last_attempted_at
        project.queue.ack(job)
        result.refresh()
        assert (result.attempts, result.worker_ids[-1]) == (13, "last")


def test_a_cancelled_job_has_failed(project: Project) -> None:
    result = tasks.add.enqueue(1)
    project.queue.cancel(result.id)
    result.refresh()
    assert (result.status, result.is_finished, result.errors) == ("FAILED", True, [])
    assert result.finished_at >= result.enqueued_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_what_befell_a_job_has_an_exception_that_can_be_imported(project: Project) -> None:
    result = tasks.add.enqueue(1)
    (job,) = project.queue.claim("default", worker="w1")
    project.queue.fail(job, "the lease ran out")
    result.refresh()
    (error,) = result.errors
    assert error.exception_class.__name__ == "TenureError"
    assert error.traceback.endswith("TenureError: the lease ran out\n")


def test_a_replayed_job_begins_again(project: Project) -> None:
    result = tasks.add.enqueue(1)
    (job,) = project.queue.claim("default", worker="w1")
    project.queue.fail(job, "no", fatal=True)
    project.queue.replay(result.id)
    result.refresh()
    assert (result.status, result.attempts, result.finished_at) == ("READY", 0, None)
    project.work()
    result.refresh()
    assert (result.status, result.worker_ids) == ("SUCCESSFUL", ["worker-1"])
