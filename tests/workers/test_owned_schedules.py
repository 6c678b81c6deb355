"""Schedules that an app declares in its code belong to it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tenure import NewJob, Tenure
from tenure.testing import ManualClock
from tenure.worker.scheduler import Scheduler
from tests.workers.conftest import work_off


def shop(path: Path, *crons: str, name: str | None = "shop") -> Tenure:
    """A release of an app: these are its schedules."""
    app = Tenure(f"sqlite:///{path}/jobs.db", name=name, clock=ManualClock())
    app.task(name="other")(lambda: None)
    for cron in crons:
        app.cron("* * * * *", name=cron)(app.task(name=f"run-{cron}")(_nothing))
    return app


def _nothing() -> None: ...


def states(app: Tenure) -> dict[str, tuple[str, bool]]:
    return {one.name: (one.owner, one.disabled) for one in app.queue.schedules.list()}


def test_a_schedule_that_was_renamed_is_disabled_by_the_next_worker_of_the_app(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with shop(tmp_path, "nightly", "hourly") as app:
        work_off(app)
        assert states(app) == {"hourly": ("shop", False), "nightly": ("shop", False)}
    with shop(tmp_path, "each-night", "hourly") as app, caplog.at_level(logging.WARNING):
        work_off(app)
        assert states(app) == {
            "each-night": ("shop", False),
            "hourly": ("shop", False),
            "nightly": ("shop", True),
        }
        (told,) = [one for one in caplog.records if "disabled" in one.getMessage()]
        assert "schedule nightly is disabled: app shop no longer declares it" in told.getMessage()
        assert (vars(told)["schedule"], vars(told)["app"]) == ("nightly", "shop")
        caplog.clear()
        work_off(app)
        assert "disabled" not in caplog.text  # told once


def test_the_last_schedule_of_an_app_can_be_removed_and_put_back(tmp_path: Path) -> None:
    with shop(tmp_path, "nightly") as app:
        work_off(app)
    with shop(tmp_path) as app:
        work_off(app)
        assert states(app) == {"nightly": ("shop", True)}
    with shop(tmp_path, "nightly") as app:
        work_off(app)
        assert states(app) == {"nightly": ("shop", False)}


def test_the_schedules_of_others_stay(tmp_path: Path) -> None:
    with shop(tmp_path, "nightly") as app:
        app.queue.schedules.put("by-hand", "* * * * *", NewJob(queue="q"))
        work_off(app)
    with shop(tmp_path, "weekly", name="office") as app:
        work_off(app)
        assert states(app) == {
            "by-hand": ("", False),
            "nightly": ("shop", False),
            "weekly": ("office", False),
        }


def test_a_scheduler_skips_disabled_schedules(tmp_path: Path) -> None:
    with shop(tmp_path, "nightly") as app:
        work_off(app)
    clock = ManualClock()
    with Tenure(f"sqlite:///{tmp_path}/jobs.db", name="shop", clock=clock) as app:
        app.put_schedules()
        clock.advance(3600)
        assert Scheduler(app.queue, "s").fire_due() is None
        assert app.queue.jobs().jobs == []


def test_an_app_is_named_after_its_module_also_when_that_is_run_as_a_script(
    tmp_path: Path,
) -> None:
    assert Tenure("memory://").name == "tests.workers.test_owned_schedules"
    (tmp_path / "shop.py").write_text("import tenure\napp = tenure.Tenure()\nprint(app.name)\n")
    for command in (["shop.py"], ["-m", "shop"], ["-c", "import shop"]):
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert ran.stdout == "shop\n", command
