"""Apps on a file of their own, and workers that are stopped whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure, Worker

PATIENCE = 30.0  # seconds until a test gives up waiting for something that must happen


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Tenure]:
    with Tenure(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@asynccontextmanager
async def running(app: Tenure, **options: Any) -> AsyncIterator[Worker]:
    """A worker of the app, until the block ends."""
    worker = app.worker(**options)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


def work_off(app: Tenure, **options: Any) -> Worker:
    """Run what is ready until nothing is."""
    worker = app.worker(burst=True, **options)
    asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))
    return worker
