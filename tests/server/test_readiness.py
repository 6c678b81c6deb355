"""Whoever asks whether the store answers is told so, also while it does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure.model.queries import Found, Query
from tenure.queue import store_of
from tenure.server import readiness
from tests.server.conftest import Client, Serve
from tests.support.sizes import let


class Gate:
    """Where the reads of a store wait while it is away."""

    def __init__(self, queue: tenure.Queue) -> None:
        self.open = threading.Event()
        self.open.set()
        self.asked = 0
        self._engine = store_of(queue).engine
        self._read = self._engine.read

    def read(self, query: Query) -> Found:
        self.asked += 1
        assert self.open.wait(30)
        return self._read(query)


@pytest.fixture
def gate(queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(queue)
    monkeypatch.setattr(store_of(queue).engine, "read", gate.read)
    let(monkeypatch, seconds_until_a_store_is_not_ready=0.1)
    yield gate
    gate.open.set()


@pytest.fixture
def client(serve: Serve, gate: Gate) -> Client:
    return serve(["firecrawl"])


def test_a_store_that_does_not_answer_is_told_soon(client: Client, gate: Gate) -> None:
    assert client.ask("GET", "/readyz").status == 200
    gate.open.clear()
    began = time.monotonic()
    asked = client.ask("GET", "/readyz")
    assert (asked.status, asked.json) == (
        503,
        {"status": "the store is away: it has not answered for 0.1 s"},
    )
    assert client.get("/health") == {"status": "degraded", "fdbConnected": False}
    assert client.ask("GET", "/healthz").status == 200
    assert time.monotonic() - began < 10
    gate.open.set()
    assert client.ask("GET", "/readyz").status == 200
    assert client.get("/health") == {"status": "ok", "fdbConnected": True}


def test_many_who_ask_wait_for_one_answer(client: Client, gate: Gate) -> None:
    """Or those who ask would soon hold every thread there is."""
    gate.open.clear()
    for _ in range(20):
        assert client.ask("GET", "/readyz").status == 503
    assert gate.asked == 1


def test_what_the_store_says_is_passed_on(
    client: Client, queue: tenure.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(query: Query) -> Any:
        raise tenure.StoreError("the disk is on fire")

    monkeypatch.setattr(store_of(queue).engine, "read", refuse)
    asked = client.ask("GET", "/readyz")
    assert (asked.status, asked.json["status"]) == (503, "the store is away: the disk is on fire")


def test_a_check_that_ends_while_another_begins_is_no_failure() -> None:
    """Who asks in the moment that a check ends begins the next one, before the others look."""

    async def main() -> str | None:
        with tenure.connect("memory://") as queue:
            pulse = readiness.Pulse(queue)
            asked = asyncio.create_task(pulse.trouble())
            await asyncio.sleep(0)
            assert pulse._question is not None
            pulse._question.add_done_callback(
                lambda _: setattr(pulse, "_question", asyncio.create_task(pulse._ask()))
            )
            try:
                return await asked
            finally:
                await pulse._question

    assert asyncio.run(main()) is None
