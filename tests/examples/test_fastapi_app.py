"""The example with FastAPI, served by uvicorn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tests.examples.programs import EXAMPLES, LONGEST, Program, started


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Program]:
    arguments = ["-m", "uvicorn", "fastapi_app:app", "--app-dir", str(EXAMPLES), "--port", "0"]
    with started(*arguments, folder=tmp_path) as program:
        yield program


@pytest.fixture
def client(server: Program) -> Iterator[httpx.Client]:
    url = server.wait_for(r"running on (http://[\d.:]+)")
    with httpx.Client(base_url=url, timeout=LONGEST) as client:
        yield client


def final(client: httpx.Client, id: str) -> dict[str, Any]:
    """The job, once it has ended."""
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        job: dict[str, Any] = client.get(f"/jobs/{id}").raise_for_status().json()
        if job["state"] not in ("pending", "leased"):
            return job
    raise AssertionError("it has not ended")


def test_a_report_is_ordered_and_made_in_the_background(client: httpx.Client) -> None:
    ordered = client.post("/reports", params={"customer": "acme"})
    assert ordered.status_code == 202
    job = final(client, ordered.json()["id"])
    assert (job["state"], job["error"]) == ("done", None)
    assert job["result"] == {"customer": "acme", "rows": 100}
    assert job["progress"] == 100
    assert "of 5" in job["note"]


def test_an_unknown_job_is_not_found(client: httpx.Client) -> None:
    assert client.get("/jobs/nobody").status_code == 404
    assert client.post("/reports").status_code == 422


def test_a_server_that_is_stopped_leaves_no_job_in_its_hands(
    client: httpx.Client, server: Program, tmp_path: Path
) -> None:
    for _ in range(30):
        client.post("/reports", params={"customer": "acme"}).raise_for_status()
    server.stop()
    with tenure.connect(f"sqlite:///{tmp_path / 'fastapi_app.db'}") as queue:
        stats = queue.stats("default")
    assert stats.leased == stats.dead == 0
    assert stats.done + stats.ready + stats.delayed == 30
