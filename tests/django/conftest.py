"""A Django project in this process: configured once, with a store of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings

if not settings.configured:
    settings.configure(
        USE_TZ=True,
        TIME_ZONE="Europe/Copenhagen",
        INSTALLED_APPS=["tenure.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={"default": {"BACKEND": "tenure.django.TenureBackend", "QUEUES": []}},
        LOGGING_CONFIG=None,
    )
    django.setup()

from django.db import connections
from django.test.utils import override_settings

from tests.django.project import Project


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def backends(url: str) -> dict[str, Any]:
    """TASKS of the test; a module or a test may say otherwise."""
    options = {"url": url, "max_attempts": 1}
    return {
        "default": {
            "BACKEND": "tenure.django.TenureBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": options,
        }
    }


@pytest.fixture
def project(backends: dict[str, Any]) -> Iterator[Project]:
    with override_settings(TASKS=backends):
        yield Project()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file for the database of Django's."""
    path = tmp_path / "shop.db"
    connections.close_all()
    monkeypatch.setitem(connections.settings["default"], "NAME", str(path))
    yield path
    connections.close_all()
