"""The order in which requests begin, while there are more than the event loop can serve at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import tenure
from tenure import Queue
from tenure.server.auth import Tokens
from tenure.server.exchange import AsgiExchange
from tenure.server.problems import TooSlow
from tenure.server.routes import make_app
from tenure.server.turns import SLICE_SECONDS, Turns
from tenure.testing import ManualClock
from tests.server.conftest import Client, token
from tests.support.sizes import let

MANY = 60


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        yield queue


class Request(AsgiExchange):
    def __init__(self, left: bool) -> None:
        self._left = left

    @property
    def has_left(self) -> bool:
        return self._left


class Loop:
    """Requests of an event loop, each of which takes some time to begin."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now = 0.0
        self._turns = Turns(lambda: self._now)
        self.begun: list[str] = []
        self.iterations = 0

    async def request(self, who: str, *, left: bool = False) -> bool:
        if not self._turns.may_begin():
            try:
                await self._turns.turn(who, Request(left))
            except TooSlow:
                return False
        self._now += self._seconds
        self.begun.append(who)
        return True

    async def count(self) -> None:
        while True:
            self.iterations += 1
            await asyncio.sleep(0)


def test_requests_that_fit_into_a_slice_begin_at_once() -> None:
    async def act() -> None:
        loop = Loop(SLICE_SECONDS / 10)
        for _ in range(3):
            some = [asyncio.create_task(loop.request("a")) for _ in range(9)]
            await asyncio.sleep(0)
            assert all(one.done() for one in some)
            await asyncio.sleep(0)

    asyncio.run(act())


def test_who_comes_last_waits_for_one_request_of_each_other_token() -> None:
    async def act() -> list[str]:
        loop = Loop(SLICE_SECONDS * 2)
        some = [asyncio.create_task(loop.request(who)) for who in ["a"] * MANY + ["b"] * MANY]
        await asyncio.sleep(0)
        await asyncio.gather(*some, asyncio.create_task(loop.request("c")))
        return loop.begun

    assert asyncio.run(act()).index("c") <= 5


def test_as_many_begin_in_an_iteration_as_fit_into_a_slice() -> None:
    async def act(seconds: float) -> int:
        loop = Loop(seconds)
        counting = asyncio.create_task(loop.count())
        await asyncio.gather(*(loop.request("a") for _ in range(MANY)))
        counting.cancel()
        return loop.iterations

    assert asyncio.run(act(SLICE_SECONDS * 2)) >= MANY
    assert asyncio.run(act(SLICE_SECONDS / 10)) <= MANY / 3


def test_who_has_left_does_not_begin() -> None:
    async def act() -> None:
        loop = Loop(SLICE_SECONDS)
        waiting = [asyncio.create_task(loop.request("a", left=n > 0)) for n in range(5)]
        cancelled = asyncio.create_task(loop.request("a"))
        last = asyncio.create_task(loop.request("a"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert [await one for one in waiting] == [True] + [False] * 4
        assert await last
        assert loop.begun == ["a"] * 2

    asyncio.run(act())


def test_a_token_with_many_requests_lets_others_go_before_most_of_them(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_of_a_turn=0.0)
    service = make_app(queue, tokens=Tokens([token("greedy"), token("honest")]))

    async def act(client: Client) -> None:
        asked = [("greedy", n) for n in range(MANY)] + [("honest", MANY)]
        await asyncio.gather(
            *(
                client._ask("POST", "/v1/jobs", {"queue": who}, None, bearer(who))
                for who, _ in asked
            )
        )

    with asyncio.Runner() as runner:
        client = Client(service, runner)
        client.run(act(client))
        service.close()
    order = [job.queue for job in queue.jobs(limit=1000).jobs][::-1]  # the oldest first
    assert len(order) == MANY + 1
    assert order.index("honest") <= 5


def bearer(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {who}"}
