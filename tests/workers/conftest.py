"""Apps on a file of their own, and runners that are stopped whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure import Runner, Tenure

PATIENCE = 30.0  # seconds until a test gives up waiting for something that must happen


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Tenure]:
    with Tenure(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@asynccontextmanager
async def running(app: Tenure, **options: Any) -> AsyncIterator[Runner]:
    """A runner of the app, until the block ends."""
    runner = app.runner(**options)
    await runner.start()
    try:
        yield runner
    finally:
        await runner.stop()


def work_off(app: Tenure, **options: Any) -> Runner:
    """Run what is ready until nothing is."""
    runner = app.runner(burst=True, **options)
    asyncio.run(asyncio.wait_for(runner.run(), PATIENCE))
    return runner
