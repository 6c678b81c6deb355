"""The engine for a Tenure service: sends batches of operations over HTTP.

Each batch has a key, under which the service applies it once. So it can be sent again until a
response arrives, whatever happens on the way. Renewals of leases need no key: to repeat them does
no harm, and without one they wait for nothing but the stores of their own jobs.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.json import encode
from msgspec.structs import replace

from tenure.clock import Clock
from tenure.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    StoreError,
    TenureError,
)
from tenure.features import RESULTS
from tenure.model import ops, wire
from tenure.model.fields import MAX_OPS
from tenure.model.ops import Answer, Op
from tenure.model.queries import Found, Query, Together
from tenure.settings import Settings, without_secrets

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
log = logging.getLogger("tenure.remote")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between tries
ANSWER_SECONDS = 60.0  # for the service to respond to a request
CONNECT_SECONDS = 5.0  # for it to accept a connection
LISTEN_SECONDS = 25  # for the service to hold a request open without news
# TLS errors that retrying cannot fix.
HOPELESS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
LARGEST_BODY = 8 * 1_048_576  # bytes; larger batches are split
REJECTED = (400, 403, 409, 413)  # statuses: the service rejects the request
LATER = (429, 502, 503, 504)  # statuses: a later try may succeed


class _Problem(msgspec.Struct):
    """The service's description of an error."""

    code: str = "store_error"
    detail: str = ""
    carries: dict[str, Any] = {}


class _Sent(msgspec.Struct, omit_defaults=True):
    """Operations as sent."""

    ops: list[Op]
    key: str | None = None
    fingerprint: str | None = None


class _Answered(msgspec.Struct):
    answers: msgspec.Raw


class _Found(msgspec.Struct):
    found: msgspec.Raw


class _Rejected(Exception):
    """The service rejected a request and changed nothing."""

    def __init__(self, error: TenureError) -> None:
        self.error = error


class _Failed(Exception):
    """A try failed; the request may have been served anyway."""

    def __init__(self, error: TenureError, *, again: bool, served: bool) -> None:
        self.error = error
        self.again = again  # whether another try makes sense
        self.served = served


