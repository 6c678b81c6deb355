"""A token that is bound: everything is decided in the store, where nothing comes in between."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
import pytest

import tenure
from tenure import Forbidden, Queue, Settings, features
from tenure.model import ops
from tenure.queue import Wanted, store_of
from tenure.queue.open_store import OpenStore
from tenure.server.auth import Scope
from tenure.server.waiting import Room
from tenure.testing import ManualClock
from tests.server.conftest import Serve, token
from tests.server.examples import OPS, Example, fill, request_of
from tests.support.tokens import store_for

MINE = token("mine", *Scope, tenants=("ours",))


class Watched(OpenStore):
    """Records the calls to the store."""

    calls: list[Wanted]

    def do(self, wanted: Wanted) -> Any:
        self.calls.append(wanted)
        return super().do(wanted)

    async def ado(self, wanted: Wanted) -> Any:
        self.calls.append(wanted)
        return await super().ado(wanted)


@pytest.fixture
def watched() -> Queue:
    queue = tenure.connect("memory://", settings=Settings(), clock=ManualClock())
    fill(queue, "ours", "tenant")
    fill(queue, "theirs", "tenant")
    store = store_of(queue)
    store.__class__ = Watched
    assert isinstance(store, Watched)
    store.calls = []
    return queue


@pytest.mark.parametrize("n", range(len(OPS)))
def test_an_operation_is_one_call_to_the_store(watched: Queue, n: int) -> None:
    """It was one for each job that it names, and then one that changed them all."""
    request = request_of(watched, "POST", Example("/v1/ops", OPS[n]), "ours", "tenant")
    assert request.content is not None
    kind = next(kind for kind in get_args(features.AnyOp) if kind.__name__ == OPS[n]["op"])
    op = msgspec.json.decode(request.content, type=kind)

    store = store_of(watched)
    assert isinstance(store, Watched)
    store.calls.clear()

    async def main() -> None:
        await store_for(watched, MINE).ado([op])

    try:
        asyncio.run(main())
    except Forbidden:
        assert store.calls == []
    else:
        # How many schedules a bound token has is read first.
        assert len(store.calls) == (2 if kind is ops.PutSchedule else 1)


def test_a_rejected_request_does_not_make_the_claims_of_others_smaller(serve: Serve) -> None:
    client = serve(tokens=[token("reader", Scope.READ, tenants=("a",)), token("worker")])
    worker = client.as_("worker")
    worker.post("/v1/jobs", [{"queue": "mail", "payload": n} for n in range(20)])
    large = {"id": "a/1", "queue": "mail", "tenant": "a", "payload": "x" * 900_000}
    enqueue = {"op": "Enqueue", "jobs": [large]}
    assert client.as_("reader").ask("POST", "/v1/ops", {"ops": [enqueue]}).status == 403
    claim = {"op": "Claim", "queues": ["mail"], "worker": "w", "lease_ms": 60_000, "limit": 20}
    answer = worker.post("/v1/ops", {"ops": [claim], "key": "k"})["answers"][0]
    assert len(answer["jobs"]) == 20


def test_an_operation_on_hidden_jobs_tells_readers_of_events_nothing(
    serve: Serve, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not make the service look each of them up."""
    mine = token("a", *Scope, tenants=("a",))
    client = serve(tokens=[mine])
    queue.enqueue("q", id="theirs", tenant="b")
    queue.cancel("theirs")
    feed = client.service.feed
    looked: list[str] = []
    monkeypatch.setattr(feed, "_get", looked.append)

    async def events() -> list[Any]:
        op = ops.Cancel(("theirs", "theirs-too"))
        (answer,) = await store_of(client.service.queue_for(mine)).ado([op])
        return [*await feed._of_many(op, answer)]

    assert client.run(events()) == []
    assert looked == []


def test_polls_for_different_claims_wait_in_different_lines(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of one must not be taken for the names of the other."""
    keys: list[Any] = []
    line = Room.line

    def noted(room: Room, key: Any, queues: Any) -> Any:
        keys.append(key)
        return line(room, key, queues)

    monkeypatch.setattr(Room, "line", noted)
    client = serve()
    one = {"queues": ["a"], "tenant": "b", "not_groups": ["c"]}
    for body in (one, {"queues": ["a", "b"], "tenant": "c"}):
        client.post("/v1/claim", {**body, "wait": 0.01, "worker": "w"})
    assert len(set(keys)) == 2
