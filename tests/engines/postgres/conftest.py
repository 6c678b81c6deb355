"""A schema of the shared server for each test, and handles on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.clock import SystemClock
from tenure.engines.postgres.engine import PostgresEngine
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
