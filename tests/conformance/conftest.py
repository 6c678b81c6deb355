"""The engines that must keep the contract, and what each declares about itself.

An engine joins the suite by an entry in BACKENDS. Where engines may differ, the difference is a
field of Backend; a test that needs one side of it asks for a `needs_...` fixture.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psycopg
import pytest

import tenure
from tenure import Closed, Queue, Settings
from tenure.model.ops import Answer, Op
from tenure.queue import store_of
from tenure.testing import ManualClock
from tests.conformance.state import wrong_counts
from tests.server import host
from tests.server.host import Serve
from tests.support import audit_postgres, fdb, postgres, shards
from tests.support.audit import audit
from tests.support.reused import reused_connections

__all__ = ["reused_connections"]


class Backend(NamedTuple):
    """An engine under test. `folder` is a new, empty folder of each test."""

    url: Callable[[Path], str]
    durable: bool  # what was answered outlives the handle, and other handles see it
    strict_turns: bool  # tenants are served exactly in turns, not only on average
    exact_counts: bool  # counters are right before a Reconcile, too
    connect: Callable[[Path], Any] | None  # a caller's own connection, if it can be written through
    begin: str  # what begins a transaction on it
    audit: Callable[[Path], list[str]]  # looks into the store, past the engine, for what is wrong
    transfers: bool = True  # jobs can be exported and imported
    one_store: bool = True  # an operation or a limit may concern jobs of any tenants together
    serve: Serve | None = None  # starts what the engine speaks to, and answers with its URL
    drop: Callable[[Path], None] = lambda folder: None  # ends what is not in the folder


BACKENDS: dict[str, Backend] = {
    "memory": Backend(
        url=lambda folder: "memory://",
        durable=False,
        strict_turns=True,
        exact_counts=True,
        connect=None,
        begin="",
        audit=lambda folder: [],
    ),
    "sqlite": Backend(
        url=lambda folder: f"sqlite:///{folder}/jobs.db",
        durable=True,
        strict_turns=True,
        exact_counts=True,
        connect=lambda folder: sqlite3.connect(folder / "jobs.db"),
        begin="BEGIN IMMEDIATE",
        audit=lambda folder: audit(folder / "jobs.db") if (folder / "jobs.db").exists() else [],
    ),
    "shards": Backend(
        url=shards.url_of,
        durable=True,
        strict_turns=False,
        exact_counts=True,
        connect=lambda folder: sqlite3.connect(shards.file_of(folder, "")),
        begin="BEGIN IMMEDIATE",
        audit=shards.audit,
        one_store=False,
    ),
    "postgres-shards": Backend(
        url=shards.postgres_url_of,
        durable=True,
        strict_turns=False,
        exact_counts=True,
        connect=lambda folder: psycopg.connect(postgres.shared_url()),
        begin="BEGIN",
        audit=shards.audit_on_postgres,
        one_store=False,
        drop=shards.drop_on_postgres,
    ),
    "postgres": Backend(
        url=postgres.url_of,
        durable=True,
        strict_turns=True,
        exact_counts=True,
        connect=lambda folder: psycopg.connect(postgres.shared_url()),
        begin="BEGIN",
        audit=lambda folder: audit_postgres.audit(
            postgres.shared_url(), postgres.schema_of(folder)
        ),
        drop=postgres.give_back,
    ),
    "remote": Backend(
        url=lambda folder: "",
        durable=True,
        strict_turns=True,
        exact_counts=True,
        connect=None,
        begin="",
        audit=lambda folder: [],
        transfers=False,
        serve=host.serve,
        drop=host.close,
    ),
    "fdb-sim-faults": Backend(
        url=fdb.faulty_url,
        durable=True,
        strict_turns=False,
        exact_counts=True,
        connect=None,
        begin="",
        audit=fdb.audit,
    ),
}


if fdb.EVERYTHING:
    BACKENDS["fdb-sim"] = BACKENDS["fdb-sim-faults"]._replace(url=fdb.simulated_url)
if fdb.CLUSTER_FILE:
    BACKENDS["fdb"] = Backend(
        url=fdb.url_of,
        durable=True,
        strict_turns=False,
        exact_counts=True,
        connect=None,
        begin="",
        audit=fdb.audit_cluster,
    )


class OpenQueue(Protocol):
    """Opens a handle on the test's store, with settings of its own."""

    def __call__(self, **settings: Any) -> Queue: ...


