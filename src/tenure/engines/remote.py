"""Another Tenure's service as an engine: batches of operations are posted to it.

Each batch has a key, under which the service applies it once. So whatever happens on the way, it
can be sent again until its answer has come.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from tenure import ops, wire
from tenure.clock import Clock
from tenure.errors import Busy, InvalidInput, StoreError, TenureError
from tenure.job import Job
from tenure.ops import Answer, Found, Op, Query
from tenure.settings import Settings

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("tenure.remote")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between tries
ANSWER_SECONDS = 60.0  # that the service may take for one request
LISTEN_SECONDS = 25  # that it holds back the news that there is none
# What TLS says where the other side does not fit, and will not fit later.
HOPELESS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
LARGEST_BODY = 8 * 1_048_576  # bytes; more is sent in parts

_FOUND: dict[type[Query], Any] = {
    ops.GetJob: Job,
    ops.ListJobs: ops.Page,
    ops.FindIds: ops.Ids,
    ops.NextDue: ops.Due,
    ops.OldestReady: ops.Due,
    ops.GetStats: list[ops.QueueStats],
    ops.ListTenants: list[ops.TenantStats],
    ops.ListGroups: list[ops.GroupStats],
    ops.ListLimits: list[ops.Limit],
    ops.ListSlots: list[ops.Slot],
    ops.ListSchedules: list[ops.Schedule],
    ops.GetTimetable: ops.Timetable,
}


class _Problem(msgspec.Struct):
    """What the service says when it cannot."""

    code: str = "store_error"
    detail: str = ""
    carries: dict[str, Any] = {}


class _Answered(msgspec.Struct):
    answers: msgspec.Raw


class _Found(msgspec.Struct):
    found: msgspec.Raw


class RemoteEngine:
    """Jobs of a service, over HTTP."""

    in_flight = 1

    def __init__(self, url: str, settings: Settings, clock: Clock) -> None:
        self._url = url.rstrip("/")
        self._settings = settings
        self._clock = clock
        self._closed = threading.Event()
        self._client = _client(self._url, settings)

    @classmethod
    def open(cls, url: str, settings: Settings, clock: Clock) -> RemoteEngine:
        return cls(url, settings, clock)

    def apply(self, batch: Sequence[Op]) -> list[Answer]:
        answers: list[Answer] = []
        for has_key, some in groupby(batch, key=lambda op: isinstance(op, ops.Once)):
            if not has_key:
                answers += self._send(list(some), uuid.uuid4().hex)
                continue
            for once in some:
                assert isinstance(once, ops.Once)
                answers.append(ops.Answers(self._send(list(once.ops), once.key)))
        return answers

    def _send(self, batch: list[Op], key: str) -> list[Answer]:
        """Have operations applied under a key; in parts, if they are too many for one request."""
        body = msgspec.json.encode({"key": key, "ops": batch})
        if len(body) > LARGEST_BODY and len(batch) > 1:
            half = len(batch) // 2
            return self._send(batch[:half], f"{key}-a") + self._send(batch[half:], f"{key}-b")
        text = self._post("/v1/ops", body)
        return wire.decode_answers(bytes(msgspec.json.decode(text, type=_Answered).answers))

    def apply_within(self, connection: Any, batch: Sequence[Op]) -> list[Answer]:
        raise InvalidInput("connection", "a service has no connections to share")

    def read(self, query: Query) -> Found:
        try:
            text = self._post("/v1/query", msgspec.json.encode({"query": query}))
        except (StoreError, Busy):
            raise
        except TenureError as error:
            return error
        raw = bytes(msgspec.json.decode(text, type=_Found).found)
        found: Found = msgspec.json.decode(raw, type=_FOUND[type(query)])
        return found

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
                # Whoever is woken, or looks by itself after a while, will meet it and say so.
                log.debug("cannot listen to %s: %s", self._url, error)
                stopped.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if version != seen:
                seen = version
                wake()

    def close(self) -> None:
        self._closed.set()
        self._client.close()

    def _post(self, path: str, body: bytes) -> bytes:
        """Send a request until it is answered, for as long as a busy store is waited for."""
        import httpx

        deadline = self._clock.monotonic() + self._settings.busy_timeout
        pause = FIRST_PAUSE
        while True:
            try:
                response = self._client.post(path, content=body)
            except httpx.HTTPError as error:
                failed: TenureError = self._unreachable(error)
                if any(reason in str(error) for reason in HOPELESS):
                    raise failed from None
            else:
                if response.status_code < 300:
                    return response.content
                failed = _error_of(response)
                if response.status_code not in (429, 502, 503, 504):
                    raise failed
            if self._clock.monotonic() + pause > deadline:
                raise failed
            self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _unreachable(self, error: httpx.HTTPError) -> StoreError:
        """The error, and what may be behind it."""
        import httpx

        text, hint = str(error) or type(error).__name__, ""
        if "CERTIFICATE_VERIFY_FAILED" in text:
            hint = "; if it is signed by your own authority, name that in SSL_CERT_FILE"
        elif any(reason in text for reason in HOPELESS):
            hint = "; if it does not speak TLS, its URL begins with http://"
        elif isinstance(error, httpx.RemoteProtocolError) and self._url.startswith("http:"):
            hint = "; if it speaks TLS, its URL begins with https://"
        return StoreError(f"{self._url} cannot be reached: {text}{hint}")


def _client(url: str, settings: Settings) -> httpx.Client:
    try:
        import httpx
    except ImportError:
        raise InvalidInput("url", "http:// needs httpx: pip install 'tenure[remote]'") from None
    headers = {"content-type": "application/json"}
    if settings.token:
        headers["authorization"] = f"Bearer {settings.token}"
    certificates = url.startswith("https:")  # to load them takes a while
    options: dict[str, Any] = {"timeout": ANSWER_SECONDS, "verify": certificates}
    try:
        return httpx.Client(base_url=url, headers=headers, **options)
    except OSError as error:
        reason = f"the certificates to trust cannot be read: {error}"
        raise InvalidInput("SSL_CERT_FILE", reason) from None


def _error_of(response: httpx.Response) -> TenureError:
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.DecodeError:
        return StoreError(f"the service answered {response.status_code}: {response.text[:200]!r}")
    carried = {"message": problem.detail, "details": {}} | problem.carries
    return wire.error_of(wire.Refused(problem.code, problem.detail, carried))
