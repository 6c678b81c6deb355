"""manage.py tenure_worker."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test.utils import override_settings

from tests.django import tasks
from tests.django.project import Project


def test_a_burst_runs_what_is_ready_and_ends(project: Project) -> None:
    results = [tasks.add.enqueue(1), tasks.add_async.enqueue(2), tasks.send.enqueue("a")]
    call_command("tenure_worker", "--burst")
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [1, 2, "a"]


def test_it_ends_after_so_many(project: Project) -> None:
    for n in range(5):
        tasks.add.enqueue(n)
    call_command("tenure_worker", "--max-jobs", "3", "--concurrency", "2")
    assert project.queue.stats("default").done == 3


def test_it_keeps_to_the_queues_it_is_given(project: Project) -> None:
    tasks.add.enqueue(1)
    tasks.send.enqueue("a")
    call_command("tenure_worker", "--burst", "--queues", "mail")
    assert (project.queue.stats("mail").done, project.queue.stats("default").ready) == (1, 1)


def test_it_says_what_it_does(project: Project, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tasks.fail.enqueue()
    call_command("tenure_worker", "--burst")
    assert "works on default, mail (10 at once)" in caplog.text
    assert "tests.django.tasks.fail) is dead after attempt 1 of 1: this cannot be" in caplog.text
    assert "it handled 1 job" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--backend", "other"], "The connection 'other' doesn't exist"),
        (["--backend", "immediate"], "ImmediateBackend, not a tenure.django.TenureBackend"),
        (["--queues", "mail,post"], "'post' is not in QUEUES, which has default, mail"),
        (["--concurrency", "0"], "concurrency"),
        (["--max-jobs", "0"], "max_jobs"),
        (["--lease", "-1"], "lease"),
        (["--concurrency", "many"], "invalid int value"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    project: Project, backends: dict[str, Any], arguments: list[str], why: str
) -> None:
    framework = type(project.backend()).__mro__[1].__module__.split(".backends")[0]
    immediate = {"BACKEND": f"{framework}.backends.immediate.ImmediateBackend"}
    with (
        override_settings(TASKS={**backends, "immediate": immediate}),
        pytest.raises(CommandError) as refused,
    ):
        call_command("tenure_worker", "--burst", *arguments)
    assert why in str(refused.value)


def test_a_backend_of_any_queue_needs_to_be_told_which(
    project: Project, backends: dict[str, Any]
) -> None:
    with override_settings(TASKS={"default": {**backends["default"], "QUEUES": []}}):
        with pytest.raises(CommandError, match="name some with --queues"):
            call_command("tenure_worker", "--burst")
        tasks.add.using(queue_name="any").enqueue(1)
        call_command("tenure_worker", "--burst", "--queues", "any")
        assert project.queue.stats("any").done == 1


def test_a_store_that_cannot_be_opened_is_an_error_in_one_line(project: Project) -> None:
    with (
        project.options(url="sqlite:////nowhere/at/all/jobs.db"),
        pytest.raises(CommandError, match="the folder does not exist"),
    ):
        call_command("tenure_worker", "--burst")
