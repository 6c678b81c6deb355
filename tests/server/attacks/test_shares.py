"""Clients of one token that want everything: queries, memory, leases."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

import tenure
from tenure import NewJob, Queue
from tenure.model import job, queries, wire
from tenure.model.queries import Found, ListJobs, Query
from tenure.queue import store_of
from tenure.server import checks, native, payload_sizes, readers, traffic
from tenure.server.auth import Scope, Tokens, hash_of
from tenure.server.exchange import AsgiExchange
from tenure.server.redaction import Redaction
from tenure.server.request_body import Incoming
from tenure.server.route import Route
from tenure.server.routes import make_app
from tenure.server.service import Service
from tenure.server.traffic import Line, Pace, Traffic
from tenure.testing import ManualClock
from tests.server.conftest import Asked, Client, token
from tests.server.wire import PATIENCE, Dial, Heard, Watched, hosted, request
from tests.support.sizes import let

KB = 1_024
TOKENS = [token("greedy"), token("honest"), token("worker", Scope.WORK)]


class SlowKind:
    """An engine's reads, which do not end if they ask for jobs of the kind `slow`."""

    def __init__(self, queue: Queue) -> None:
        self._read = store_of(queue).engine.read
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
    monkeypatch.setattr(store_of(queue).engine, "read", slow.read)
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
    monkeypatch.setattr(client.service.means.readers, "_seconds", 0.2)
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
        pool = readers.Readers(store_of(queue), shared=True, slots=1)

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
        pool = readers.Readers(store_of(queue), shared=True, slots=2)
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
    total, most = 0, payload_sizes.UNKNOWN_CLAIM
    while found := worker.post("/v1/claim", {"queues": ["q"], "limit": 1000})["jobs"]:
        total += len(found)
        assert len(found) <= most
        most = checks.CLAIM_BYTES // (500 * KB) + 1  # the sizes are known from then on
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
    let(monkeypatch, bytes_of_a_page=9_000 * KB)
    let(monkeypatch, bytes_held_for_a_token=8_000 * KB)
    let(monkeypatch, seconds_to_wait_for_room=0.3)
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
    let(monkeypatch, seconds_to_wait_for_room=0.5)
    let(monkeypatch, bytes_held_for_a_token=12_000 * KB)
    for n in range(5):
        queue.enqueue("q", "x" * 1000 * KB, id=f"large-{n}")
    page = request("GET", "/v1/jobs?limit=9", headers=bearer("greedy"))
    lines = [dial() for _ in range(30)]
    for line in lines:
        line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        line.say(page)
    until_status(dial, 429)
    held = sum(one.unread() for one in service.means.traffic[hash_of("greedy")]._sent)
    assert held <= 2 * traffic.HELD_BYTES


def test_a_pipelined_request_waits_until_the_response_before_it_is_read(
    dial: Dial, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, bytes_of_a_page=9_000 * KB)
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


