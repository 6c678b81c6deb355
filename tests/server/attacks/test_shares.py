"""Clients of one token that want everything: queries, memory, leases."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

import tenure
from tenure import NewJob, Queue
from tenure.model import queries
from tenure.model.queries import Found, ListJobs, Query
from tenure.server import bounds, readers
from tenure.server.auth import Scope, Tokens, hash_of
from tenure.server.pace import Pace
from tenure.server.routes import make_app
from tenure.server.service import Service
from tenure.testing import ManualClock
from tests.server.conftest import Asked, Client, token
from tests.server.wire import Dial, Heard, Watched, hosted, request

KB = 1_024
TOKENS = [token("greedy"), token("honest"), token("worker", Scope.WORK)]


class SlowKind:
    """An engine's reads, which do not end if they ask for jobs of the kind `slow`."""

    def __init__(self, queue: Queue) -> None:
        self._read = queue._engine.read
        self.go_on = threading.Event()
        self.running = 0

    def read(self, query: Query) -> Found:
        if isinstance(query, ListJobs) and query.filter.kind == "slow":
            self.running += 1
            assert self.go_on.wait(30)
        return self._read(query)


@pytest.fixture
def queue() -> Iterator[Queue]:
    with tenure.connect("memory://", clock=ManualClock()) as queue:
        yield queue


@pytest.fixture
def slow(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowKind]:
    slow = SlowKind(queue)
    monkeypatch.setattr(queue._engine, "read", slow.read)
    yield slow
    slow.go_on.set()


@pytest.fixture
def client(queue: Queue) -> Iterator[Client]:
    service = make_app(queue, tokens=Tokens(TOKENS))
    with asyncio.Runner() as runner:
        yield Client(service, runner)
        service.close()


def greedily(client: Client, times: int) -> list[asyncio.Task[Asked]]:
    """Start requests whose queries do not end."""

    async def start() -> list[asyncio.Task[Asked]]:
        asking = [
            client._ask("GET", "/v1/jobs?kind=slow", None, None, {"authorization": "Bearer greedy"})
            for _ in range(times)
        ]
        tasks = [asyncio.create_task(one) for one in asking]
        for _ in range(50):
            await asyncio.sleep(0)
        return tasks

    return client.run(start())


# Queries ------------------------------------------------------------------------------------------


def test_the_queries_of_one_token_leave_threads_for_others(
    client: Client, queue: Queue, slow: SlowKind
) -> None:
    queue.enqueue("q", id="a")
    tasks = greedily(client, 50)
    honest = client.as_("honest")
    for _ in range(5):
        assert honest.get("/v1/jobs/a")["id"] == "a"
        assert client.get("/readyz") == {"status": "ok"}
        assert client.get("/healthz") == {"status": "ok"}
    assert 0 < slow.running <= readers.SLOTS // 2
    slow.go_on.set()

    async def all_of_them() -> list[Asked]:
        return await asyncio.gather(*tasks)

    assert {asked.status for asked in client.run(all_of_them())} == {200}
    assert slow.running == 50


