"""The example with Django: its site, and its worker in another process."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tests.examples.programs import EXAMPLES, LONGEST, run, started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy, since the project keeps its jobs next to itself."""
    leave = shutil.ignore_patterns("*.db*", "__pycache__")
    return shutil.copytree(EXAMPLES / "django_project", tmp_path / "django_project", ignore=leave)


@pytest.fixture
def client(folder: Path) -> Iterator[httpx.Client]:
    serve = (
        "import os, django\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'\n"
        "import uvicorn\n"
        "from django.core.asgi import get_asgi_application\n"
        "uvicorn.run(get_asgi_application(), port=0, lifespan='off')"
    )
    with started("-c", serve, folder=folder) as server:
        url = server.wait_for(r"running on (http://[\d.:]+)")
        with httpx.Client(base_url=url, timeout=LONGEST) as client:
            yield client


def until(client: httpx.Client, id: str, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the site says of a task, once it is as it should be."""
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        task: dict[str, Any] = client.get(f"/tasks/{id}").raise_for_status().json()
        if good(task):
            return task
    raise AssertionError(task)


def test_a_view_enqueues_and_a_worker_of_another_process_runs(
    client: httpx.Client, folder: Path
) -> None:
    answer = client.post("/welcome/Ada")
    assert answer.status_code == 202
    mail, count = answer.json()["mail"], answer.json()["count"]
    waiting = {"task": "send_welcome", "status": "READY", "attempts": 0}
    assert client.get(f"/tasks/{mail}").json() == waiting
    assert client.get("/tasks/nobody").status_code == 404
    with started("manage.py", "tenure_worker", folder=folder) as worker:
        welcomed = until(client, mail, lambda task: task["status"] == "SUCCESSFUL")
        counted = until(client, count, lambda task: task["status"] == "SUCCESSFUL")
        assert worker.stop() == 0
    assert welcomed == {**waiting, "status": "SUCCESSFUL", "attempts": 1, "result": "Welcome, Ada!"}
    assert (counted["task"], counted["result"]) == ("count_visitors", 16)
    assert "works on default, mail (10 at once)" in worker.said
    assert "has stopped; it handled 2 jobs" in worker.said


SLOW = """
from pathlib import Path
import time
from shop.tasks import task

@task
def slow(folder):
    print("begun", flush=True)
    while not (Path(folder) / "told").exists():
        time.sleep(0.01)
    return "ended"
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_lets_its_tasks_end(folder: Path, by: signal.Signals) -> None:
    (folder / "shop" / "slow.py").write_text(SLOW)
    with tenure.connect(f"sqlite:///{folder / 'jobs.db'}") as queue:
        call = {"args": [str(folder)], "kwargs": {}}
        running = queue.enqueue("default", call, kind="shop.slow.slow")
        waiting = queue.enqueue("default", call, kind="shop.slow.slow")
        one_at_a_time = ["manage.py", "tenure_worker", "--concurrency", "1"]
        with started(*one_at_a_time, folder=folder) as worker:
            worker.wait_for("begun")
            worker.process.send_signal(by)
            worker.wait_for("stopping: waiting for 1 running job")
            (folder / "told").touch()
            assert worker.process.wait(LONGEST) == 0
        assert queue.get(running.id).result == "ended"
        assert (queue.get(waiting.id).state, queue.get(waiting.id).attempts) == ("pending", 0)


def test_the_project_has_no_faults_that_django_can_find(folder: Path) -> None:
    assert "no issues" in run("manage.py", "check", "--fail-level", "WARNING", folder=folder)


def test_the_worker_explains_itself(folder: Path) -> None:
    printed = run("manage.py", "tenure_worker", "--help", folder=folder)
    for option in ("--backend", "--queues", "--concurrency", "--burst", "--max-jobs", "--grace"):
        assert option in printed


def test_jobs_can_be_put_in_from_a_terminal(folder: Path) -> None:
    with tenure.connect(f"sqlite:///{folder / 'jobs.db'}") as queue:
        call = {"args": ["Ada"], "kwargs": {}}
        job = queue.enqueue("mail", call, kind="shop.tasks.send_welcome")
        run("manage.py", "tenure_worker", "--burst", folder=folder)
        assert queue.get(job.id).result == "Welcome, Ada!"
