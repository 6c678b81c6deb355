"""The slots of Tenure itself cannot be taken over HTTP: upkeep would stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import tenure
from tenure import InvalidInput, Queue
from tenure.model import ops
from tenure.queue import store_of
from tenure.testing import ManualClock
from tenure.worker.scheduler import SLOT, Janitor
from tests.server import host
from tests.server.conftest import Client

RESERVED = ["tenure", "tenure/x", "tenure.copy"]


@pytest.fixture
def remote(tmp_path: Path, clock: ManualClock) -> Iterator[Queue]:
    with tenure.connect(host.serve(tmp_path, clock), clock=clock) as queue:
        yield queue
    host.close(tmp_path)


@pytest.mark.parametrize("scope", RESERVED)
def test_the_routes_of_slots_reject_a_reserved_scope(
    client: Client, queue: Queue, scope: str
) -> None:
    queue.slots.take(scope, "key", "tenure", 60)
    path = f"/v1/slots/{quote(scope, safe='')}/key"
    assert client.ask("PUT", f"{path}/h", {"ttl": 60}).status == 400
    assert client.ask("DELETE", f"{path}/tenure").status == 400
    assert [slot.holder for slot in queue.slots.list(scope, "key")] == ["tenure"]


@pytest.mark.parametrize("scope", RESERVED)
def test_operations_of_clients_reject_a_reserved_scope(remote: Queue, scope: str) -> None:
    for op in (
        ops.TakeSlot(scope, "key", "h", 60_000),
        ops.DropSlot(scope, "key", "h"),
        ops.ReconcileSlots(scope, "key"),
    ):
        (answer,) = store_of(remote).do([op])
        assert isinstance(answer, InvalidInput)
        assert "reserved" in answer.message
    assert remote.slots.list(scope, "key") == []
    assert remote.slots.take(f"my {scope}", "key", "h", 60).held


def test_a_worker_behind_a_service_leaves_upkeep_to_the_service(
    remote: Queue, clock: ManualClock
) -> None:
    janitor = Janitor(remote, "worker")
    for _ in range(3):
        assert janitor.step() == 0
        assert remote.slots.list(*SLOT) == []
        clock.advance(60)
    janitor.release_slot()
