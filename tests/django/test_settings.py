"""TASKS in the settings: options that cannot be, and several backends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from django.test.utils import override_settings

import tenure
from tenure.django import TenureBackend
from tenure.django.framework import InvalidTaskBackend, task_backends
from tests.django import tasks
from tests.django.project import Project


def test_the_backend_says_what_it_can_do(project: Project) -> None:
    backend = project.backend()
    assert (backend.alias, backend.queues) == ("default", {"default", "mail"})
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert backend.check() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_attempts": 0}, "max_attempts: 0 must be a whole number"),
        ({"timeout": "30s"}, "timeout: must be seconds"),
        ({"backoff": 5}, "backoff: must be a policy such as tenure.exponential"),
        ({"retries": 5}, "'retries' is not an option; the options are url, database, max_attempts"),
        ({"url": Path("jobs.db")}, "url: must be a string, not PosixPath"),
        ({"url": "sqlite:///a.db", "database": "default"}, "'url' or 'database', not both"),
    ],
)
def test_options_that_cannot_be_are_refused_where_a_task_is_declared(
    options: dict[str, Any], why: str
) -> None:
    wrong = {"default": {"BACKEND": "tenure.django.TenureBackend", "OPTIONS": options}}
    with override_settings(TASKS=wrong), pytest.raises(InvalidTaskBackend) as refused:
        tasks.add.using(priority=1)
    assert why in str(refused.value)
    assert "TASKS['default']['OPTIONS']" in str(refused.value)


def test_a_url_that_cannot_be_is_refused_when_it_is_used() -> None:
    wrong = {"default": {"BACKEND": "tenure.django.TenureBackend", "OPTIONS": {"url": "redis://"}}}
    with override_settings(TASKS=wrong), pytest.raises(tenure.InvalidInput, match="redis"):
        tasks.add.enqueue(1)


def test_without_options_the_environment_says_where_the_jobs_are(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_URL", url)
    plain = {"default": {"BACKEND": "tenure.django.TenureBackend"}}
    with override_settings(TASKS=plain):
        result = tasks.add.enqueue(1)
        with tenure.connect(url) as queue:
            assert queue.get(result.id).max_attempts == 3


@pytest.fixture
def two(tmp_path: Path) -> dict[str, Any]:
    return {
        alias: {
            "BACKEND": "tenure.django.TenureBackend",
            "OPTIONS": {"url": f"sqlite:///{tmp_path / alias}.db", "max_attempts": attempts},
        }
        for alias, attempts in (("default", 1), ("other", 9))
    }


def test_backends_keep_to_their_own_stores(two: dict[str, Any]) -> None:
    with override_settings(TASKS=two):
        project = Project()
        one, other = tasks.add.enqueue(1), tasks.add.using(backend="other").enqueue(2)
        assert (one.backend, other.backend) == ("default", "other")
        assert project.backend("other").queue.get(other.id).max_attempts == 9
        assert project.work("other") == 1
        one.refresh()
        other.refresh()
        assert (one.status, other.return_value) == ("READY", 2)
        assert other == project.backend("other").get_result(other.id)


def test_backends_may_share_a_store(two: dict[str, Any]) -> None:
    two["other"]["OPTIONS"]["url"] = two["default"]["OPTIONS"]["url"]
    with override_settings(TASKS=two):
        project = Project()
        result = tasks.add.using(backend="other").enqueue(2)
        assert project.backend("default").get_result(result.id) == result
        assert project.work("default") == 1
        result.refresh()
        assert (result.return_value, result.backend) == (2, "other")


def test_threads_share_one_handle(project: Project) -> None:
    found: list[Any] = [task_backends["default"]]
    thread = threading.Thread(target=lambda: found.append(task_backends["default"]))
    thread.start()
    thread.join()
    here, there = found
    assert here is not there  # Django makes one for each thread
    assert here.queue is there.queue


def test_a_subclass_is_the_sender_of_its_signals(url: str) -> None:
    assert issubclass(Own, TenureBackend)
    own = {"default": {"BACKEND": f"{__name__}.Own", "OPTIONS": {"url": url}}}
    with override_settings(TASKS=own), Project().heard(Own) as signals:
        tasks.add.enqueue(1)
        Project().work()
    assert [name for name, _ in signals] == ["enqueued", "started", "finished"]


class Own(TenureBackend):
    """A backend of a user's own."""


def test_tenure_does_not_need_django() -> None:
    code = (
        "import sys; sys.modules.update(django=None, django_tasks=None);"
        "import tenure, tenure.cli; assert 'tenure.django' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
