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


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    name: str = request.param
    if not fdb.EVERYTHING:
        _skip_what_says_little(request.node, name)
    if not BACKENDS[name].one_store:
        _skip_what_is_refused(request.node)
    return BACKENDS[name]


def _skip_what_is_refused(test: pytest.Item) -> None:
    """tests/engines/sharded shows that it is refused."""
    for name in ("one_store", "queue_limit"):
        if test.get_closest_marker(name):
            pytest.skip("shards refuse what needs all tenants in one transaction")


# What depends on the stores below the shards: batches, keyed calls, tokens, and moving jobs.
_ON_POSTGRES_SHARDS = ("test_batches", "test_once", "test_fencing", "test_transfer", "test_slots")


def _skip_what_says_little(test: pytest.Item, backend: str) -> None:
    """`make simulate` runs all of it."""
    if backend == "fdb-sim-faults" and test.get_closest_marker("many_jobs"):
        pytest.skip("too many jobs for the simulation")
    if backend not in ("memory", "sqlite") and test.get_closest_marker("without_engine"):
        pytest.skip("arguments are checked before an engine is asked")
    if backend == "remote" and not test.get_closest_marker("over_http"):
        pytest.skip("behind the wire is an engine that has all of them")
    if backend == "postgres-shards" and test.path.stem not in _ON_POSTGRES_SHARDS:
        pytest.skip("shards on SQLite have all of them")


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
def needs_strict_turns(backend: Backend) -> None:
    if not backend.strict_turns:
        pytest.skip("this engine serves tenants fairly on average")


@pytest.fixture
def needs_durability(backend: Backend) -> None:
    if not backend.durable:
        pytest.skip("this engine forgets")


@pytest.fixture
def needs_transfer(backend: Backend) -> None:
    if not backend.transfers:
        pytest.skip("this engine neither exports nor imports jobs")


@pytest.fixture
def connection(backend: Backend, open_queue: OpenQueue, tmp_path: Path) -> Iterator[Any]:
    """A connection of the caller's own to the store."""
    if backend.connect is None:
        pytest.skip("this engine has no connections to share")
    open_queue()  # makes the store
    own = backend.connect(tmp_path)
    yield own
    own.close()
