"""Running: what a worker makes of Django tasks."""

from __future__ import annotations

import logging
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test.utils import override_settings

import tenure
from tenure.django.framework import task_finished, task_started
from tenure.worker.outcome import Timeout as TaskTimeout
from tests.django import tasks
from tests.django.project import Project


def run(project: Project, of: Any, *args: Any, **kwargs: Any) -> Any:
    """A call's result, after a worker was there."""
    result = of.enqueue(*args, **kwargs)
    project.work()
    result.refresh()
    return result


@pytest.mark.parametrize("of", [tasks.add, tasks.add_async], ids=["sync", "async"])
def test_a_task_is_run_and_its_return_value_is_kept(project: Project, of: Any) -> None:
    result = run(project, of, 1, b=2)
    assert (result.status, result.is_finished, result.return_value) == ("SUCCESSFUL", True, 3)
    assert (result.attempts, result.worker_ids, result.errors) == (1, ["worker-1"], [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.started_at == result.last_attempted_at


def test_a_return_value_is_made_json(project: Project) -> None:
    result = run(project, tasks.echo, 1, a="b")
    assert result.return_value == {"args": [1], "kwargs": {"a": "b"}}


@pytest.mark.parametrize(
    ("of", "error", "last_line"),
    [
        (tasks.fail, ValueError, "ValueError: this cannot be"),
        (tasks.fail_async, tasks.Refused, "tests.django.tasks.Refused: not today"),
        (tasks.leave, SystemExit, "SystemExit: it left"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_task_that_raises_has_failed(
    project: Project, of: Any, error: type, last_line: str
) -> None:
    result = run(project, of)
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1)
    assert result.errors[0].exception_class is error
    assert result.errors[0].traceback.endswith(f"{last_line}\n")
    assert f"in {of.name}" in result.errors[0].traceback
    assert "asgiref" not in result.errors[0].traceback
    assert result.started_at <= result.finished_at
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_return_value_that_is_not_json_is_a_failure(project: Project) -> None:
    result = run(project, tasks.returns_what_is_not_json)
    assert result.status == "FAILED"
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


def test_a_return_value_over_the_limit_is_a_failure(project: Project) -> None:
    with project.heard() as signals:
        result = run(project, tasks.returns_too_much)
    assert result.errors[0].exception_class is tenure.PayloadTooLarge
    assert signals[-1] == ("finished", "FAILED")


@pytest.mark.parametrize(
    "of", [tasks.returns_what_is_not_json, tasks.returns_too_much], ids=lambda of: of.name
)
def test_a_return_value_that_cannot_be_kept_is_not_tried_again(project: Project, of: Any) -> None:
    with project.options(max_attempts=5), project.heard() as signals:
        result = run(project, of)
        assert (result.status, result.attempts) == ("FAILED", 1)
        assert signals[-1] == ("finished", "FAILED")


@pytest.mark.parametrize("of", [tasks.add, tasks.add_async], ids=["sync", "async"])
@pytest.mark.parametrize(
    "payload",
    [{"args": [1, 2, 3], "kwargs": {}}, {"args": [], "kwargs": {"c": 1}}, {"no": "call"}],
    ids=["too many", "unknown", "no call"],
)
def test_a_call_that_does_not_fit_the_task_is_not_tried(
    project: Project, of: Any, payload: dict[str, Any]
) -> None:
    job = project.queue.enqueue("default", payload, kind=of.module_path, max_attempts=5)
    project.work()
    found = project.queue.get(job.id)
    assert (found.state, found.attempts) == ("dead", 1)
    assert re.search("too many positional|unexpected keyword|missing", str(found.error))


def test_plain_functions_run_in_threads_and_coroutines_in_the_loop(project: Project) -> None:
    assert run(project, tasks.where).return_value.startswith("tenure-worker-")
    assert run(project, tasks.where_async).return_value == "MainThread"


def test_a_task_that_takes_the_context_is_given_it(project: Project) -> None:
    result = run(project, tasks.describe, "word")
    assert result.return_value == ["word", 1, result.id, "RUNNING", ["worker-1"]]
    assert result.args == ["word"]


def test_a_task_knows_its_job(project: Project) -> None:
    result = run(project, tasks.progress)
    assert result.return_value == 1
    assert project.queue.get(result.id).note == "halfway"


def test_a_higher_priority_runs_first(project: Project) -> None:
    order: list[int] = []
    results = {tasks.add.using(priority=n).enqueue(n).id: n for n in (-100, 0, 100, 7)}

    def note(task_result: Any, **_: Any) -> None:
        order.append(results[task_result.id])

    task_started.connect(note)
    project.work(concurrency=1)
    task_started.disconnect(note)
    assert order == [100, 7, 0, -100]


def test_a_worker_takes_the_queues_it_is_told_to(project: Project) -> None:
    other, mail = tasks.add.enqueue(1), tasks.send.enqueue("a@example.com")
    assert project.work(queues=["mail"]) == 1
    other.refresh()
    mail.refresh()
    assert (other.status, mail.return_value) == ("READY", "a@example.com")


# Attempts ---------------------------------------------------------------------------------------


def test_a_task_that_fails_is_tried_again(project: Project) -> None:
    with project.options(max_attempts=3, backoff=tenure.fixed(0)):
        with project.heard() as signals:
            result = run(project, tasks.fail_until, 3)
        assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 3)
        assert [error.exception_class for error in result.errors] == [tasks.Refused] * 2
        assert result.worker_ids == ["worker-1"] * 3
        assert result.enqueued_at <= result.started_at <= result.last_attempted_at
    assert signals == [
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("started", "RUNNING"),
        ("started", "RUNNING"),
        ("finished", "SUCCESSFUL"),
    ]


def test_until_its_attempts_are_used_up(project: Project) -> None:
    with project.options(max_attempts=2, backoff=tenure.fixed(0)), project.heard() as signals:
        result = run(project, tasks.fail)
        assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 2, 2)
    assert signals[-2:] == [("started", "RUNNING"), ("finished", "FAILED")]
    assert len(signals) == 4


@pytest.mark.parametrize(
    ("outcome", "status", "attempts", "error"),
    [
        ("snooze", "READY", 0, None),
        ("retry", "READY", 1, tenure.Retry),
        ("cancel", "FAILED", 1, tenure.Cancel),
        ("dead", "FAILED", 1, tenure.Dead),
    ],
)
def test_a_task_may_decide_what_becomes_of_it(
    project: Project, outcome: str, status: str, attempts: int, error: type | None
) -> None:
    with project.options(max_attempts=3), project.heard() as signals:
        result = run(project, tasks.ask_for, outcome)
        assert (result.status, result.attempts) == (status, attempts)
        assert [one.exception_class for one in result.errors] == ([error] if error else [])
    assert (("finished", "FAILED") in signals) is (status == "FAILED")


@pytest.mark.parametrize(
    "of", [tasks.wait_for_approval, tasks.wait_for_approval_in_a_thread], ids=["async", "sync"]
)
def test_a_task_that_is_suspended_has_not_failed_and_goes_on(project: Project, of: Any) -> None:
    with project.heard() as signals:
        result = run(project, of)
        assert (result.status, result.attempts, result.errors) == ("READY", 0, [])
        assert not any(what == "finished" for what, _ in signals)
        assert project.queue.signal(result.id, "approval", {"by": "ann"}) == 1
        project.work()
        result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)
    assert result.return_value == [1, {"by": "ann"}]
    assert signals[-1] == ("finished", "SUCCESSFUL")


def test_a_task_that_runs_for_too_long_has_failed(project: Project) -> None:
    with project.options(timeout=0.05), project.heard() as signals:
        result = run(project, tasks.wait_for_ever)
        assert result.status == "FAILED"
        assert result.errors[0].exception_class_path.endswith("Timeout")
        assert "timeout of 0.05 s" in result.errors[0].traceback
    assert signals[-1] == ("finished", "FAILED")


# Jobs that no task is for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("tests.django.tasks.undecorated", "is not a Django task"),
        ("os.getcwd", "is not a Django task"),
        ("tests.django.broken.add", "this module cannot be imported"),
    ],
)
def test_a_job_whose_task_cannot_be_found_fails_and_says_why(
    project: Project, kind: str, why: str
) -> None:
    payload: dict[str, Any] = {"args": [], "kwargs": {}}
    job = project.queue.enqueue("default", payload, kind=kind, max_attempts=1)
    good = tasks.add.enqueue(1)
    project.work()
    found = project.queue.get(job.id)
    assert found.state == "dead"
    assert why in str(found.error)
    good.refresh()
    assert good.status == "SUCCESSFUL"


