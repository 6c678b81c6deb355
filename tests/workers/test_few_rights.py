"""Workers whose token may work, but may not store or read schedules."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import tenure
from tenure import Forbidden, Queue, Settings
from tenure.queue.schedule_calls import ScheduleCalls
from tenure.server.auth import Scope, Tokens
from tenure.testing import ManualClock
from tenure.worker.scheduler import Scheduler
from tests.server.conftest import token

PATIENCE = 30.0


def refused(*args: Any, **options: Any) -> Any:
    raise Forbidden("this token may not read schedules")


@pytest.fixture
def queue() -> Queue:
    return tenure.connect("memory://", settings=Settings(), clock=ManualClock())


def test_a_scheduler_that_may_not_read_the_schedules_says_so_once_and_ends(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ScheduleCalls, "timetable", refused)
    scheduler = Scheduler(queue, "w")
    with caplog.at_level(logging.INFO):
        scheduler.start()
        scheduler._thread.join(PATIENCE)
    assert not scheduler._thread.is_alive()
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "are left to the service" in record.getMessage()


def test_a_worker_that_may_not_store_the_schedules_of_its_app_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = tenure.Tenure("memory://")

    @app.cron("0 3 * * *")
    def nightly() -> None: ...

    monkeypatch.setattr(ScheduleCalls, "put", refused)
    worker = app.worker()
    assert worker.before_start is not None
    worker.before_start()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "are not stored" in record.getMessage()
    with pytest.raises(Forbidden):
        app.put_schedules()


def test_a_header_without_bearer_says_what_it_must_be() -> None:
    tokens = Tokens([token("secret", Scope.READ)])
    for header, says in (
        ("secret", "must be Authorization: Bearer"),
        ("Bearer wrong", "is not known"),
        (None, "TENURE_TOKEN"),
    ):
        with pytest.raises(tenure.Unauthorized, match=says):
            tokens.who(header)
