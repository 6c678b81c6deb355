"""How many new queues a token may create."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import pytest

import tenure
from tenure import Busy, Queue
from tenure.features.live_workers.routes import LARGE_WORKERS
from tenure.model import ops, queries
from tenure.model.job import NULL, JobSpec
from tenure.queue import store_of
from tenure.server.auth import Scope
from tenure.server.new_names import NewNames
from tenure.testing import ManualClock
from tests.server.conftest import Serve, token
from tests.support.sizes import let


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock: ManualClock) -> Iterator[Queue]:
    with tenure.connect("memory://", clock=clock) as handle:
        yield handle


@pytest.fixture
def asked(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The queues that the store is asked about."""
    names: list[str | None] = []
    ado = store_of(queue).ado

    async def counted(wanted: queries.GetStats) -> object:
        names.append(wanted.queue)
        return await ado(wanted)

    monkeypatch.setattr(store_of(queue), "ado", counted)
    return names


def admit(names: NewNames, token: str, wanted: Iterable[str]) -> bool:
    try:
        asyncio.run(names.admit(token, wanted))
    except Busy:
        return False
    return True


def many(count: int, prefix: str = "q") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def test_a_token_may_use_so_many_new_names_per_minute(
    queue: Queue, clock: ManualClock, asked: list[str | None]
) -> None:
    names = NewNames(queue, per_minute=60)
    assert admit(names, "a", many(60))
    assert asked == []
    assert admit(names, "a", many(60))  # not new any more
    assert not admit(names, "a", ["another"])
    clock.advance(1)
    assert admit(names, "a", ["another"])
    assert not admit(names, "a", ["a third"])
    clock.advance(600)
    assert admit(names, "a", many(60, "r"))
    assert not admit(names, "a", ["a third"])


def test_a_call_with_too_many_new_names_is_rejected_and_so_is_the_next(
    queue: Queue, clock: ManualClock, asked: list[str | None]
) -> None:
    names = NewNames(queue, per_minute=60)
    assert not admit(names, "a", many(10_000))
    assert len(asked) == 61
    asked.clear()
    assert not admit(names, "a", many(10_000))
    assert len(asked) == 1
    clock.advance(60)
    assert admit(names, "a", many(60))


def test_tokens_do_not_share_their_room(queue: Queue) -> None:
    names = NewNames(queue, per_minute=2)
    assert not admit(names, "a", many(3))
    assert admit(names, "b", many(2))


def test_queues_that_exist_cost_nothing(queue: Queue, asked: list[str | None]) -> None:
    for name in many(10):
        queue.enqueue(name)
    names = NewNames(queue, per_minute=2)
    assert admit(names, "a", many(10))
    assert len(asked) == 10
    assert admit(names, "a", many(10))
    assert len(asked) == 10
    assert admit(names, "a", [*many(10), "new", "newer"])
    assert not admit(names, "a", ["newest"])


def test_what_is_remembered_is_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, queue_names_known=50)
    let(monkeypatch, tokens_with_new_names=5)
    names = NewNames(queue, per_minute=40)
    for n in range(20):
        assert admit(names, f"token {n}", many(40, f"{n}."))
        assert len(names._known) <= 50
        assert len(names._rooms) <= 5


def test_the_names_of_operations_are_those_of_the_queues_they_create() -> None:
    a, b = (JobSpec("1", name, NULL) for name in "ab")
    batch = [
        ops.Enqueue((a, b)),
        ops.Ack("1", 1, then=(a,)),
        ops.Once("k", (ops.Pause("c"), ops.Claim(("x",), "w", 1))),
        ops.SetLimit("d", concurrency=1),
        ops.Resume("x"),
    ]
    named = [name for op in ops.flat(batch) for name in op.new_queues]
    assert named == ["a", "b", "a", "c", "d"]


def test_a_service_limits_the_new_queues_of_a_token_but_not_of_an_admin(serve: Serve) -> None:
    client = serve(tokens=[token("web", Scope.PRODUCE), token("admin")])
    jobs = [{"queue": f"q{n}"} for n in range(1_001)]
    asked = client.as_("web").ask("POST", "/v1/jobs", jobs)
    assert asked.status == 429, asked
    assert "may create 1,000 queues per minute" in asked.json["detail"]
    assert client.as_("admin").ask("POST", "/v1/jobs", jobs).status == 201
    assert client.as_("web").ask("POST", "/v1/jobs", jobs).status == 201, "they exist now"


def test_a_token_reports_only_so_many_workers_at_once(
    serve: Serve, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, workers_listed=3)
    client = serve(tokens=[token("a", Scope.WORK), token("b", Scope.WORK)])
    a, b = client.as_("a"), client.as_("b")
    body = {"queues": ["q"], "ttl": 10}
    for n in range(3):
        a.put(f"/v1/workers/w{n}", body)
    refused = a.ask("PUT", "/v1/workers/w3", body)
    assert (refused.status, refused.json["code"]) == (429, "busy")
    a.put("/v1/workers/w0", body)
    b.put("/v1/workers/w3", body)
    clock.advance(11)
    a.put("/v1/workers/w3", body)


def test_a_worker_cannot_name_queues_by_the_thousand(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(tokens=[token("a", Scope.WORK)]).as_("a")
    client.service.means.names._per_minute = 5
    names = [f"q{n}" for n in range(9)]
    assert client.ask("PUT", "/v1/workers/w", {"queues": names}).status == 429


def test_the_reports_of_one_token_stay_small_together(serve: Serve, queue: Queue) -> None:
    client = serve(tokens=[token("w", Scope.WORK), token("r", Scope.READ)])
    body = {"queues": ["q"], "running": ["x" * 500] * 50}
    statuses = [client.as_("w").ask("PUT", f"/v1/workers/{n}", body).status for n in range(250)]
    assert set(statuses) == {200, 429}
    assert len(client.as_("r").ask("GET", "/v1/workers").content) < 1.1 * LARGE_WORKERS
    assert client.as_("w").ask("PUT", "/v1/workers/0", body).status == 200  # it was there before
    assert client.as_("w").ask("PUT", "/v1/workers/small", {"queues": ["q"]}).status == 200
