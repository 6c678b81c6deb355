"""Our directory layer reads what the official one wrote, and gives out prefixes as it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.fdb_sim import DirectoryLayer

# Written by the official directory layer, release 7.3.79, on the simulation: every row, and the
# prefix of each path.
_RECORDED = json.loads((Path(__file__).parent / "directories.json").read_text())


def _written() -> fdb_sim.Database:
    db = fdb_sim.open(clock=ManualClock())
    tr = db.create_transaction()
    for key, value in _RECORDED["rows"]:
        tr.set(bytes.fromhex(key), bytes.fromhex(value))
    tr.commit().wait()
    return db


@pytest.fixture
def layer() -> DirectoryLayer:
    return DirectoryLayer()


def test_a_directory_of_the_official_layer_is_opened_at_its_prefix(layer: DirectoryLayer) -> None:
    tr = _written().create_transaction()
    assert len(_RECORDED["opened"]) == 4
    for path, prefix in _RECORDED["opened"].items():
        assert layer.open(tr, tuple(path.split("/"))).key().hex() == prefix
    assert layer.exists(tr, ("other",))
    assert not layer.exists(tr, ("tenure", "other"))


def test_the_same_rows_are_written_as_by_the_official_layer() -> None:
    """But for the prefixes, which are drawn by chance, and what the allocator remembers of them."""
    db = fdb_sim.open(clock=ManualClock())
    layer = DirectoryLayer()
    prefixes = {}
    for path in _RECORDED["opened"]:
        tr = db.create_transaction()
        prefixes[path] = layer.create_or_open(tr, tuple(path.split("/"))).key()
        tr.commit().wait()
    tr = db.create_transaction()
    parent = layer.open(tr, ("other",))
    assert len({*prefixes.values(), parent.key()}) == 5
    ours = [bytes(row.key).hex() for row in db.get_range(None, None)]
    theirs = [key for key, _ in _RECORDED["rows"]]
    structure = [bytes.hex(part) for part in (b"version", b"layer", b"tenure", b"other")]
    for part in structure:
        assert sum(part in key for key in ours) == sum(part in key for key in theirs)


def test_three_hundred_directories_have_prefixes_apart(layer: DirectoryLayer) -> None:
    db = fdb_sim.open(clock=ManualClock())
    prefixes = []
    for number in range(300):
        tr = db.create_transaction()
        prefixes.append(layer.create_or_open(tr, ("many", str(number))).key())
        tr.commit().wait()
    assert len(set(prefixes)) == 300
    assert not any(one != other and one.startswith(other) for one in prefixes for other in prefixes)


def test_two_who_make_the_same_directory_at_once_conflict(layer: DirectoryLayer) -> None:
    db = fdb_sim.open(clock=ManualClock())
    one, other = db.create_transaction(), db.create_transaction()
    layer.create_or_open(one, ("same",))
    layer.create_or_open(other, ("same",))
    one.commit().wait()
    with pytest.raises(fdb_sim.FDBError) as conflict:
        other.commit().wait()
    assert conflict.value.code == 1020


def test_a_directory_of_another_layer_or_version_is_refused(layer: DirectoryLayer) -> None:
    db = fdb_sim.open(clock=ManualClock())
    tr = db.create_transaction()
    layer.create_or_open(tr, ("mine",), b"tenure")
    assert layer.open(tr, ("mine",), b"tenure").key()
    with pytest.raises(ValueError, match="incompatible layer"):
        layer.open(tr, ("mine",), b"other")
    with pytest.raises(ValueError, match="does not exist"):
        layer.open(tr, ("nobody's",))
    with pytest.raises(ValueError, match="root"):
        layer.open(tr, ())
    version = next(row for row in _RECORDED["rows"] if b"version".hex() in row[0])
    tr[bytes.fromhex(version[0])] = b"\x02" + b"\x00" * 11
    with pytest.raises(ValueError, match=r"the version 2\.0"):
        layer.open(tr, ("mine",))
