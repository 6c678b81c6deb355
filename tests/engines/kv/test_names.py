"""The simulation has the names of the official binding, and nothing that it has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import fdb_sim
from tests.fdb_sim.options import DatabaseOptions, TransactionOptions

# The public names of the binding, release 7.3.79.
_BINDING = json.loads((Path(__file__).parent / "names.json").read_text())

# What a test needs besides: said to be ours where it is defined.
_OURS = {
    "Database": {"chance", "clock", "cluster", "stats"},
    "DatabaseOptions": {"kept", "max_watches", "snapshot_ryw"},
    "Future": {"settle"},
    "Value": {"settle"},
    "Key": {"settle"},
}


def _public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def _things() -> dict[str, Any]:
    db = fdb_sim.open()
    tr = db.create_transaction()
    value, key = tr.get(b"k"), tr.get_versionstamp()
    return {
        "Database": db,
        "Transaction": tr,
        "TransactionRead": tr.snapshot,
        "TransactionOptions": TransactionOptions(lambda _: None),
        "DatabaseOptions": DatabaseOptions(),
        "Future": tr.get_read_version(),
        "FDBRange": tr.get_range(b"a", b"b"),
        "FDBError": fdb_sim.FDBError(1020),
        "KeySelector": fdb_sim.KeySelector.last_less_than(b"k"),
        "KeyValue": fdb_sim.KeyValue(b"k", b"v"),
        "StreamingMode": fdb_sim.StreamingMode,
        "predicates": fdb_sim.predicates,
        "Value": type(value),
        "Key": type(key),
    }


@pytest.mark.parametrize("name", _things())
def test_every_name_is_one_of_the_binding(name: str) -> None:
    exception = {"add_note", "args", "with_traceback"} if name == "FDBError" else set()
    found = _public(_things()[name]) - exception - _OURS.get(name, set())
    assert found <= set(_BINDING[name])
    assert found


def test_all_reads_and_writes_of_the_binding_are_there() -> None:
    left_out = {
        *{"and", "or", "xor", "bit_add", "bit_max", "bit_min", "bit_byte_max", "bit_byte_min"},
        *{"bit_append_if_fits", "bit_compare_and_clear", "bit_set_versionstamped_key"},
        *{"bit_set_versionstamped_value", "bit_bit_and", "bit_bit_or", "bit_bit_xor"},
        *{"get_estimated_range_size_bytes", "get_range_split_points", "tpointer"},
    }
    assert set(_BINDING["Transaction"]) - _public(fdb_sim.open().create_transaction()) == left_out
