"""A schema of the shared server for each test, and handles on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
from tenure.engines.postgres.session import Db
from tests.support import audit_postgres, postgres


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[str]:
    """A schema for one test; what it holds must be valid at the end."""
    name = postgres.schema_of(tmp_path)
    yield name
    assert audit_postgres.audit(postgres.shared_url(), name) == []
    postgres.drop(tmp_path)


@pytest.fixture
def queue(schema: str, tmp_path: Path) -> Iterator[tenure.Queue]:
    with tenure.connect(postgres.url_of(tmp_path)) as queue:
        yield queue


@pytest.fixture
def engine(schema: str, tmp_path: Path) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres.url_of(tmp_path), tenure.Settings(), SystemClock())
    yield engine
    engine.close()


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are sent."""
    seen: list[str] = []
    send = Db.send

    def noted(db: Db, name: str, *params: Any) -> Any:
        seen.append(name)
        return send(db, name, *params)

    monkeypatch.setattr(Db, "send", noted)
    return seen
