"""Server-sent events: what happens to jobs, told to those who read along."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any, Self

import pytest

from tenure import NewJob, Queue
from tenure.errors import Busy
from tenure.server.auth import Scope, hash_of
from tenure.server.service import Service
from tests.server.conftest import Client, Serve, token
from tests.support.sizes import let


class Told:
    """One event, as it came."""

    def __init__(self, text: str) -> None:
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        self.id = fields["id"]
        self.event = fields["event"]
        self.data: dict[str, Any] = json.loads(fields["data"])


class Reader:
    """Reads a stream of a service, without a network; it can be made to stop reading."""

    def __init__(
        self, service: Service, query: str = "", *, last_id: str = "", token: str = ""
    ) -> None:
        headers = []
        if last_id:
            headers.append((b"last-event-id", last_id.encode()))
        if token:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events",
            "raw_path": b"/v1/events",
            "query_string": query.encode(),
            "headers": headers,
        }
        self._service = service
        self.reads = asyncio.Event()
        self.reads.set()
        self._gone = asyncio.Event()
        self._chunks: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._text = ""

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self._service(self._scope, self._receive, self._send))
        self.head = await self._chunks.get()
        assert await self._line() == ": follow"
        return self

    async def __aexit__(self, *details: object) -> None:
        self._gone.set()
        self.reads.set()
        await asyncio.wait_for(self.task, 10)

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        self._chunks.put_nowait(dict(message))

    async def _line(self) -> str:
        while "\n\n" not in self._text:
            chunk = await asyncio.wait_for(self._chunks.get(), 10)
            assert chunk.get("more_body"), "the stream ended"
            self._text += chunk["body"].decode()
        line, self._text = self._text.split("\n\n", 1)
        return line

    async def next(self, *, hints: bool = False) -> Told:
        """The next event, hints that something changed left out."""
        while True:
            line = await self._line()
            if not line.startswith(":"):
                told = Told(line)
                if hints or told.event != "changed":
                    return told

    async def ended(self) -> bool:
        """Whether the stream came to its end."""
        while True:
            chunk = await asyncio.wait_for(self._chunks.get(), 10)
            if not chunk.get("more_body"):
                return True


def test_the_life_of_a_job_is_told_as_it_happens(client: Client, queue: Queue) -> None:
    async def follow() -> list[Told]:
        async with Reader(client.service) as reader:
            await queue.aenqueue("mail", kind="hello", tenant="acme", group="g", id="a")
            (job,) = await queue.aclaim("mail")
            await queue.aprogress(job, 40)
            await queue.afail(job, "hung up", retry_in=0)
            (job,) = await queue.aclaim("mail")
            await queue.aack(job, 1)
            return [await reader.next() for _ in range(6)]

    told = client.run(follow())

    assert [one.event for one in told] == ["job"] * 6
    assert [(one.data["what"], one.data["state"]) for one in told] == [
        ("enqueued", "pending"),
        ("claimed", "leased"),
        ("progress", "leased"),
        ("failed", "pending"),
        ("claimed", "leased"),
        ("done", "done"),
    ]
    assert told[2].data["percent"] == 40
    for one in told:
        assert {name: one.data[name] for name in ("id", "queue", "tenant", "group", "kind")} == {
            "id": "a", "queue": "mail", "tenant": "acme", "group": "g", "kind": "hello",
        }  # fmt: skip
    assert told[5].data["attempts"] == 2


def test_nothing_of_a_payload_a_result_or_an_error_is_in_an_event(
    client: Client, queue: Queue
) -> None:
    async def follow() -> list[Told]:
        async with Reader(client.service) as reader:
            await queue.aenqueue("mail", "secret")
            (job,) = await queue.aclaim("mail")
            await queue.afail(job, "secret", retry_in=0)
            (job,) = await queue.aclaim("mail")
            await queue.aack(job, "secret")
            return [await reader.next() for _ in range(5)]

    assert "secret" not in str([one.data for one in client.run(follow())])


def test_what_an_operator_does_to_many_jobs_is_told_of_each(client: Client, queue: Queue) -> None:
    async def follow() -> list[tuple[str, str, str]]:
        for id in ("a", "b"):
            await queue.aenqueue("mail", id=id)
        async with Reader(client.service) as reader:
            await queue.acancel(queue="mail")
            await queue.areplay(queue="mail", state="cancelled")
            told = [await reader.next() for _ in range(4)]
            return sorted((one.data["what"], one.data["id"], one.data["state"]) for one in told)

    assert client.run(follow()) == [
        ("cancelled", "a", "cancelled"),
        ("cancelled", "b", "cancelled"),
        ("replayed", "a", "pending"),
        ("replayed", "b", "pending"),
    ]


def test_jobs_that_were_claimed_before_anybody_read_are_known_by_looking(
    client: Client, queue: Queue
) -> None:
    async def follow() -> Told:
        await queue.aenqueue("mail", tenant="acme", id="a")
        (job,) = await queue.aclaim("mail")
        async with Reader(client.service) as reader:
            await queue.aack(job)
            return await reader.next()

    told = client.run(follow())
    assert (told.data["what"], told.data["queue"], told.data["tenant"]) == ("done", "mail", "acme")


def test_a_refused_operation_is_not_told(client: Client, queue: Queue) -> None:
    async def follow() -> Told:
        async with Reader(client.service) as reader:
            await queue.aenqueue("mail", id="a")
            (job,) = await queue.aclaim("mail")
            await queue.aack(job)
            await queue.aack(job)  # which changes nothing
            with pytest.raises(Exception, match="lease"):
                await queue.arelease(job)
            await queue.aenqueue("mail", id="b")
            return [await reader.next() for _ in range(4)][-1]

    assert client.run(follow()).data["id"] == "b"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("queue=mail", ["m1", "m2"]),
        ("tenant=acme", ["m1", "w1"]),
        ("group=g", ["m2"]),
        ("kind=k", ["w1"]),
        ("job=m2", ["m2"]),
        ("queue=mail&tenant=acme", ["m1"]),
        ("state=pending&what=enqueued&queue=web", ["w1"]),
    ],
)
def test_events_can_be_filtered(client: Client, queue: Queue, query: str, found: list[str]) -> None:
    async def follow() -> list[str]:
        async with Reader(client.service, query) as reader:
            await queue.aenqueue("mail", id="m1", tenant="acme")
            await queue.aenqueue("mail", id="m2", group="g")
            await queue.aenqueue("web", id="w1", tenant="acme", kind="k")
            return [(await reader.next()).data["id"] for _ in found]

    assert client.run(follow()) == found


def test_a_bound_token_is_told_of_its_own_jobs_only(serve: Serve, queue: Queue) -> None:
    client = serve(tokens=[token("t", Scope.READ, queues=("mail",), tenants=("acme",))])

    async def follow() -> str:
        async with Reader(client.service, token="t") as reader:
            await queue.aenqueue("mail", id="another tenant's", tenant="bolt")
            await queue.aenqueue("web", id="another queue's", tenant="acme")
            await queue.aenqueue("mail", id="mine", tenant="acme")
            found: str = (await reader.next()).data["id"]
            return found

    assert client.run(follow()) == "mine"


def test_a_reader_that_comes_back_misses_nothing(client: Client, queue: Queue) -> None:
    async def follow() -> list[str]:
        async with Reader(client.service) as reader:
            await queue.aenqueue("mail", id="seen")
            last_id = (await reader.next()).id
        await queue.aenqueue("mail", id="missed")
        async with Reader(client.service, last_id=last_id) as reader:
            await queue.aenqueue("mail", id="live")
            found = [(await reader.next()).data["id"] for _ in range(2)]
        async with Reader(client.service, f"since={last_id}") as reader:
            return [*found, (await reader.next()).data["id"]]

    assert client.run(follow()) == ["missed", "live", "missed"]


@pytest.mark.parametrize("last_id", ["another.7", "nonsense", "", "x.", "x.-1", "x.²"])
def test_a_reader_that_cannot_go_on_where_it_was_is_told_so(
    client: Client, queue: Queue, last_id: str
) -> None:
    async def follow() -> list[str]:
        header = last_id.encode("utf-8").decode("latin-1") or "."
        async with Reader(client.service, last_id=header) as reader:
            first = await reader.next()
            await queue.aenqueue("mail", id="live")
            return [first.event, (await reader.next()).data["id"]]

    assert client.run(follow()) == ["reset", "live"]


def test_a_reader_that_is_too_far_behind_when_it_comes_back_is_told_so(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, events_remembered=3)

    async def follow() -> str:
        async with Reader(client.service) as reader:
            await queue.aenqueue("mail", id="seen")
            last_id = (await reader.next()).id
            for _ in range(5):
                await queue.aenqueue("mail")
                await reader.next()
        async with Reader(client.service, last_id=last_id) as reader:
            return (await reader.next()).event

    assert client.run(follow()) == "reset"


def test_a_slow_reader_is_dropped_and_the_others_go_on(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, events_remembered=10)

    async def follow() -> list[str]:
        async with Reader(client.service) as slow, Reader(client.service) as quick:
            slow.reads.clear()
            found = []
            for n in range(30):
                await queue.aenqueue("mail", id=str(n))
                found.append((await quick.next()).data["id"])
            slow.reads.set()
            await asyncio.wait_for(slow.task, 10)
            return found

    assert client.run(follow()) == [str(n) for n in range(30)]


def test_a_reader_that_takes_nothing_at_all_is_dropped_after_a_time(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_to_send_an_event=0.05)

    async def follow() -> bool:
        async with Reader(client.service) as slow:
            slow.reads.clear()
            await queue.aenqueue("mail")
            await asyncio.wait_for(asyncio.shield(slow.task), 10)
            return slow.task.done()

    assert client.run(follow())


def test_what_is_too_much_to_tell_is_passed_over_and_said_so(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, events_that_a_reader_is_behind=0)

    async def follow() -> str:
        async with Reader(client.service) as reader:
            await queue.aenqueue("mail")
            return (await reader.next()).event

    assert client.run(follow()) == "reset"


def test_there_is_a_most_of_readers(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, readers_of_events=1)

    async def follow() -> None:
        async with Reader(client.service):
            with pytest.raises(Busy):
                client.service.feed.join("", shared=False)
        async with Reader(client.service):
            pass

    client.run(follow())


def test_the_stream_ends_when_the_service_does(client: Client) -> None:
    async def follow() -> bool:
        async with Reader(client.service) as reader:
            client.service.closing.set()
            return await reader.ended()

    assert client.run(follow())


def test_a_silent_stream_shows_that_it_lives(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_between_beats_of_a_stream=0.0)
    let(monkeypatch, seconds_between_looks_of_a_stream=0.01)

    async def follow() -> str:
        async with Reader(client.service) as reader:
            while not (line := await reader._line()).startswith(":"):
                pass  # a hint that something changed, which may be given for nothing
            return line

    assert client.run(follow()) == ": still here"


def test_what_others_do_to_the_store_is_told_as_a_hint(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow() -> Told:
        async with Reader(client.service) as reader:
            queue.changes.tell(None)  # what the engine does when it hears of them
            return await reader.next(hints=True)

    assert client.run(follow()).event == "changed"


def test_the_head_of_a_stream_can_be_asked_for(client: Client) -> None:
    asked = client.ask("HEAD", "/v1/events")
    assert (asked.status, asked.kind, asked.content) == (200, "text/event-stream", b"")


def test_a_filter_that_does_not_exist_is_refused(client: Client) -> None:
    asked = client.ask("GET", "/v1/events?colour=red")
    assert (asked.status, asked.json["code"]) == (400, "invalid")


def test_nothing_is_watched_while_nobody_reads(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, seconds_that_a_feed_outlives_its_readers=0.0)

    async def follow() -> None:
        async with Reader(client.service):
            pass
        for _ in range(300):
            if not queue.changes._watchers:
                return
            await asyncio.sleep(0.01)
        pytest.fail("it is still watched")

    client.run(follow())


def test_one_token_does_not_take_the_places_of_all_readers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, readers_of_events=4)
    client = serve(tokens=[token("greedy"), token("honest")])
    greedy, _ = client.service.tokens._known()

    async def follow() -> None:
        feed = client.service.feed
        places = [feed.join(greedy, shared=True) for _ in range(2)]
        with pytest.raises(Busy):
            feed.join(greedy, shared=True)
        async with Reader(client.service, token="honest"):
            pass
        for place in places:
            feed.leave(greedy, place)
        assert not feed._readers

    client.run(follow())


def test_tokens_that_have_all_places_give_one_to_a_token_that_has_none(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, readers_of_events=6)
    client = serve(tokens=[token(one) for one in ("a", "b", "honest")])

    async def follow() -> None:
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(Reader(client.service, token=who))
                for who in ("a", "a", "a", "b", "b", "b")
            ]
            for _ in range(2):
                await stack.enter_async_context(Reader(client.service, token="honest"))
            assert await readers[0].ended()
            assert await readers[3].ended()
            for who in ("a", "b", "honest"):
                with pytest.raises(Busy):
                    client.service.feed.join(hash_of(who), shared=True)
        assert not client.service.feed._readers

    client.run(follow())


def test_a_reader_that_is_behind_is_sent_a_little_at_a_time(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(monkeypatch, events_read_at_once=10)

    async def follow() -> list[int]:
        async with Reader(client.service) as reader:
            first = await _first(queue, reader)
            await queue.aenqueue_many([NewJob(queue="mail") for _ in range(95)])
        async with Reader(client.service, last_id=first) as reader:
            sizes = [reader._text.count('"what":"enqueued"')]
            while sum(sizes) < 95:
                chunk = await asyncio.wait_for(reader._chunks.get(), 10)
                sizes.append(chunk["body"].count(b'"what":"enqueued"'))
            return sizes

    async def _first(queue: Queue, reader: Reader) -> str:
        await queue.aenqueue("mail")
        return (await reader.next()).id

    sizes = client.run(follow())
    assert sum(sizes) == 95
    assert max(sizes) <= 10


def test_many_readers_are_woken_less_often(
    client: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event wakes every reader: a thousand of them must not take all the time there is."""
    let(monkeypatch, seconds_between_wakings_of_a_feed=0.05)

    async def follow() -> int:
        feed = client.service.feed
        places = [feed.join("", shared=False) for _ in range(10)]
        woken = 0
        for n in range(100):
            await queue.aenqueue("mail", id=str(n))
            await asyncio.sleep(0)
            woken += places[0].is_set()
            places[0].clear()
        for place in places:
            feed.leave("", place)
        return woken

    assert client.run(follow()) <= 10


def test_the_type_of_a_stream_is_not_to_be_guessed(client: Client) -> None:
    async def follow() -> Any:
        async with Reader(client.service) as reader:
            return reader.head["headers"]

    assert (b"x-content-type-options", b"nosniff") in client.run(follow())
