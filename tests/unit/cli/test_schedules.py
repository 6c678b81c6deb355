"""Schedules and workers, from the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace

from tenure import NewJob, State
from tenure.model.ops import PutSchedule
from tenure.queue import store_of
from tests.unit.cli.terminal import Terminal


def test_there_may_be_no_schedules(cli: Terminal) -> None:
    assert cli.text("schedules") == "There are no schedules.\n"
    assert cli.json("schedules") == []


def test_a_schedule_is_put_listed_fired_and_dropped(cli: Terminal) -> None:
    put = ["schedules", "put", "nightly", "0 3 * * *", "reports", '{"all": true}']
    options = ["--tz", "Europe/Copenhagen", "--catch-up", "none", "--kind", "report"]
    assert cli.text(*put, *options).startswith("Schedule nightly fires in ")
    (listed,) = cli.json("schedules")
    assert (listed["name"], listed["cron"], listed["catch_up"]) == ("nightly", "0 3 * * *", "none")
    assert listed["job"]["payload"] == {"all": True}
    assert "nightly  0 3 * * *  Europe/Copenhagen" in cli.text("schedules")
    fired = cli.json("schedules", "fire", "nightly")
    with cli.open() as store:
        job = store.get(fired["id"])
        assert (job.queue, job.kind, job.payload) == ("reports", "report", {"all": True})
        assert store.schedules.list()[0].last_at is None
    assert cli.text("schedules", "drop", "nightly") == "Schedule nightly is deleted.\n"
    assert cli.json("schedules") == []


def test_a_schedule_is_paused_and_resumed(cli: Terminal) -> None:
    cli.text("schedules", "put", "nightly", "0 3 * * *", "reports")
    pause = ["schedules", "pause", "nightly", "--reason", "the warehouse is down"]
    assert cli.text(*pause) == "Schedule nightly is paused.\n"
    assert "paused" in cli.text("schedules")
    assert "pause_schedule  reports  nightly: 0 3 * * *        the warehouse" in cli.text("audit")
    assert cli.text("schedules", "resume", "nightly").startswith("Schedule nightly fires in ")
    assert not cli.json("schedules")[0]["disabled"]


def test_a_schedule_with_hidden_fields_is_not_replaced(cli: Terminal) -> None:
    cli.text("schedules", "put", "a", "0 3 * * *", "q", '{"password": "[redacted]"}')
    assert "use its dashboard" in cli.error("schedules", "pause", "a")
    assert not cli.json("schedules")[0]["disabled"]


@pytest.mark.parametrize("command", ["drop", "fire", "pause", "resume"])
def test_an_unknown_schedule_is_an_error(cli: Terminal, command: str) -> None:
    assert "no schedule 'x'" in cli.error("schedules", command, "x")


def test_a_wrong_expression_is_an_error_that_says_where(cli: Terminal) -> None:
    assert cli.error("schedules", "put", "x", "* * *", "q").startswith("cron: ")
    assert cli.error("schedules", "put", "x", "* * * * *", "q", "--tz", "X").startswith("tz: ")
    assert cli.json("schedules") == []


def test_a_schedule_that_is_late_is_seen(cli: Terminal) -> None:
    with cli.open() as store:
        store.schedules.put("a", "* * * * *", NewJob(queue="q"))
    cli.clock.advance(3600)
    assert "1h ago" in cli.text("schedules") or "59m ago" in cli.text("schedules")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(
        textwrap.dedent(
            """
            import tenure
            app = tenure.Tenure("sqlite:///jobs.db")
            other = 5

            @app.task
            def work(n: int) -> int:
                return n

            @app.cron("* * * * *")
            def tick() -> None: ...
            """
        )
    )
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    return tmp_path


def tenure(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_burst_of_work_says_how_much_it_was(cli: Terminal, folder: Path) -> None:
    with cli.open() as store:
        for n in range(3):
            store.enqueue("default", {"n": n}, kind="work")
    done = tenure(folder, "worker", "tasks:app", "--burst", "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert '"handled":3' in done.stdout
    with cli.open() as store:
        assert store.stats().done == 3
        assert [one.name for one in store.schedules.list()] == ["tick"]


def test_the_command_line_says_where_the_jobs_are(folder: Path) -> None:
    terminal = Terminal(folder)
    terminal.url = f"sqlite:///{folder}/other.db"
    with terminal.open() as store:
        job = store.enqueue("default", {"n": 1}, kind="work")
    tenure(folder, "--url", terminal.url, "worker", "tasks", "--burst")
    with terminal.open() as store:
        assert store.get(job.id).state is State.DONE


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("tasks:nothing", "tasks has no 'nothing'"),
        ("tasks:other", "is of type int, not a Tenure app"),
        (":app", "is not MODULE:APP"),
    ],
)
def test_an_app_that_is_not_there_is_a_clear_error(folder: Path, target: str, says: str) -> None:
    done = tenure(folder, "worker", target)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_module_lacks_is_told_as_python_tells_it(folder: Path) -> None:
    done = tenure(folder, "worker", "broken:app")
    assert done.returncode != 0
    assert "nothing_of_this_name" in done.stderr


def test_a_scheduler_puts_the_schedules_of_its_app_and_ends_when_told(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tenure", "scheduler", "tasks:app"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "fires 1 schedule" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_list_says_whose_a_schedule_is_and_whether_it_fires(cli: Terminal) -> None:
    with cli.open() as store:
        store.schedules.put("nightly", "0 3 * * *", NewJob(queue="q"), owner="shop")
        (one,) = store.schedules.list()
        store_of(store).do([PutSchedule(replace(one, disabled=True))])
        store.schedules.put("weekly", "0 3 * * 1", NewJob(queue="q"))
    head, nightly, weekly = cli.text("schedules").splitlines()[-3:]
    assert head.split()[-1] == "app"
    assert nightly.split()[-1] == "shop"
    assert "paused" in nightly
    assert weekly.split()[-1] == "q"
    assert cli.json("schedules")[0]["owner"] == "shop"


def test_a_worker_on_memory_is_refused(folder: Path) -> None:
    for command in ("worker", "scheduler"):
        done = tenure(folder, "--url", "memory://", command, "tasks:app")
        assert done.returncode == 1
        assert "memory:// exist only in the process that enqueues them" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_worker_says_which_store_it_uses_and_warns_if_other_commands_use_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_URL", raising=False)
    said = tenure(folder, "worker", "tasks:app", "--burst").stderr
    assert "works on default (10 at once) in sqlite:///jobs.db" in said
    assert "TENURE_URL" not in said
    monkeypatch.setenv("TENURE_URL", "postgresql://me:secret@host/other")
    said = tenure(folder, "worker", "tasks:app", "--burst").stderr
    assert "works on default (10 at once) in sqlite:///jobs.db" in said
    assert "uses sqlite:///jobs.db, but TENURE_URL is postgresql://me@host/other" in said
    assert "secret" not in said


def test_an_error_in_the_module_of_an_app_is_shown_without_the_import_system(folder: Path) -> None:
    (folder / "tasks.py").write_text("import helper\n")
    (folder / "helper.py").write_text("def f():\n    return undefined\nf()\n")
    done = tenure(folder, "worker", "tasks:app")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Error: tasks cannot be imported:"
    assert lines[-1] == "NameError: name 'undefined' is not defined"
    assert any("helper.py" in line for line in lines)
    assert len([line for line in lines if line.strip(" ~^")]) <= 10  # newer Pythons mark more
