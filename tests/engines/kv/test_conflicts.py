"""Which transactions conflict: those that read what another wrote meanwhile, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import fdb_sim
from tests.engines.kv.asking import ONE, begun, code_of, keys, put, stamped

Act = Callable[[fdb_sim.Transaction], object]

READS: dict[str, Act] = {
    "get": lambda tr: tr.get(b"k").wait(),
    "get_range": lambda tr: list(tr.get_range(b"a", b"z")),
    "get_range backwards": lambda tr: list(tr.get_range(b"a", b"z", reverse=True)),
    "get_key": lambda tr: tr.get_key(fdb_sim.KeySelector.first_greater_or_equal(b"j")).wait(),
    "get_key before": lambda tr: tr.get_key(fdb_sim.KeySelector.last_less_than(b"l")).wait(),
    "add_read_conflict_key": lambda tr: tr.add_read_conflict_key(b"k"),
    "add_read_conflict_range": lambda tr: tr.add_read_conflict_range(b"a", b"z"),
    "watch": lambda tr: tr.watch(b"k"),
}
WRITES: dict[str, Act] = {
    "set": lambda tr: tr.set(b"k", b"new"),
    "clear": lambda tr: tr.clear(b"k"),
    "clear_range": lambda tr: tr.clear_range(b"b", b"y"),
    "add": lambda tr: tr.add(b"k", ONE),
    "set_versionstamped_value": lambda tr: tr.set_versionstamped_value(
        b"k", b"\xff" * 10 + b"\0\0\0\0"
    ),
    "add_write_conflict_key": lambda tr: tr.add_write_conflict_key(b"k"),
    "add_write_conflict_range": lambda tr: tr.add_write_conflict_range(b"c", b"x"),
}
SNAPSHOT_READS: dict[str, Act] = {
    "get": lambda tr: tr.snapshot.get(b"k").wait(),
    "get_range": lambda tr: list(tr.snapshot.get_range(b"a", b"z")),
    "get_key": lambda tr: tr.snapshot.get_key(fdb_sim.KeySelector.last_less_than(b"l")).wait(),
}


def _outcome(db: fdb_sim.Database, mine: Act, theirs: Act) -> int | None:
    """What becomes of a transaction when another writes between its read and its commit."""
    put(db, b"k", b"old")
    tr = begun(db)
    mine(tr)
    tr.set(b"elsewhere", b"")
    other = db.create_transaction()
    theirs(other)
    other.commit().wait()
    return code_of(tr.commit)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", READS)
def test_a_read_conflicts_with_a_write(db: fdb_sim.Database, read: str, write: str) -> None:
    assert _outcome(db, READS[read], WRITES[write]) == 1020


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("read", SNAPSHOT_READS)
def test_a_snapshot_read_does_not(db: fdb_sim.Database, read: str, write: str) -> None:
    assert _outcome(db, SNAPSHOT_READS[read], WRITES[write]) is None


@pytest.mark.parametrize("mine", WRITES)
@pytest.mark.parametrize("theirs", WRITES)
def test_a_write_does_not(db: fdb_sim.Database, mine: str, theirs: str) -> None:
    assert _outcome(db, WRITES[mine], WRITES[theirs]) is None


@pytest.mark.parametrize("read", READS)
def test_a_transaction_that_only_reads_never_conflicts(db: fdb_sim.Database, read: str) -> None:
    tr = begun(db)
    READS[read](tr)
    put(db, b"k", b"new")
    assert code_of(tr.commit) is None


def test_a_write_next_to_what_was_read_does_not_conflict(db: fdb_sim.Database) -> None:
    for other in (b"j\xff", b"k\x00", b"l"):
        tr = begun(db)
        tr.get(b"k").wait()
        tr.set(b"elsewhere", b"")
        put(db, other, b"")
        assert code_of(tr.commit) is None


def test_a_write_before_the_read_version_does_not_conflict(db: fdb_sim.Database) -> None:
    put(db, b"k", b"1")
    tr = begun(db)
    tr.get(b"k").wait()
    tr.set(b"k", b"2")
    assert code_of(tr.commit) is None


def test_a_range_read_depends_on_no_more_than_it_returned(db: fdb_sim.Database) -> None:
    for number in range(9):
        put(db, b"%d" % number, b"")
    for reverse, beyond, within in ((False, b"3", b"1"), (True, b"5", b"7")):
        for changed, expected in ((beyond, None), (within, 1020)):
            tr = begun(db)
            assert len(list(tr.get_range(b"0", b"9", limit=3, reverse=reverse))) == 3
            tr.set(b"elsewhere", b"")
            put(db, changed, b"new")
            assert code_of(tr.commit) == expected


def test_a_range_that_was_left_early_depends_on_the_parts_that_came(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    for number in range(500):
        tr.set(b"%03d" % number, b"x" * 100)
    tr.commit().wait()
    for changed, expected in ((b"499", None), (b"010", 1020)):
        tr = begun(db)
        for row in tr.get_range(b"0", b"9"):
            assert row.key == b"000"
            break
        tr.set(b"elsewhere", b"")
        put(db, changed, b"new")
        assert code_of(tr.commit) == expected


def test_what_an_own_write_hides_is_not_depended_on(db: fdb_sim.Database) -> None:
    hides: list[Act] = [lambda tr: tr.set(b"k", b""), lambda tr: tr.clear_range(b"a", b"z")]
    shows: list[Act] = [lambda tr: tr.add(b"k", ONE), lambda tr: tr.set(b"l", b"")]
    for write, expected in [(write, None) for write in hides] + [(write, 1020) for write in shows]:
        tr = begun(db)
        write(tr)
        tr.get(b"k").wait()
        put(db, b"k", b"new")
        assert code_of(tr.commit) == expected


def test_versionstamped_keys_never_conflict_with_each_other(db: fdb_sim.Database) -> None:
    transactions = [begun(db) for _ in range(20)]
    for tr in transactions:
        tr.set_versionstamped_key(stamped(b"claim/"), b"")
    assert [code_of(tr.commit) for tr in transactions] == [None] * 20
    assert len(db.get_range_startswith(b"claim/")) == 20


def test_a_versionstamped_key_conflicts_with_who_read_where_it_came(db: fdb_sim.Database) -> None:
    put(db, b"claim/", b"")
    for begin, end, expected in ((b"claim/", b"claim0", 1020), (b"clain", b"z", None)):
        tr = begun(db)
        list(tr.get_range(begin, end))
        tr.set(b"elsewhere", b"")
        other = db.create_transaction()
        other.set_versionstamped_key(stamped(b"claim/"), b"")
        other.commit().wait()
        assert code_of(tr.commit) == expected


def test_a_write_can_be_told_to_conflict_with_nobody(db: fdb_sim.Database) -> None:
    tr = begun(db)
    tr.get(b"k").wait()
    tr.set(b"elsewhere", b"")
    other = db.create_transaction()
    other.options.set_next_write_no_write_conflict_range()
    other.set(b"k", b"new")
    other.set(b"l", b"new")
    other.commit().wait()
    assert code_of(tr.commit) is None
    assert db[b"k"] == b"new"


def test_a_key_beyond_the_range_is_found_but_depends_on_all_between(db: fdb_sim.Database) -> None:
    put(db, b"m", b"")
    selector = fdb_sim.KeySelector.first_greater_than(b"c")
    for changed, expected in ((b"c", None), (b"d", 1020), (b"m", 1020), (b"n", None)):
        tr = begun(db)
        assert tr.get_key(selector).wait() == b"m"
        tr.set(b"elsewhere", b"")
        put(db, changed, b"new")
        assert code_of(tr.commit) == expected
        db.clear_range(b"a", b"l")


def test_ranges_between_selectors_are_read(db: fdb_sim.Database) -> None:
    for key in b"bdfh":
        put(db, bytes([key]), b"")
    named = fdb_sim.KeySelector
    tr = db.create_transaction()
    tr.set(b"e", b"own")
    first, last = named.last_less_or_equal(b"c"), named.first_greater_than(b"e") + 1
    assert keys(tr.get_range(first, last)) == [b"b", b"d", b"e", b"f"]
    assert keys(tr.get_range(first + 1, last - 1, reverse=True)) == [b"e", b"d"]
    assert keys(tr.get_range(named.last_less_than(b"a"), named.first_greater_than(b"z"))) == [
        b"b",
        b"d",
        b"e",
        b"f",
        b"h",
    ]
    assert keys(tr.get_range(last, first)) == []


def test_a_range_that_ran_into_an_end_of_the_keys_depends_on_all_up_to_it(
    db: fdb_sim.Database,
) -> None:
    named = fdb_sim.KeySelector
    for begin, end, changed, expected in (
        (named.first_greater_or_equal(b"m"), named.first_greater_than(b"n"), b"p", None),
        (named.first_greater_or_equal(b"m"), named.first_greater_than(b"n") + 1, b"p", 1020),
        (named.last_less_than(b"m") + 1, named.first_greater_than(b"n"), b"b", None),
        (named.last_less_than(b"m"), named.first_greater_than(b"n"), b"b", 1020),
    ):
        db.clear_range(None, None)
        put(db, b"m", b"")
        for reverse in (False, True):
            tr = begun(db)
            assert keys(tr.get_range(begin, end, reverse=reverse)) == [b"m"]
            tr.set(b"elsewhere", b"")
            put(db, changed, b"new")
            assert code_of(tr.commit) == expected
            db.clear(changed)
            db.clear(b"elsewhere")
