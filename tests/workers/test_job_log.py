"""The log of a worker: an error for a dead job, a warning for a retry, information for the rest."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import Tenure
from tenure.observe.logs import JsonFormatter, TextFormatter
from tests.workers.conftest import work_off

in_processes = Tenure("memory://")  # the test moves it to its own file


@in_processes.task(process=True, max_attempts=1)
def breaks() -> None:
    raise ValueError("in a process")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "tenure.worker"):
        yield caplog


def about_jobs(logged: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in logged.records if hasattr(one, "job")]


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line, as the JSON log has them."""
    found: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return found


def test_a_job_that_dies_is_an_error_with_its_traceback(
    app: Tenure, logged: pytest.LogCaptureFixture
) -> None:
    @app.task(max_attempts=1, queue="q", tenant="acme")
    def breaks() -> None:
        raise ValueError("no such user")

    handle = breaks.enqueue()
    work_off(app)
    (told,) = about_jobs(logged)
    assert told.levelno == logging.ERROR
    assert told.getMessage() == (
        f"job {handle.id} (breaks) is dead after attempt 1 of 1: no such user"
    )
    assert told.exc_info is not None
    assert isinstance(told.exc_info[1], ValueError)
    line = fields(told)
    assert (line["job"], line["queue"], line["kind"]) == (handle.id, "q", "breaks")
    assert (line["tenant"], line["attempt"], line["state"]) == ("acme", 1, "dead")
    assert line["error"] == "ValueError"
    assert line["ms"] > 0
    assert 'raise ValueError("no such user")' in line["traceback"]
    assert 'raise ValueError("no such user")' in TextFormatter().format(told)


def test_a_retry_is_a_warning_without_a_traceback(
    app: Tenure, logged: pytest.LogCaptureFixture
) -> None:
    @app.task(max_attempts=2, backoff=tenure.fixed(60))
    async def breaks() -> None:
        raise ValueError("not yet")

    handle = breaks.enqueue()
    work_off(app)
    (told,) = about_jobs(logged)
    assert (told.levelno, told.exc_info) == (logging.WARNING, None)
    assert told.getMessage().startswith(
        f"job {handle.id} (breaks) failed in attempt 1 of 2, and is"
    )
    assert told.getMessage().endswith(" s: not yet")
    assert fields(told)["state"] == "pending"
    assert 0 < fields(told)["retry_in_ms"] <= 90_000


def test_success_is_information_with_its_time(
    app: Tenure, logged: pytest.LogCaptureFixture
) -> None:
    handle = app.task(name="works")(lambda: None).enqueue()
    work_off(app)
    (told,) = about_jobs(logged)
    assert told.levelno == logging.INFO
    assert told.getMessage().startswith(f"job {handle.id} (works) is done after ")
    assert (fields(told)["state"], fields(told)["kind"]) == ("done", "works")
    assert fields(told)["ms"] > 0


def test_a_job_that_is_snoozed_or_cancelled_is_information(
    app: Tenure, logged: pytest.LogCaptureFixture
) -> None:
    app.task(name="snoozes")(lambda: tenure.Snooze(60)).enqueue()
    app.task(name="cancels")(lambda: tenure.Cancel("not needed")).enqueue()
    work_off(app, concurrency=1)
    assert {one.levelno for one in about_jobs(logged)} == {logging.INFO}
    assert [fields(one)["state"] for one in about_jobs(logged)] == ["pending", "cancelled"]


def test_a_job_that_dies_in_a_process_is_told_with_its_traceback_there(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    in_processes.move_to(f"sqlite:///{tmp_path}/jobs.db")
    with in_processes:
        breaks.enqueue()
        work_off(in_processes)
    (told,) = about_jobs(logged)
    assert told.levelno == logging.ERROR
    assert 'raise ValueError("in a process")' in fields(told)["traceback"]


def test_nothing_is_told_of_successes_above_the_level(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(name="works")(lambda: None).enqueue()
    with caplog.at_level(logging.WARNING, "tenure.worker"):
        work_off(app)
    assert about_jobs(caplog) == []
