"""A service over a queue, asked without a network, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

import tenure
from tenure import Job, Queue, Settings
from tenure.server.auth import Scope, Token, Tokens, hash_of
from tenure.server.routes import DIALECTS, make_app
from tenure.server.service import Service
from tenure.testing import ManualClock
from tests.support import fdb

T = TypeVar("T")

# The engines that every dialect runs on; others join by an entry.
ENGINES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory://",
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    **({"fdb-sim-faults": fdb.faulty_url} if fdb.EVERYTHING else {}),
    **({"fdb": fdb.url_of} if fdb.CLUSTER_FILE else {}),
}


class Asked:
    """An answer: its status, its JSON and its headers."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.content = response.content
        self.kind = response.headers.get("content-type", "")

    @property
    def json(self) -> Any:
        return httpx.Response(200, content=self.content).json()

    def __repr__(self) -> str:
        return f"<{self.status} {self.content[:500]!r}>"


class Client:
    """Asks a service."""

    def __init__(self, service: Service, runner: asyncio.Runner, token: str | None = None) -> None:
        self.service = service
        self._runner = runner
        self.token = token

    def as_(self, token: str | None) -> Client:
        """The same, with another token."""
        return Client(self.service, self._runner, token)

    def ask(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Asked:
        headers = dict(headers or {})
        if self.token is not None:
            headers.setdefault("authorization", f"Bearer {self.token}")
        return self._runner.run(self._ask(method, path, json, content, headers))

    async def _ask(
        self, method: str, path: str, json: Any, content: bytes | None, headers: dict[str, str]
    ) -> Asked:
        transport = httpx.ASGITransport(self.service, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenure") as client:
            given = {} if json is None else {"json": json}
            if content is not None:
                given = {"content": content}
                headers.setdefault("content-type", "application/json")
            return Asked(await client.request(method, path, headers=headers, **given))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop of the service."""
        return self._runner.run(work)

    def get(self, path: str, **options: Any) -> Any:
        """The JSON of a GET that works."""
        return self._good(self.ask("GET", path, **options))

    def post(self, path: str, json: Any = None, **options: Any) -> Any:
        """The JSON of a POST that works."""
        return self._good(self.ask("POST", path, json, **options))

    def put(self, path: str, json: Any = None) -> Any:
        return self._good(self.ask("PUT", path, json))

    def delete(self, path: str, json: Any = None) -> Any:
        return self._good(self.ask("DELETE", path, json))

    def _good(self, asked: Asked) -> Any:
        assert 200 <= asked.status < 300, asked
        assert asked.kind == "application/json", asked
        return asked.json


Serve = Callable[..., Client]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=sorted(ENGINES))
def queue(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Queue]:
    url = ENGINES[request.param](tmp_path)
    with tenure.connect(url, settings=Settings(), clock=clock) as queue:
        yield queue


@pytest.fixture
def serve(queue: Queue) -> Iterator[Serve]:
    """Starts a service with some dialects and tokens, and answers with a client of it."""
    services: list[Service] = []
    with asyncio.Runner() as runner:

        def start(
            dialects: Iterable[str] = tuple(DIALECTS),
            tokens: Iterable[Token] = (),
            **options: Any,
        ) -> Client:
            service = make_app(queue, tokens=Tokens(tokens), dialects=dialects, **options)
            services.append(service)
            return Client(service, runner)

        yield start
        for service in services:
            service.close()


@pytest.fixture
def client(serve: Serve) -> Client:
    """A service with all dialects and without tokens."""
    return serve()


def token(
    secret: str,
    *scopes: Scope,
    queues: tuple[str, ...] | None = None,
    tenants: tuple[str, ...] | None = None,
) -> Token:
    """A token that the service knows by its hash."""
    return Token(secret, hash_of(secret), scopes or (Scope.ADMIN,), queues, tenants)


def all_jobs(queue: Queue) -> list[Job]:
    """Every job, the first enqueued first."""
    return queue.jobs(limit=10_000).jobs[::-1]