@pytest.mark.parametrize(
    "kind",
    ["tests.django.nowhere.add", "tests.django.tasks.gone", "welcome"],
    ids=["no such module", "no such function", "a task of another app"],
)
def test_a_job_whose_task_does_not_exist_is_left_for_other_workers(
    project: Project, kind: str
) -> None:
    payload: dict[str, Any] = {"args": [], "kwargs": {}}
    job = project.queue.enqueue("default", payload, kind=kind, max_attempts=1)
    project.work()
    found = project.queue.get(job.id)
    assert (found.state, found.attempts) == ("pending", 0)
    assert found.error == f"no worker has a task named {kind!r} yet"


def test_a_payload_that_is_no_call_fails(project: Project) -> None:
    job = project.queue.enqueue("default", {}, kind="tests.django.tasks.add", max_attempts=1)
    project.work()
    assert "missing required field `args`" in str(project.queue.get(job.id).error)


# Signals and the database -----------------------------------------------------------------------


@pytest.mark.parametrize("of", [tasks.add, tasks.add_async], ids=["sync", "async"])
@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_a_receiver_that_raises_does_not_harm_the_task(
    project: Project, signal: Any, of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def receiver(**_: Any) -> None:
        raise RuntimeError("a bad receiver")

    signal.connect(receiver)
    result = run(project, of, 1)
    signal.disconnect(receiver)
    assert result.status == "SUCCESSFUL"
    assert "a bad receiver" in caplog.text


def test_djangos_own_log_says_what_happens(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    result = run(project, tasks.fail)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("django")]
    assert [line for line in said if result.id in line] == [
        f"Task id={result.id} path=tests.django.tasks.fail enqueued backend=default",
        f"Task id={result.id} path=tests.django.tasks.fail state=RUNNING",
        f"Task id={result.id} path=tests.django.tasks.fail state=FAILED",
    ]
    assert "ValueError: this cannot be" in caplog.text  # with its traceback


@pytest.mark.parametrize(
    "of", [tasks.count_orders, tasks.count_orders_async], ids=["sync", "async"]
)
def test_a_task_may_use_the_database(project: Project, database: Path, of: Any) -> None:
    with closing(sqlite3.connect(database)) as file:
        file.execute("CREATE TABLE orders (id)")
    assert run(project, of).return_value == 0


def test_a_connection_does_not_outlive_its_task(project: Project, database: Path) -> None:
    with closing(sqlite3.connect(database)) as file:
        file.execute("CREATE TABLE orders (id)")
    first, second = tasks.count_orders.enqueue(), tasks.connection_is_open.enqueue()
    assert project.work(concurrency=1) == 2
    first.refresh()
    second.refresh()
    assert (first.return_value, second.return_value) == (0, False)


@pytest.mark.parametrize("then", ["return", "fail"])
def test_neither_does_that_of_a_coroutine(project: Project, database: Path, then: str) -> None:
    tasks.used.clear()
    result = run(project, tasks.keep_connection, then)
    assert [connection.connection for connection in tasks.used] == [None]
    assert all("asgiref" not in error.traceback for error in result.errors)


def test_a_receiver_may_use_the_database(project: Project, database: Path) -> None:
    seen: list[bool] = []

    def receive(**_: Any) -> None:
        connections["default"].ensure_connection()
        seen.append(True)

    task_finished.connect(receive)
    run(project, tasks.add_async, 1)
    task_finished.disconnect(receive)
    assert seen == [True]


def test_a_receiver_may_be_a_coroutine(project: Project) -> None:
    seen: list[str] = []

    async def receive(task_result: Any, **_: Any) -> None:
        seen.append(task_result.task.name)

    task_started.connect(receive)
    for of in (tasks.add, tasks.add_async):
        run(project, of, 1)
    task_started.disconnect(receive)
    assert seen == ["add", "add_async"]


def test_a_task_that_was_interrupted_leaves_no_connection(project: Project, database: Path) -> None:
    with project.options(timeout=0.2):
        first, second = tasks.hang_in_a_transaction.enqueue(), tasks.is_in_transaction.enqueue()
        assert project.work(concurrency=1) == 2
        first.refresh()
        second.refresh()
        assert first.errors[0].exception_class is TaskTimeout
        assert second.return_value is False


def test_a_store_in_memory_serves_tests() -> None:
    memory = {
        "default": {"BACKEND": "tenure.django.TenureBackend", "OPTIONS": {"url": "memory://"}}
    }
    with override_settings(TASKS=memory):
        project = Project()
        assert run(project, tasks.add, 2).return_value == 2
    with override_settings(TASKS=memory):
        assert project.queue.jobs().jobs == []
