"""Routes that report changes: long polling for any change, and a stream of job events."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tenure.model.job import State
from tenure.queue import Queue
from tenure.server.auth import Scope, Token
from tenure.server.event_feed import Entry, Feed, JobEvent, Place, What
from tenure.server.route import ANY, Call, Route
from tenure.server.waiting import until_gone, wait_for_change

log = logging.getLogger("tenure.service")

BEAT_SECONDS = 15.0  # of silence, after which a comment keeps the stream alive
SEND_SECONDS = 30.0  # in which a reader must accept one message
LOOK_SECONDS = 1.0  # between checks whether the reader has left or the service is closing


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True):
    since: str = ""
    wait: Annotated[float, Meta(ge=0, le=60)] = 0


class Version(msgspec.Struct):
    """A different value means that something may have changed."""

    version: str


class News:
    """A version that changes with every change this process learns of."""

    def __init__(self, queue: Queue) -> None:
        self._start = secrets.token_hex(4)  # differs between processes
        self._count = 0
        self._changes = queue.changes
        self._stop: Callable[[], None] | None = None

    def _note(self, queues: Collection[str] | None) -> None:
        self._count += 1

    @property
    def version(self) -> str:
        """The version now. Changes count from the first time that somebody asks."""
        if self._stop is None:
            self._stop = self._changes.listen(self._note)
        return f"{self._start}.{self._count}"

    def close(self) -> None:
        if self._stop is not None:
            self._stop()


async def changes(call: Call, query: ChangesQuery) -> Version:
    """Wait until something may have changed since the given version."""
    news = call.service.news
    await wait_for_change(call, query.wait, lambda: news.version != query.since)
    return Version(news.version)


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Selects events; omitted fields match any value. `since` is the id of the last event seen, for
    clients that cannot send the header `Last-Event-ID`."""

    queue: str | None = None
    tenant: str | None = None
    group: str | None = None
    kind: str | None = None
    job: str | None = None
    what: What | None = None
    state: State | None = None
    since: str | None = None


async def events(
    call: Call,
    query: EventsQuery,
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[Any], Awaitable[None]],
) -> None:
    """Stream what happens to jobs as server-sent events."""
    feed, who = call.service.feed, call.token.hash
    news = feed.join(who, shared=call.service.tokens.required)
    gone = asyncio.create_task(until_gone(receive))
    gone.add_done_callback(lambda _: news.set())
    try:
        last_id = query.since or call.headers.get(b"last-event-id") or ""
        with suppress(OSError):  # the reader went away
            await _begin(send)
            await _follow(call, query, last_id, gone, news, send)
            await send({"type": "http.response.body", "body": b""})
    except TimeoutError:
        log.info("dropped a reader of events that was too slow")
    finally:
        feed.leave(who, news)
        gone.cancel()


async def _begin(send: Callable[[Any], Awaitable[None]]) -> None:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"x-accel-buffering", b"no"),  # tells nginx not to buffer
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _follow(
    call: Call,
    query: EventsQuery,
    last_id: str,
    gone: asyncio.Task[None],
    news: asyncio.Event,
    send: Callable[[Any], Awaitable[None]],
) -> None:
    feed = call.service.feed
    place = feed.place(last_id) if last_id else feed.end
    text = b": follow\n\n"
    if place is None:
        place = feed.end
        text += _reset(feed)
    conditions = _conditions(query, call.token)
    loop = asyncio.get_running_loop()
    spoke_at = loop.time()
    while not gone.done() and not call.is_over and feed.is_reader(news):
        news.clear()
        entries = feed.after(place)
        if entries is None and place.epoch == feed.epoch:
            raise TimeoutError
        if entries is None:
            text += _reset(feed)
        wanted = [one for one in entries or () if not conditions or _wanted(one, conditions)]
        text += b"".join([one.text for one in wanted])
        place = Place(feed.epoch, entries[-1].number) if entries else feed.end
        if text:
            async with asyncio.timeout(SEND_SECONDS):
                await send({"type": "http.response.body", "body": text, "more_body": True})
            spoke_at = loop.time()
            text = b""
        elif loop.time() > spoke_at + BEAT_SECONDS:
            text = b": still here\n\n"
        if feed.end == place:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await news.wait()


def _reset(feed: Feed) -> bytes:
    """The event that tells a reader that it may have missed events."""
    return f"id: {feed.end.epoch}.{feed.end.number}\nevent: reset\ndata: {{}}\n\n".encode()


def _conditions(query: EventsQuery, token: Token) -> list[tuple[Callable[[JobEvent], str], Any]]:
    """What an event must have to be sent: fields, and the values that each may have."""
    asked: list[tuple[str, Any]] = [
        ("queue", token.queues),
        ("tenant", token.tenants),
        *((name, getattr(query, name)) for name in ("queue", "tenant", "group", "kind")),
        ("id", query.job),
        ("what", query.what),
        ("state", query.state),
    ]
    return [
        (attrgetter(name), values if isinstance(values, tuple) else (values,))
        for name, values in asked
        if values is not None
    ]


def _wanted(entry: Entry, conditions: Sequence[tuple[Callable[[JobEvent], str], Any]]) -> bool:
    event = entry.event
    if event is None:
        return True
    return all(field(event) in values for field, values in conditions)


ROUTES = [
    Route("GET", "/v1/changes", changes, scope=ANY, query=ChangesQuery, answer=Version),
    Route("GET", "/v1/events", events, scope=Scope.READ, query=EventsQuery, answer=JobEvent,
          media_type="text/event-stream", streams=True),
]  # fmt: skip
