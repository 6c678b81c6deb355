"""Opening fdb:// says what is missing; the rest of Tenure needs none of it."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

import tenure
from tenure import InvalidInput, StoreError, WrongVersion
from tenure.engines.foundationdb import binding, formats
from tenure.engines.foundationdb import keys as k
from tenure.engines.foundationdb.engine import FoundationDbEngine
from tenure.engines.foundationdb.transaction import Transaction
from tenure.model import ops, queries
from tenure.settings import Settings
from tenure.testing import ManualClock
from tests import fdb_sim
from tests.support.sizes import let


def test_importing_tenure_loads_neither_the_binding_nor_the_engine() -> None:
    code = (
        "import sys, tenure; "
        "sys.exit(any(name == 'fdb' or 'foundationdb' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_binding_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "fdb", None)
    with pytest.raises(StoreError, match=r"pip install 'tenure\[fdb\]'"):
        tenure.connect("fdb:///etc/foundationdb/fdb.cluster")


def test_without_the_c_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def api_version(version: int) -> None:
        raise OSError("libfdb_c.so: cannot open shared object file")

    module: Any = types.ModuleType("fdb")
    module.api_version = api_version
    monkeypatch.setitem(sys.modules, "fdb", module)
    with pytest.raises(StoreError, match="foundationdb-clients"):
        tenure.connect("fdb://")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("fdb://", (None, ("tenure",))),
        ("fdb:///", (None, ("tenure",))),
        ("fdb:///?directory=x", (None, ("x",))),
        ("fdb:///etc/fdb.cluster", ("/etc/fdb.cluster", ("tenure",))),
        ("fdb:///a%20b/fdb.cluster?directory=x/y", ("/a b/fdb.cluster", ("x", "y"))),
        ("fdb://?directory=x", (None, ("x",))),
    ],
)
def test_a_url_names_a_cluster_file_and_a_directory(url: str, expected: object) -> None:
    assert binding.parse(url) == expected


@pytest.mark.parametrize("url", ["fdb://host/path", "fdb:///path?prefix=x"])
def test_a_url_that_names_something_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url"):
        binding.parse(url)


def test_a_store_of_a_newer_tenure_is_refused() -> None:
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock)
    db.set(engine._store.keys.pack(k.FORMAT), b"tenure %d" % (formats.FORMAT + 1))
    with pytest.raises(WrongVersion, match="newer Tenure"):
        FoundationDbEngine(fdb_sim, db, Settings(), clock)


@pytest.mark.parametrize("value", [b"1", b"1 key", b"2", b"3"])
def test_a_store_of_the_time_before_the_first_release_is_left_alone(value: bytes) -> None:
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock)
    db.set(engine._store.keys.pack(k.FORMAT), value)
    before = [(bytes(row.key), bytes(row.value)) for row in db.get_range(b"", b"\xff")]
    with pytest.raises(WrongVersion, match=r"before its first release.*another directory"):
        FoundationDbEngine(fdb_sim, db, Settings(), clock)
    assert [(bytes(row.key), bytes(row.value)) for row in db.get_range(b"", b"\xff")] == before


def test_a_store_of_an_older_format_is_migrated_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a migration that was broken off goes on where it ended."""
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    engine = FoundationDbEngine(fdb_sim, db, Settings(), clock)
    key = engine._store.keys.pack(k.FORMAT)
    begun: list[bytes] = []

    def to_the_next(tx: Transaction, place: bytes) -> bytes | None:
        begun.append(place)
        return b"%d" % len(begun) if len(begun) < 4 else None

    older = formats.FORMAT
    let(monkeypatch, format_of_fdb=older + 1)
    monkeypatch.setitem(formats.MIGRATIONS, older, to_the_next)
    for _ in range(2):
        engine._transactor.run(formats._step)
    assert db.get(key) == b"tenure %d 2" % older
    FoundationDbEngine(fdb_sim, db, Settings(), clock)
    assert db.get(key) == b"tenure %d" % (older + 1)
    FoundationDbEngine(fdb_sim, db, Settings(), clock)
    assert begun == [b"", b"1", b"2", b"3"]


def test_two_directories_of_a_cluster_are_two_stores() -> None:
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    one = FoundationDbEngine(fdb_sim, db, Settings(), clock, directory=("a",))
    two = FoundationDbEngine(fdb_sim, db, Settings(), clock, directory=("b", "c"))
    one.apply([ops.SetLimit("q", concurrency=1)])
    assert len(one.read(queries.GetStats())) == 1  # type: ignore[arg-type]
    assert two.read(queries.GetStats()) == []


def test_a_directory_that_belongs_to_another_layer_is_refused() -> None:
    clock = ManualClock()
    db = fdb_sim.open(clock=clock)
    tr = db.create_transaction()
    fdb_sim.directory.create_or_open(tr, ("shared",), b"somebody's")
    tr.commit().wait()
    with pytest.raises(StoreError, match="'shared' cannot be used"):
        FoundationDbEngine(fdb_sim, db, Settings(), clock, directory=("shared",))
