"""What a client makes of each answer of its service: whether it asks again, for how long, and
whether what it asked for may have happened."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import httpx
import pytest

from tenure import Settings, errors
from tenure.engines import remote
from tenure.engines.remote import RemoteEngine
from tenure.errors import Busy, InvalidInput, OutcomeUnknown, StoreError, TenureError, Unauthorized
from tenure.model import ops, queries, wire
from tenure.model.job import NULL, JobSpec
from tenure.testing import ManualClock
from tests.support.sizes import let

ENQUEUE = ops.Enqueue((JobSpec("a", "q", NULL),))
Respond = Callable[[httpx.Request], httpx.Response]


class Service:
    """A client whose requests get the same response again and again."""

    def __init__(self, respond: Respond) -> None:
        self.clock = ManualClock()
        self.asked_at: list[float] = []
        self._respond = respond
        self.engine = RemoteEngine("http://service", Settings(busy_timeout=10), self.clock)
        self.engine._client = httpx.Client(
            base_url="http://service", transport=httpx.MockTransport(self._handle)
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked_at.append(self.clock.monotonic())
        return self._respond(request)


def saying(status: int, code: str) -> Respond:
    return lambda _: httpx.Response(status, json={"code": code, "detail": "no"})


def raising(error: type[httpx.HTTPError], text: str = "no") -> Respond:
    def respond(request: httpx.Request) -> httpx.Response:
        raise error(text)

    return respond


ONCE, AGAIN = False, True
# The answer, what an operation meets then, what a query meets, and whether they are sent again.
ANSWERS: list[tuple[Respond, type[TenureError], type[TenureError], bool]] = [
    (saying(500, "store_error"), OutcomeUnknown, StoreError, ONCE),
    (saying(503, "outcome_unknown"), OutcomeUnknown, OutcomeUnknown, AGAIN),
    (saying(503, "store_error"), StoreError, StoreError, AGAIN),
    (saying(502, "store_error"), OutcomeUnknown, StoreError, AGAIN),
    (saying(504, "store_error"), OutcomeUnknown, StoreError, AGAIN),
    (saying(429, "busy"), Busy, Busy, AGAIN),
    (saying(401, "unauthorized"), Unauthorized, Unauthorized, ONCE),
    (raising(httpx.ConnectError), StoreError, StoreError, AGAIN),
    (raising(httpx.ConnectTimeout), StoreError, StoreError, AGAIN),
    (raising(httpx.PoolTimeout), StoreError, StoreError, AGAIN),
    (raising(httpx.ReadTimeout), OutcomeUnknown, StoreError, AGAIN),
    (raising(httpx.ReadError, "WRONG_VERSION_NUMBER"), OutcomeUnknown, StoreError, ONCE),
]


@pytest.mark.parametrize(("respond", "error", "_", "again"), ANSWERS)
def test_an_operation_that_fails_is_sent_again_where_that_may_help(
    respond: Respond, error: type[TenureError], _: type[TenureError], again: bool
) -> None:
    service = Service(respond)
    with pytest.raises(TenureError) as raised:
        service.engine.apply([ENQUEUE])
    assert type(raised.value) is error
    assert (len(service.asked_at) > 1) == again


@pytest.mark.parametrize(("respond", "_", "error", "again"), ANSWERS)
def test_a_query_that_fails_never_is_unsure_about_what_happened(
    respond: Respond, _: type[TenureError], error: type[TenureError], again: bool
) -> None:
    service = Service(respond)
    with pytest.raises(TenureError) as raised:
        service.engine.read(queries.GetStats())
    assert type(raised.value) is error
    assert (len(service.asked_at) > 1) == again


@pytest.mark.parametrize("status", [400, 403, 409, 413])
def test_what_the_service_rejects_is_the_answer_and_not_sent_again(status: int) -> None:
    service = Service(saying(status, "payload_too_large"))
    (answer,) = service.engine.apply([ENQUEUE])
    assert type(answer) is errors.PayloadTooLarge
    assert len(service.asked_at) == 1


def test_a_proxy_that_rejects_a_request_as_too_large_is_understood() -> None:
    service = Service(lambda _: httpx.Response(413, text="<html>too large</html>"))
    (answer,) = service.engine.apply([ENQUEUE])
    assert type(answer) is errors.PayloadTooLarge


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("192.168.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_a_host_is_this_machine_by_its_name_or_address(host: str, expected: bool) -> None:
    assert remote.is_loopback(host) is expected


def test_what_is_not_found_is_the_answer_of_a_query() -> None:
    service = Service(saying(404, "queue_not_found"))
    assert type(service.engine.read(queries.GetStats("q"))) is errors.QueueNotFound
    assert len(service.asked_at) == 1


def test_a_service_is_asked_less_and_less_often_and_not_beyond_the_patience_of_a_caller() -> None:
    service = Service(saying(503, "store_error"))
    with pytest.raises(StoreError):
        service.engine.apply([ENQUEUE])
    began = service.asked_at[0]
    times = [round(at - began, 3) for at in service.asked_at]
    assert times == [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 5.15, 7.15, 9.15]


def test_a_call_that_is_too_large_for_a_request_is_sent_in_parts_down_to_an_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let(monkeypatch, bytes_of_a_request=10)
    keys: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        keys.append(sent["key"])
        answers = wire.encode([ops.Ok() for _ in sent["ops"]])
        return httpx.Response(200, content=b'{"answers":' + answers + b"}")

    service = Service(respond)
    answers = service.engine.apply([ops.Once("k", (ENQUEUE, ENQUEUE, ENQUEUE))])
    assert answers == [ops.Answers([ops.Ok()] * 3)]
    assert keys == ["k-a", "k-b-a", "k-b-b"]


def test_a_call_that_fits_into_a_request_is_sent_in_one() -> None:
    sent: list[int] = []

    def respond(request: httpx.Request) -> httpx.Response:
        sent.append(len(json.loads(request.content)["ops"]))
        answers = wire.encode([ops.Ok() for _ in range(sent[-1])])
        return httpx.Response(200, content=b'{"answers":' + answers + b"}")

    service = Service(respond)
    assert service.engine.apply([ENQUEUE] * 3) == [ops.Ok()] * 3
    assert sent == [3]


def test_only_renewals_are_sent_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """They can be repeated, and a key would be stored with other jobs than theirs."""
    keys: list[list[str | None]] = [[]]

    def respond(request: httpx.Request) -> httpx.Response:
        sent = json.loads(request.content)
        keys[-1].append(sent.get("key"))
        answers = wire.encode([ops.Ok() for _ in sent["ops"]])
        return httpx.Response(200, content=b'{"answers":' + answers + b"}")

    service = Service(respond)
    extend = ops.Extend("a", 1, 1_000)
    assert service.engine.apply([extend, extend]) == [ops.Ok()] * 2
    assert keys == [[None]]
    service.engine.apply([extend, ops.Ack("a", 1)])
    assert keys[0][1] is not None
    let(monkeypatch, bytes_of_a_request=10)
    keys.append([])
    service.engine.apply([extend, extend])
    assert keys[1] == [None, None]


class Stopped(threading.Event):
    """Remembers how long was waited for it, and is set after so many waits, or many looks."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._looks = 0
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        return self.is_set()

    def is_set(self) -> bool:
        self._looks += 1
        return len(self.waits) >= self._most or self._looks > 100