def test_a_query_that_takes_too_long_is_given_up_and_keeps_its_thread(
    client: Client, slow: SlowKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.service._readers, "_seconds", 0.2)
    greedy = client.as_("greedy")
    for _ in range(readers.SLOTS // 2):
        asked = greedy.ask("GET", "/v1/jobs?kind=slow")
        assert (asked.status, asked.json["code"]) == (504, "query_too_slow")
        assert asked.headers["retry-after"] == "2"
    asked = greedy.ask("GET", "/v1/jobs")
    assert (asked.status, asked.json["code"]) == (429, "busy")
    assert client.as_("honest").ask("GET", "/v1/jobs").status == 200
    slow.go_on.set()
    assert greedy.ask("GET", "/v1/jobs").status == 200


def test_tokens_take_turns_at_the_threads(queue: Queue, slow: SlowKind) -> None:
    """With one thread, whoever asks after ten queries of another need not wait for all of them."""
    order: list[str] = []

    async def main() -> None:
        pool = readers.Readers(queue, shared=True, slots=1)

        async def ask(who: str) -> None:
            await pool.read(who, ListJobs())
            order.append(who)

        tasks = [asyncio.create_task(ask("a")) for _ in range(10)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(ask("b")))
        await asyncio.gather(*tasks)
        pool.close()

    asyncio.run(main())
    assert order.index("b") <= 2


def test_who_leaves_while_waiting_for_a_thread_takes_none(queue: Queue, slow: SlowKind) -> None:
    async def main() -> None:
        pool = readers.Readers(queue, shared=True, slots=2)
        slow_one = ListJobs(queries.Filter(kind="slow"))
        first = asyncio.create_task(pool.read("a", slow_one))
        gone = [asyncio.create_task(pool.read("a", ListJobs())) for _ in range(3)]
        await asyncio.sleep(0)
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        slow.go_on.set()
        await first
        await pool.read("a", ListJobs())
        assert not pool._waiting
        pool.close()

    asyncio.run(main())


# Claims -------------------------------------------------------------------------------------------


@pytest.fixture
def large(queue: Queue) -> int:
    """The number of large jobs in a queue, which another process has enqueued."""
    queue.enqueue_many([NewJob(queue="q", payload="x" * 500 * KB) for _ in range(150)])
    return 150


def test_a_claim_leases_only_what_it_returns(client: Client, queue: Queue, large: int) -> None:
    worker = client.as_("worker")
    total, most = 0, bounds.UNKNOWN_CLAIM
    while found := worker.post("/v1/claim", {"queues": ["q"], "limit": 1000})["jobs"]:
        total += len(found)
        assert len(found) <= most
        most = bounds.CLAIM_BYTES // (500 * KB) + 1  # the sizes are known from then on
        assert queue.stats("q").leased == total
    assert total == large


def test_a_claim_in_a_batch_leases_only_what_it_returns(
    client: Client, queue: Queue, large: int
) -> None:
    claim = {"op": "Claim", "queues": ["q"], "worker": "w", "lease_ms": 60_000, "limit": 1000}
    for n, body in enumerate(
        [{"ops": [claim, claim]}, {"ops": [claim, claim], "key": "k"}, {"ops": [claim] * 3}]
    ):
        before = queue.stats("q").leased
        answers = client.as_("worker").post("/v1/ops", body)["answers"]
        found = [job for one in answers for job in one["jobs"]]
        most = 70 if n == 0 else 12  # the sizes are known from then on
        assert 0 < len(found) <= most
        assert queue.stats("q").leased == before + len(found)


def test_small_jobs_are_claimed_in_one_response(client: Client, queue: Queue) -> None:
    queue.enqueue_many([NewJob(queue="q", payload=n) for n in range(1000)])
    body = {"queues": ["q"], "limit": 1000}
    assert len(client.as_("worker").post("/v1/claim", body)["jobs"]) == 1000


# Responses that are not read ----------------------------------------------------------------------


@pytest.fixture
def service(queue: Queue) -> Iterator[Service]:
    service = make_app(queue, tokens=Tokens(TOKENS))
    yield service
    service.close()


@pytest.fixture
def dial(service: Service) -> Iterator[Dial]:
    with hosted(Watched(service)) as dial:
        yield dial


def bearer(secret: str) -> list[str]:
    return [f"Authorization: Bearer {secret}"]


def test_who_does_not_read_gets_no_more_and_others_do(
    dial: Dial, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PAGE_BYTES", 9_000 * KB)
    monkeypatch.setattr(bounds, "HELD_BYTES", 8_000 * KB)
    monkeypatch.setattr(bounds, "ROOM_SECONDS", 0.3)
    for n in range(9):
        queue.enqueue("q", "x" * 1000 * KB, id=f"large-{n}")
    page = request("GET", "/v1/jobs?limit=9", headers=bearer("greedy"))
    lines = []
    for _ in range(8):
        line = dial()
        line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        lines.append(line.say(page))
    refused = until_status(dial, 429)
    assert "do not read" in refused.detail
    one = request("GET", "/v1/jobs/large-0", headers=bearer("honest"))
    assert dial().say(one).hear().status == 200
    for line in lines:
        line.hang_up()
    until_status(dial, 200)


def until_status(dial: Dial, status: int) -> Heard:
    """Ask again and again, as the greedy one, until the response has this status."""
    for _ in range(100):
        heard = dial().say(request("GET", "/v1/jobs", headers=bearer("greedy"))).hear()
        if heard.status == status:
            return heard
    raise AssertionError(f"it never was {status}")


def test_many_who_ask_at_once_and_do_not_read_are_not_all_served(
    dial: Dial, service: Service, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finds that there is room, before any of the others has taken it."""
    monkeypatch.setattr(bounds, "ROOM_SECONDS", 0.5)
    monkeypatch.setattr(bounds, "HELD_BYTES", 12_000 * KB)
    for n in range(5):
        queue.enqueue("q", "x" * 1000 * KB, id=f"large-{n}")
    page = request("GET", "/v1/jobs?limit=9", headers=bearer("greedy"))
    lines = [dial() for _ in range(30)]
    for line in lines:
        line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        line.say(page)
    until_status(dial, 429)
    held = sum(one.unread() for one in service._traffic[hash_of("greedy")]._sent)
    assert held <= 2 * bounds.HELD_BYTES


def test_a_pipelined_request_waits_until_the_response_before_it_is_read(
    dial: Dial, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PAGE_BYTES", 9_000 * KB)
    for n in range(9):
        queue.enqueue("q", "x" * 1000 * KB, id=f"large-{n}")
    line = dial()
    line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    line.say(request("GET", "/v1/jobs?limit=9", headers=bearer("greedy")))
    line.say(request("POST", "/v1/claim", b'{"queues": ["q"]}', headers=bearer("greedy")))
    assert dial().say(request("GET", "/healthz")).hear().status == 200
    assert queue.stats("q").leased == 0
    assert line.hear().status == 200
    assert line.hear().status == 200
    assert queue.stats("q").leased == 1


# Requests without a token -------------------------------------------------------------------------


def test_a_burst_is_free_on_a_machine_that_was_just_started() -> None:
    async def waits() -> bool:
        loop = asyncio.get_running_loop()
        loop.time = lambda: 5.0  # type: ignore[method-assign]
        pace = Pace(rate=0.1, burst=10)
        pace.spend(9)
        return pace.is_ahead

    assert not asyncio.run(waits())


def test_strangers_are_served_at_a_limited_rate_and_tokens_are_not_delayed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.service, "_strangers", Pace(rate=0.001, burst=10))

    async def act() -> None:
        paths = ["/nothing", "/v1/jobs"] * 15
        tasks = [asyncio.create_task(client._ask("GET", one, None, None, {})) for one in paths]
        await asyncio.sleep(0)
        honest = {"authorization": "Bearer honest"}
        assert (await client._ask("GET", "/v1/queues", None, None, honest)).status == 200
        while len(served := [task for task in tasks if task.done()]) < 10:
            await asyncio.sleep(0.01)
        assert {task.result().status for task in served} == {404, 401}
        assert len(served) == 10
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    client.run(act())


def test_the_description_counts_by_its_size(client: Client) -> None:
    turns: list[float] = []

    class Noted(Pace):
        async def turn(self, turns_: float = 1) -> None:
            turns.append(turns_)

    client.service._strangers = Noted(1, 1)
    for path in ("/nothing", "/openapi.json"):
        client.ask("GET", path)
    assert turns[0] == 1
    assert turns[1] > 5


# Bytes --------------------------------------------------------------------------------------------


def test_the_bytes_of_one_token_are_limited_by_the_second_and_others_are_not_delayed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = client.service._traffic[hash_of("greedy")]
    monkeypatch.setattr(greedy, "pace", Pace(rate=1000 * KB, burst=1))
    job = {"queue": "q", "payload": "x" * 300 * KB}

    async def act() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        greedy = {"authorization": "Bearer greedy"}
        assert (await client._ask("POST", "/v1/jobs", job, None, greedy)).status == 201
        second = asyncio.create_task(client._ask("GET", "/v1/jobs", None, None, greedy))
        honest = {"authorization": "Bearer honest"}
        assert (await client._ask("POST", "/v1/jobs", job, None, honest)).status == 201
        assert not second.done()
        assert (await second).status == 200
        assert loop.time() - began >= 0.59, "the job came in, and went out once"

    client.run(act())


def test_health_checks_do_not_wait_for_other_strangers(client: Client) -> None:
    async def act() -> None:
        client.service._strangers.spend(10_000)
        async with asyncio.timeout(5):
            for path in ("/healthz", "/readyz"):
                assert (await client._ask("GET", path, None, None, {})).status == 200

    client.run(act())


def test_who_leaves_while_waiting_for_room_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "HELD_BYTES", 100)

    async def act() -> None:
        traffic = bounds.Traffic()
        await traffic.reserve(80)
        waiting = [asyncio.create_task(traffic.reserve(50)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        traffic.release(80)
        await waiting[1]
        await waiting[2]
        assert waiting[0].cancelled()
        assert (traffic._reserved, len(traffic._waiting)) == (100, 0)
        late = asyncio.create_task(traffic.reserve(50))
        await asyncio.sleep(0)
        traffic.release(100)
        traffic._look()  # granted, and in the same moment
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert traffic._reserved == 0

    asyncio.run(act())
