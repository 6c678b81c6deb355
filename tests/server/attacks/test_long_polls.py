"""Very many clients that wait: each change must cost about the same as with one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

import tenure
from tenure import NewJob, Queue
from tenure.model import ops
from tenure.model.queries import Found, Query
from tenure.queue import store_of
from tenure.server.auth import Tokens
from tenure.server.routes import make_app
from tenure.testing import ManualClock
from tests.server.conftest import Asked, Client, token


class Counted:
    """What an engine was asked to do."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[str] = Counter()
        engine = store_of(queue).engine
        apply, read = engine.apply, engine.read

        def counting_apply(batch: Any) -> list[ops.Answer]:
            self.done.update(type(op).__name__ for op in batch)
            return apply(batch)

        def counting_read(query: Query) -> Found:
            self.done[type(query).__name__] += 1
            return read(query)

        monkeypatch.setattr(engine, "apply", counting_apply)
        monkeypatch.setattr(engine, "read", counting_read)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        yield queue


@pytest.fixture
def counted(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return Counted(queue, monkeypatch).done


@pytest.fixture
def client(queue: Queue) -> Iterator[Client]:
    service = make_app(queue, tokens=Tokens([token("greedy"), token("honest")]))
    with asyncio.Runner() as runner:
        yield Client(service, runner)
        service.close()


def poll(client: Client, queue: str, who: str = "greedy") -> Coroutine[Any, Any, Asked]:
    body = {"queues": [queue], "wait": 60}
    return client._ask("POST", "/v1/claim", body, None, {"authorization": f"Bearer {who}"})


async def waiting(polls: list[Coroutine[Any, Any, Asked]], rooms: Any) -> list[asyncio.Task[Asked]]:
    """Start requests, and return when all of them wait."""
    tasks = [asyncio.create_task(one) for one in polls]
    want = len(tasks)
    async with asyncio.timeout(30):
        while (
            sum(len(line._waiters) for room in rooms.values() for line in room._lines.values())
            < want
        ):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # until the first of each line has looked
    return tasks


def test_a_new_job_wakes_few_of_many_who_wait_for_it(
    client: Client, queue: Queue, counted: Counter[str]
) -> None:
    async def act() -> None:
        rooms = client.service.rooms._rooms
        tasks = await waiting([poll(client, "q") for _ in range(200)], rooms)
        assert counted["Claim"] <= 4, "the first has looked, so the others need not"
        counted.clear()
        await queue.aenqueue("other")
        await asyncio.sleep(0.05)
        assert counted["Claim"] == 0, "it concerns nobody"
        await queue.aenqueue("q", id="a")
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert [one.result().json["jobs"][0]["id"] for one in done] == ["a"]
        await asyncio.sleep(0.05)
        assert counted["Claim"] <= 4
        client.service.finish()
        await asyncio.gather(*tasks)

    client.run(act())


def test_everybody_who_waits_gets_one_of_as_many_jobs(client: Client, queue: Queue) -> None:
    async def act() -> None:
        tasks = await waiting([poll(client, "q") for _ in range(60)], client.service.rooms._rooms)
        await queue.aenqueue_many([NewJob(queue="q") for _ in range(60)])
        async with asyncio.timeout(30):
            found = [(await one).json["jobs"] for one in tasks]
        assert len({job["id"] for jobs in found for job in jobs}) == 60
        assert not any(room._lines for room in client.service.rooms._rooms.values())

    client.run(act())


def test_who_waits_next_goes_on_when_the_first_leaves(client: Client, queue: Queue) -> None:
    async def act() -> None:
        rooms = client.service.rooms._rooms
        (first,) = await waiting([poll(client, "q")], rooms)
        short = {"queues": ["q"], "wait": 0.3}
        headers = {"authorization": "Bearer greedy"}
        second = asyncio.create_task(client._ask("POST", "/v1/claim", short, None, headers))
        third = poll(client, "q")
        tasks = [second, asyncio.create_task(third)]
        assert (await second).json["jobs"] == []
        first.cancel()
        await asyncio.sleep(0.05)
        await queue.aenqueue("q", id="a")
        async with asyncio.timeout(30):
            assert (await tasks[1]).json["jobs"][0]["id"] == "a"

    client.run(act())


def test_those_who_wait_for_many_jobs_to_end_look_less_often(
    client: Client, queue: Queue, counted: Counter[str]
) -> None:
    ids = [f"late-{n}" for n in range(200)]
    queue.enqueue_many([NewJob(queue="late", id=id, delay=3600) for id in ids])
    queue.enqueue_many([NewJob(queue="q") for _ in range(40)])
    queue.enqueue("h", id="honest")
    greedy, honest = {"authorization": "Bearer greedy"}, {"authorization": "Bearer honest"}

    async def act() -> None:
        rooms = client.service.rooms._rooms
        path = "/v1/jobs/{}/wait?timeout=60"
        polls = [client._ask("GET", path.format(id), None, None, greedy) for id in ids]
        polls.append(client._ask("GET", path.format("honest"), None, None, honest))
        tasks = await waiting(polls, rooms)
        counted.clear()
        for _ in range(40):
            (job,) = await queue.aclaim("q")
            await queue.aack(job)
            await asyncio.sleep(0.005)
        assert counted["GetJob"] < 1000, "instead of 8,000"
        (job,) = await queue.aclaim("h")
        await queue.aack(job)
        async with asyncio.timeout(0.5):
            assert (await tasks[-1]).json["state"] == "done"
        client.service.finish()
        await asyncio.gather(*tasks)

    client.run(act())