class Apply(Protocol):
    """Applies operations in one batch, for what only operations can say."""

    def __call__(self, *batch: Op) -> list[Answer]: ...


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test has no variant for an engine on which it could only be skipped: thousands of them take
    long to collect."""
    if "backend" in metafunc.fixturenames:
        fits = [name for name in sorted(BACKENDS) if _applies(metafunc, BACKENDS[name])]
        said = [name for name in fits if fdb.EVERYTHING or _says_something(metafunc, name)]
        metafunc.parametrize("backend", said, indirect=True)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    if "postgres" in request.param:
        request.getfixturevalue("reused_connections")
    # The mark of a parameter, which is not known when the variants are made.
    if not BACKENDS[request.param].one_store and request.node.get_closest_marker("queue_limit"):
        pytest.skip("shards refuse what needs all tenants in one transaction")
    return BACKENDS[request.param]


def _applies(test: pytest.Metafunc, backend: Backend) -> bool:
    """Whether the engine has what the test is about. tests/engines/sharded shows what shards
    refuse, because it needs all tenants in one transaction."""
    needs = set(test.fixturenames)
    return (
        (backend.strict_turns or "needs_strict_turns" not in needs)
        and (backend.durable or "needs_durability" not in needs)
        and (backend.transfers or "needs_transfer" not in needs)
        and (backend.connect is not None or "connection" not in needs)
        and (backend.one_store or not _is_marked(test, "one_store", "queue_limit"))
    )


# What depends on the stores below the shards: batches, keyed calls, tokens, and moving jobs.
_ON_POSTGRES_SHARDS = ("test_batches", "test_once", "test_fencing", "test_transfer", "test_slots")


def _says_something(test: pytest.Metafunc, backend: str) -> bool:
    """Whether a test says something on this engine that it does not say on another. `make
    simulate` runs all of it."""
    if backend == "fdb-sim-faults" and _is_marked(test, "many_jobs"):
        return False  # too many for the simulation
    if backend not in ("memory", "sqlite") and _is_marked(test, "without_engine"):
        return False  # arguments are checked before an engine is asked
    if backend == "remote":
        return _is_marked(test, "over_http")  # behind the wire is an engine that has all of them
    if backend == "postgres-shards":  # shards on SQLite have all of them
        return test.definition.path.stem in _ON_POSTGRES_SHARDS
    return True


def _is_marked(test: pytest.Metafunc, *names: str) -> bool:
    return any(one.name in names for one in test.definition.iter_markers())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_queue(backend: Backend, clock: ManualClock, tmp_path: Path) -> Iterator[OpenQueue]:
    """Handles on one store (on a store each, where it is not durable); whatever a test did, the
    counters must equal a recount afterwards."""
    handles: list[Queue] = []

    def open_one(**settings: Any) -> Queue:
        url = backend.serve(tmp_path, clock) if backend.serve else backend.url(tmp_path)
        handles.append(tenure.connect(url, settings=Settings(**settings), clock=clock))
        return handles[-1]

    yield open_one
    for handle in handles:
        try:
            wrong = wrong_counts(handle, exact=backend.exact_counts)
        except Closed:
            wrong = []
        handle.close()
        assert wrong == []
    assert backend.audit(tmp_path) == []
    backend.drop(tmp_path)


@pytest.fixture
def queue(open_queue: OpenQueue) -> Queue:
    return open_queue()


@pytest.fixture
def apply(queue: Queue) -> Apply:
    def run(*batch: Op) -> list[Answer]:
        return store_of(queue).committer.run(batch)

    return run


@pytest.fixture
def needs_strict_turns() -> None:
    """For engines that do not serve tenants only fairly on average."""


@pytest.fixture
def needs_durability() -> None:
    """For engines that do not forget."""


@pytest.fixture
def needs_transfer() -> None:
    """For engines that export and import jobs."""


@pytest.fixture
def connection(backend: Backend, open_queue: OpenQueue, tmp_path: Path) -> Iterator[Any]:
    """A connection of the caller's own to the store, for engines that share one."""
    assert backend.connect is not None
    open_queue()  # makes the store
    own = backend.connect(tmp_path)
    yield own
    own.close()