@pytest.fixture
def slowly(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A service that gives hardly any response to clients without a token."""
    let(monkeypatch, requests_of_strangers_in_a_second=0.001)
    let(monkeypatch, requests_of_strangers_at_once=1)
    service = make_app(queue, tokens=Tokens(TOKENS), dialects=["firecrawl", "queuey"])
    with asyncio.Runner() as runner:
        client = Client(service, runner)
        while client.ask("GET", "/nothing").status != 429:
            pass
        yield client
        service.close()


def in_time(client: Client, *asked: tuple[str, str]) -> list[int]:
    """The statuses of requests (a path, a token) that must not wait."""

    async def act() -> list[int]:
        async with asyncio.timeout(10):
            return [
                (
                    await client._ask("GET", path, None, None, {"authorization": f"Bearer {who}"})
                ).status
                for path, who in asked
            ]

    return client.run(act())


def test_health_checks_never_wait(slowly: Client) -> None:
    paths = ["/healthz", "/readyz", "/health", "/ping"]  # the last two are of dialects
    assert in_time(slowly, *[(path, "") for path in paths] * 10) == [200] * 40


def test_a_known_token_never_waits_with_strangers(slowly: Client) -> None:
    asked = [("/v1/queues", "honest"), ("/v1/jobs", "worker"), ("/metrics", "worker")] * 5
    assert in_time(slowly, *asked) == [200, 403, 403] * 5


def test_strangers_that_would_wait_long_are_rejected(client: Client) -> None:
    client.service._strangers = Line(rate=20, burst=1)

    async def act() -> list[Asked]:
        paths = ["/nothing", "/v1/jobs"] * 30
        return await asyncio.gather(*(client._ask("GET", one, None, None, {}) for one in paths))

    found = client.run(act())
    rejected = [one for one in found if one.status == 429]
    assert 20 <= len(rejected) <= 42, "a second of the rate is served, and what is free"
    assert {one.status for one in found} == {401, 404, 429}
    assert rejected[0].headers["retry-after"] == "1"
    assert rejected[0].headers["connection"] == "close"
    assert "without a valid token" in rejected[0].json["detail"]


def test_who_has_left_the_line_of_strangers_takes_no_turn() -> None:
    async def act() -> None:
        line, left = Line(rate=4, burst=0), False
        assert await line.turn(1, lambda: False)
        gone = [asyncio.create_task(line.turn(1, lambda: left)) for _ in range(5)]
        await asyncio.sleep(0)
        assert not await line.turn(1, lambda: False), "the line is full"
        left = True
        gone[0].cancel()
        began = asyncio.get_running_loop().time()
        assert await asyncio.gather(*(line.turn(1, lambda: False) for _ in range(2))) == [True] * 2
        assert [await one for one in gone[1:]] == [False] * 4
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert line._wanted == 0

    asyncio.run(act())


def test_who_has_left_a_short_line_of_strangers_takes_no_turn_either() -> None:
    async def act() -> None:
        line = Line(rate=20, burst=0)
        assert await line.turn(1, lambda: False)
        gone = [asyncio.create_task(line.turn(5, lambda: True)) for _ in range(2)]
        began = asyncio.get_running_loop().time()
        assert await line.turn(1, lambda: False)
        assert asyncio.get_running_loop().time() - began < 0.25, "a turn of theirs takes as long"
        assert [await one for one in gone] == [False] * 2

    asyncio.run(act())


def test_the_description_counts_by_its_size(client: Client) -> None:
    turns: list[float] = []

    class Noted(Line):
        async def turn(self, turns_: float, has_left: object) -> bool:
            turns.append(turns_)
            return True

    client.service._strangers = Noted(1, 1)
    for path in ("/nothing", "/openapi.json"):
        client.ask("GET", path)
    assert turns[0] == 1
    assert turns[1] > 5


def scope_of(path: str, headers: list[tuple[bytes, bytes]]) -> Any:
    return {"method": "GET", "path": path, "query_string": b"", "headers": headers}


class Unread(AsgiExchange):
    """A request whose client does not read the response."""

    left = False

    def unread(self) -> int:
        return 0 if self.left else 464_000


@pytest.mark.parametrize("who", ["nobody", "honest"])
def test_a_response_that_nobody_reads_is_not_kept_for_ever(
    client: Client, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    let(monkeypatch, seconds_between_looks_at_responses=0.01)

    async def act() -> None:
        async def send(message: object) -> None:
            pass

        headers = [(b"host", b"tenure"), (b"authorization", f"Bearer {who}".encode())]
        exchange = Unread(scope_of("/v1/queues", headers), send, send)  # type: ignore[arg-type]
        await client.service.serve(exchange)
        kept = weakref.ref(exchange)
        exchange.left = True
        del exchange
        async with asyncio.timeout(10):
            while kept() is not None:
                await asyncio.sleep(0.01)
                gc.collect()

    client.run(act())


# Bytes --------------------------------------------------------------------------------------------


def test_the_bytes_of_one_token_are_limited_by_the_second_and_others_are_not_delayed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = client.service.means.traffic[hash_of("greedy")]
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


def test_large_bodies_of_one_token_that_are_not_complete_are_not_all_kept(client: Client) -> None:
    """Any number of connections can send nearly all of a body, and wait."""
    room, received = Traffic(8_000 * KB), [0] * 5

    class Slow(AsgiExchange):
        def __init__(self, number: int) -> None:
            headers = [(b"content-length", b"%d" % (4_000 * KB))]
            super().__init__(scope_of("/v1/jobs", headers), self.part, self.part)  # type: ignore[arg-type]
            self.number = number

        async def part(self) -> dict[str, object]:
            if received[self.number] >= 3_900 * KB:
                await asyncio.sleep(3600)
            received[self.number] += 100 * KB
            return {"type": "http.request", "body": b"x" * 100 * KB, "more_body": True}

    async def act() -> None:
        bodies = [Incoming(Slow(n), 4_000 * KB, 60) for n in range(5)]
        for body in bodies:
            body.trust("greedy", room)
        tasks = [asyncio.create_task(body.read()) for body in bodies]
        for _ in range(200):
            await asyncio.sleep(0)
        assert sorted(one // KB for one in received) == [1_100] * 3 + [3_900] * 2
        for task, body in zip(tasks, bodies, strict=True):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            body.free()
        assert (room._reserved, len(room._waiting)) == (0, 0)

    client.run(act())


def test_what_work_referred_to_is_not_kept_when_it_has_failed(queue: Queue) -> None:
    """A body of 28 MB was kept until Python looked for cycles."""

    class Body:
        pass

    async def act() -> None:
        def work(body: Body) -> None:
            raise ValueError

        aside, body = readers.Readers(store_of(queue), shared=True), Body()
        kept = weakref.ref(body)
        with contextlib.suppress(ValueError):
            await aside.run("greedy", "this", partial(work, body))
        del body
        async with asyncio.timeout(PATIENCE):  # the thread may still be ending
            while kept() is not None:
                await asyncio.sleep(0)
        aside.close()

    gc.disable()
    try:
        asyncio.run(act())
    finally:
        gc.enable()


# CPU time -----------------------------------------------------------------------------------------


@pytest.fixture
def redacting(queue: Queue) -> Iterator[Client]:
    service = make_app(queue, tokens=Tokens(TOKENS), redact=["password"])
    with asyncio.Runner() as runner:
        yield Client(service, runner).as_("honest")
        service.close()


def threads_of(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[bool]:
    """Whether each call of a method was in the thread of the event loop."""
    calls: list[bool] = []
    method = getattr(kind, name)

    def noted(self: object, given: object) -> object:
        calls.append(threading.current_thread() is threading.main_thread())
        return method(self, given)

    monkeypatch.setattr(kind, name, noted)
    return calls


def test_large_results_are_redacted_beside_the_loop_and_small_ones_in_it(
    redacting: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("q", {"password": "x", "a": "y" * 100 * KB}, id="large")
    queue.enqueue("q", {"password": "x"}, id="small")
    calls = threads_of(monkeypatch, Redaction, "of")
    for path in ("/v1/jobs/small", "/v1/jobs/large", "/v1/jobs"):
        assert "[redacted]" in str(redacting.get(path)), path
    assert calls == [True, False, False]


def test_large_bodies_are_decoded_beside_the_loop_and_small_ones_in_it(
    redacting: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = threads_of(monkeypatch, Route, "read")
    for size in (1, 100 * KB):
        redacting.post("/v1/jobs", {"queue": "q", "payload": "x" * size})
    asked = redacting.ask("POST", "/v1/jobs", content=b"[" + b" " * 100 * KB)
    assert (asked.status, asked.json["code"]) == (400, "invalid")
    assert calls == [True, False, False]


def test_large_payloads_and_results_are_validated_beside_the_loop(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they are few."""
    honest = client.as_("honest")
    calls: list[bool] = []
    encode = job.encode_json

    def noted(field: str, value: object, limit: int) -> msgspec.Raw:
        calls.append(threading.current_thread() is threading.main_thread())
        return encode(field, value, limit)

    queue.enqueue("q", id="a")
    (held,) = queue.claim("q")
    for module in (job, native, wire):
        monkeypatch.setattr(module, "encode_json", noted)
    large = "x" * 200 * KB
    ack = {"id": "a", "token": held.token, "result": large}
    spec = {"id": "b", "queue": "q", "payload": large}
    honest.post("/v1/jobs", [{"queue": "q", "payload": large}] * 2)
    honest.post("/v1/ack", {"jobs": [ack]})
    honest.post("/v1/ops", {"ops": [{"op": "Enqueue", "jobs": [spec]}]})
    assert calls
    assert not any(calls)


def test_the_cpu_time_of_one_token_is_limited_and_others_are_not_delayed(client: Client) -> None:
    service = client.service
    service.means.traffic["greedy"].work = Pace(rate=0.001, burst=0.001)

    def busy() -> int:
        return sum(range(300_000))  # some milliseconds: many seconds at this rate

    async def act() -> None:
        await service.means.in_thread("greedy", busy)
        assert service.means.traffic["greedy"].work.is_ahead
        late = [asyncio.create_task(service.means.in_thread("greedy", busy)) for _ in range(3)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            for _ in range(5):
                await service.means.in_thread("honest", busy)
        assert not any(one.done() for one in late)
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        assert not service.means._aside._running

    client.run(act())


def test_who_leaves_while_waiting_for_room_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    let(monkeypatch, bytes_held_for_a_token=100)

    async def act() -> None:
        mine = Traffic()
        await mine.reserve(80)
        waiting = [asyncio.create_task(mine.reserve(50)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        mine.release(80)
        await waiting[1]
        await waiting[2]
        assert waiting[0].cancelled()
        assert (mine._reserved, len(mine._waiting)) == (100, 0)
        late = asyncio.create_task(mine.reserve(50))
        await asyncio.sleep(0)
        mine.release(100)
        mine._look()  # granted, and in the same moment
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert mine._reserved == 0

    asyncio.run(act())