def test_a_service_that_is_away_is_listened_to_less_and_less_often() -> None:
    responses = [raising(httpx.ConnectError)] * 3 + [lambda _: version("a")]
    left = iter(responses + [raising(httpx.ConnectError)] * 100)
    service = Service(lambda request: next(left)(request))
    stopped = Stopped(10)
    service.engine._listen(lambda: None, stopped)
    assert stopped.waits == [0.05, 0.1, 0.2, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_who_listens_is_woken_when_the_version_is_another() -> None:
    versions = iter(["a", "a", "b", "b", "a"])
    service = Service(lambda _: version(next(versions)))
    woken: list[int] = []
    service.engine._listen(lambda: woken.append(len(service.asked_at)), Stopped(1))
    assert woken == [1, 3, 5]


def version(name: str) -> httpx.Response:
    return httpx.Response(200, json={"version": name})


def test_a_service_that_is_down_does_not_make_unsure_what_never_reached_it() -> None:
    answers = iter([saying(429, "busy"), raising(httpx.ConnectError), saying(400, "invalid")])
    service = Service(lambda request: next(answers)(request))
    (answer,) = service.engine.apply([ENQUEUE])
    assert type(answer) is InvalidInput


def test_what_may_have_happened_stays_so_whatever_is_said_later() -> None:
    answers = iter([raising(httpx.ReadTimeout), saying(503, "store_error"), saying(401, "no")])
    service = Service(lambda request: next(answers)(request))
    with pytest.raises(OutcomeUnknown):
        service.engine.apply([ENQUEUE])