class RemoteEngine:
    """Jobs of a service, over HTTP."""

    in_flight = 2  # requests: claims do not wait for other operations, nor these for claims

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        self._url = url.rstrip("/")
        self._shown = without_secrets(self._url)
        self._settings = settings
        self._clock = clock
        self._closed = threading.Event()
        self._away = False  # the service, as far as the log says
        self._client = _client(self._url, settings)

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> RemoteEngine:
        host = urlsplit(url).hostname or ""
        if settings.token and url.startswith("http:") and not is_loopback(host):
            log.warning("the token is sent to %s as plain text; use https://", host)
        return cls(url, settings, clock)

    # path: operations sent
    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for has_key, some in groupby(batch, key=lambda op: isinstance(op, ops.Once)):
                if not has_key:
                    plain = list(some)
                    renews = all(type(op) is ops.Extend for op in plain)
                    self._send(plain, None if renews else uuid.uuid4().hex, answers)
                    continue
                for once in some:
                    assert isinstance(once, ops.Once)
                    answers.append(self._send_once(once))
        except TenureError as error:
            if not answers:
                raise
            # Earlier parts are applied: only the rest has failed.
            answers += [error] * (len(batch) - len(answers))
        return answers

    # path: a request
    def _send(self, batch: list[Op], key: str | None, answers: list[Answer]) -> None:
        """Apply operations under a key, and append their results. They are split if they are too
        large for one request, or if the service rejects some of them."""
        body = encode(_Sent(batch, key))
        alone = len(batch) == 1
        if alone or (len(body) <= LARGEST_BODY and len(batch) <= MAX_OPS):
            try:
                answers += self._post("/v1/ops", body, partial(_answers_of, len(batch)))
            except _Rejected as rejected:
                if alone:
                    answers.append(rejected.error)
                    return
            else:
                return
        half = len(batch) // 2
        self._send(batch[:half], key and f"{key}-a", answers)
        self._send(batch[half:], key and f"{key}-b", answers)

    def _send_once(self, once: ops.Once) -> Answer:
        """Like `_send`, under the caller's own key. This is one operation: it is not split if the
        service rejects it, and its parts keep their keys when sent again."""
        answers: list[Answer] = []
        for part in _parts(_Sent(list(once.ops), once.key, once.fingerprint or None)):
            try:
                answers += self._post("/v1/ops", encode(part), partial(_answers_of, len(part.ops)))
            except _Rejected as rejected:
                return rejected.error
        return ops.Answers(answers)

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        raise InvalidInput("connection", "a service has no connections to share")

    # path: a query sent
    def read(self, query: Query) -> Found:
        if isinstance(query, Together):
            return [self.read(one) for one in query.queries]
        body = encode({"query": query})
        try:
            return self._post("/v1/query", body, partial(_found_of, RESULTS[type(query)]))
        except _Rejected as rejected:
            return rejected.error

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        stopped = threading.Event()
        threading.Thread(
            target=self._listen, args=(wake, stopped), name="tenure-listen", daemon=True
        ).start()
        return stopped.set

    def _listen(self, wake: Callable[[], None], stopped: threading.Event) -> None:
        seen, pause = "", FIRST_PAUSE
        while not stopped.is_set() and not self._closed.is_set():
            try:
                params = {"since": seen, "wait": str(LISTEN_SECONDS)}
                response = self._client.get("/v1/changes", params=params)
                response.raise_for_status()
                version = response.json()["version"]
                pause = FIRST_PAUSE
            except Exception as error:
                # The error will surface when a caller polls or is woken.
                log.debug("cannot listen to %s: %s", self._shown, error)
                stopped.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if version != seen:
                seen = version
                wake()

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    def _post(self, path: str, body: bytes, decode: Callable[[bytes], T]) -> T:
        """Send a request until its complete response has arrived, for at most the busy timeout.
        Raises _Rejected if the service certainly did not apply it."""
        deadline = self._clock.monotonic() + self._settings.busy_timeout
        pause = FIRST_PAUSE
        served = False  # possibly, by a try whose response was lost
        while True:
            try:
                answer = self._try(path, body, decode)
            except _Rejected as rejected:
                if served:
                    raise _unknown(rejected.error) from None
                raise
            except _Failed as failed:
                served = served or (failed.served and path == "/v1/ops")
                over = self._clock.monotonic() + pause > deadline
                if failed.again:
                    self._is_away(failed.error)
                if over or not failed.again or self._closed.is_set():
                    raise (_unknown(failed.error) if served else failed.error) from None
            else:
                self._is_back()
                return answer
            self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _is_away(self, error: TenureError) -> None:
        """Say that requests fail and are sent again: once, until one succeeds."""
        if not self._away:
            self._away = True
            log.warning("%s; trying again for %g s", error, self._settings.busy_timeout)

    def _is_back(self) -> None:
        if self._away:
            self._away = False
            log.info("%s answers again", self._shown)

    def _try(self, path: str, body: bytes, decode: Callable[[bytes], T]) -> T:
        import httpx

        try:
            response = self._client.post(path, content=body)
        except httpx.HTTPError as error:
            hopeless = any(reason in str(error) for reason in HOPELESS)
            unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
            sent = not isinstance(error, unsent)
            raise _Failed(self._unreachable(error), again=not hopeless, served=sent) from None
        status = response.status_code
        if status < 300:
            try:
                return decode(response.content)
            except Exception as error:  # whatever is wrong with it, the response is lost
                cut = StoreError(f"{self._shown} sent a response that cannot be read: {error}")
                raise _Failed(cut, again=True, served=True) from None
        failed = _error_of(response)
        if status in REJECTED or isinstance(failed, NotFound):
            raise _Rejected(failed)
        if status == 500 or isinstance(failed, OutcomeUnknown):
            raise _Failed(failed, again=status != 500, served=True)
        raise _Failed(failed, again=status in LATER, served=status in (502, 504))

    def _unreachable(self, error: httpx.HTTPError) -> StoreError:
        """The error, with its likely cause."""
        import httpx

        text, hint = str(error) or type(error).__name__, ""
        if "CERTIFICATE_VERIFY_FAILED" in text:
            hint = "; if it is signed by a private CA, set SSL_CERT_FILE"
        elif any(reason in text for reason in HOPELESS):
            hint = "; if the server does not use TLS, use http://"
        elif isinstance(error, httpx.RemoteProtocolError) and self._url.startswith("http:"):
            hint = "; if it speaks TLS, its URL begins with https://"
        return StoreError(f"{self._shown} cannot be reached: {text}{hint}")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is that of this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _client(url: str, settings: Settings) -> httpx.Client:
    try:
        import httpx
    except ImportError:
        raise InvalidInput("url", "http:// needs httpx: pip install 'tenure[remote]'") from None
    headers = {"content-type": "application/json"}
    if settings.token:
        headers["authorization"] = f"Bearer {settings.token}"
    certificates = url.startswith("https:")  # loading them takes a while
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    options: dict[str, Any] = {"timeout": timeout, "verify": certificates}
    try:
        return httpx.Client(base_url=url, headers=headers, **options)
    except OSError as error:
        reason = f"the certificates to trust cannot be read: {error}"
        raise InvalidInput("SSL_CERT_FILE", reason) from None


def _parts(sent: _Sent) -> Iterator[_Sent]:
    """Split into requests, under keys derived from the batch's own."""
    fits = len(sent.ops) <= MAX_OPS and len(encode(sent)) <= LARGEST_BODY
    if len(sent.ops) < 2 or fits:
        yield sent
        return
    half = len(sent.ops) // 2
    yield from _parts(replace(sent, ops=sent.ops[:half], key=f"{sent.key}-a"))
    yield from _parts(replace(sent, ops=sent.ops[half:], key=f"{sent.key}-b"))


def _answers_of(expected: int, text: bytes) -> list[Answer]:
    raw = msgspec.json.decode(text, type=_Answered).answers
    answers = wire.decode_answers(bytes(raw))
    if len(answers) != expected:
        raise msgspec.DecodeError(f"{len(answers):,} answers to {expected:,} operations")
    return answers


def _found_of(kind: Any, text: bytes) -> Found:
    raw = bytes(msgspec.json.decode(text, type=_Found).found)
    found: Found = msgspec.json.decode(raw, type=kind)
    return found


def _unknown(error: TenureError) -> OutcomeUnknown:
    return OutcomeUnknown(f"{error.message}; it may have happened anyway")


def _error_of(response: httpx.Response) -> TenureError:
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.DecodeError:
        status, said = response.status_code, response.text[:200]
        problem = _Problem(detail=f"the service answered {status}: {said!r}")
    if response.status_code == 413 and problem.code != PayloadTooLarge.code:
        return PayloadTooLarge("request", problem.detail)  # as a whole, or for a proxy
    carried = {"message": problem.detail, "details": {}} | problem.carries
    return wire.error_of(wire.Refused(problem.code, problem.detail, carried))
