"""What a transaction makes of its own writes before they are committed."""

from __future__ import annotations

import pytest

from tests import fdb_sim
from tests.engines.kv.asking import ONE, begun, code_of, keys, put, rows, stamped


def _reader_conflicts(db: fdb_sim.Database, writer: fdb_sim.Transaction, key: bytes) -> bool:
    """Whether one who read a key meanwhile conflicts with a writer."""
    reader = begun(db)
    reader.get(key).wait()
    reader.set(b"elsewhere", b"")
    writer.commit().wait()
    return code_of(reader.commit) == 1020


def test_a_clear_without_conflict_keeps_the_conflicts_of_what_it_clears(
    db: fdb_sim.Database,
) -> None:
    for key, expected in ((b"k", True), (b"l", False)):
        tr = db.create_transaction()
        tr.set(b"k", b"")
        tr.options.set_next_write_no_write_conflict_range()
        tr.clear_range(b"a", b"z")
        assert _reader_conflicts(db, tr, key) == expected


def test_a_conflict_can_be_added_to_a_write_that_had_none(db: fdb_sim.Database) -> None:
    for key in (b"k", b"l"):
        for add in (False, True):
            tr = db.create_transaction()
            for name in (b"k", b"l"):
                tr.options.set_next_write_no_write_conflict_range()
                tr.set(name, b"")
            if add:
                tr.add_write_conflict_range(b"a", b"z")
            assert _reader_conflicts(db, tr, key) == add


def test_a_key_that_was_stamped_before_is_readable_next_to_a_new_one(
    db: fdb_sim.Database,
) -> None:
    first = db.create_transaction()
    first.set_versionstamped_key(stamped(b"claim/"), b"first")
    first.commit().wait()
    put(db, b"Z", b"")  # a version later
    tr = begun(db)
    tr.set_versionstamped_key(stamped(b"claim/"), b"second")
    assert [value for _, value in rows(tr.get_range(b"a", b"z", limit=1))] == [b"first"]
    assert code_of(lambda: list(tr.get_range(b"a", b"z"))) == 1036
    assert code_of(lambda: list(tr.get_range(b"a", b"z", limit=1, reverse=True))) == 1036


def test_a_key_that_was_stamped_at_the_version_that_is_read_might_be_the_new_one(
    db: fdb_sim.Database,
) -> None:
    first = db.create_transaction()
    first.set_versionstamped_key(stamped(b"claim/"), b"first")
    first.commit().wait()
    tr = begun(db)
    assert tr.get_read_version().wait() == first.get_committed_version()
    tr.set_versionstamped_key(stamped(b"claim/"), b"second")
    assert code_of(lambda: list(tr.get_range(b"a", b"z", limit=1))) == 1036


def test_without_a_read_version_every_stamp_might_be_the_new_one(db: fdb_sim.Database) -> None:
    first = db.create_transaction()
    first.set_versionstamped_key(stamped(b"claim/"), b"first")
    first.commit().wait()
    tr = db.create_transaction()
    tr.set_versionstamped_key(stamped(b"claim/"), b"second")
    assert code_of(lambda: list(tr.get_range(b"a", b"z", limit=1))) == 1036


def test_a_clear_makes_readable_again_and_takes_back_the_stamped_key(
    db: fdb_sim.Database,
) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_key(stamped(b"claim/"), b"")
    tr.set_versionstamped_value(b"value", b"\xff" * 10 + bytes(4))
    tr.clear_range(b"a", b"z")
    assert keys(tr.get_range(b"a", b"z")) == []
    tr.commit().wait()
    assert db.get_range(None, None) == []


def test_a_set_over_a_stamped_value_stays_unreadable_and_wins(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.set_versionstamped_value(b"k", b"\xff" * 10 + bytes(4))
    tr.set(b"k", b"plain")
    tr.commit().wait()
    assert db[b"k"] == b"plain"
    tr = db.create_transaction()
    tr.set_versionstamped_value(b"k", b"\xff" * 10 + bytes(4))
    tr.set(b"k", b"plain")
    assert code_of(lambda: tr.get(b"k")) == 1036


def test_writes_before_a_stamped_key_in_its_range_are_not_lost(db: fdb_sim.Database) -> None:
    inside = b"claim/" + b"\x80" * 10
    tr = db.create_transaction()
    tr.set(inside, b"1")
    tr.add(b"claim/" + b"\x81" * 10, ONE)
    tr.set_versionstamped_key(stamped(b"claim/"), b"new")
    assert code_of(lambda: tr.snapshot.get(b"claim/" + b"\x82" * 10)) == 1036
    tr.reset()
    tr.set(inside, b"1")
    tr.set_versionstamped_key(stamped(b"claim/"), b"new")
    assert _reader_conflicts(db, tr, inside)
    assert sorted(value for _, value in rows(db.get_range(b"claim/", b"claim0"))) == [b"1", b"new"]


@pytest.mark.parametrize(
    ("first", "second", "stored", "expected"),
    [
        ("add", "add", b"\x01" + bytes(7), b"\x01" + bytes(7)),
        ("max", "max", b"\x00\x02", b"\xff\x00"),
    ],
)
def test_operations_of_different_lengths_are_done_one_after_the_other(
    db: fdb_sim.Database, first: str, second: str, stored: bytes, expected: bytes
) -> None:
    put(db, b"k", stored)
    tr = db.create_transaction()
    getattr(tr, first)(b"k", b"\xff")
    getattr(tr, second)(b"k", (1).to_bytes(len(stored), "little"))
    assert tr.get(b"k") == expected
    tr.commit().wait()
    assert db[b"k"] == expected


def test_what_one_transaction_appends_fits_together_or_not_at_all(db: fdb_sim.Database) -> None:
    put(db, b"k", b"x" * 99_999)
    for appended, expected in (([b"yy", b"z"], b"x"), ([b"z"], b"z"), ([b"a"], b"z")):
        tr = db.create_transaction()
        for value in appended:
            tr.append_if_fits(b"k", value)
        assert tr.get(b"k")[-1:] == expected
        tr.commit().wait()
        assert (db[b"k"] or b"")[-1:] == expected
