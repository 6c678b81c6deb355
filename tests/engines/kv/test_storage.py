"""What is kept, for how long, and what is counted."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.engines.kv.asking import ONE, begun, code_of, keys, put, stamped
from tests.fdb_sim.steps import Steps


def test_old_values_are_forgotten_after_five_seconds(
    db: fdb_sim.Database, cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    for _ in range(100):
        db.add(b"n", ONE)
        clock.advance(0.1)
    assert 50 <= cluster.history(b"n") <= 52
    clock.advance(10)
    put(db, b"other", b"")
    assert cluster.history(b"n") == 1
    assert db[b"n"] == (100).to_bytes(8, "little")


def test_cleared_keys_are_forgotten_after_five_seconds(
    db: fdb_sim.Database, cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    for number in range(100):
        put(db, b"%03d" % number, b"")
    reader = begun(db)
    db.clear_range(b"0", b"050")
    put(db, b"010", b"again")
    assert len(cluster) == 100
    assert len(list(reader.get_range(b"0", b"9"))) == 100
    clock.advance(6)
    put(db, b"new", b"")
    assert len(cluster) == 52
    assert len(db.get_range(b"0", b"9")) == 51


def test_what_was_cleared_and_is_not_there_takes_no_memory(
    db: fdb_sim.Database, cluster: fdb_sim.Cluster
) -> None:
    for number in range(100):
        db.clear(b"%03d" % number)
    assert len(cluster) == 0


def test_old_conflicts_are_forgotten(db: fdb_sim.Database, clock: ManualClock) -> None:
    conflicts = db.cluster._conflicts
    for number in range(30):
        tr = db.create_transaction()
        for place in range(200):
            tr.set(b"%d/%d" % (number, place), b"")
        tr.clear_range(b"range/%d" % number, b"range/%d/" % number)
        tr.commit().wait()
        clock.advance(1)
    assert 1_000 < len(conflicts) < 3_000


def test_a_reader_of_a_recent_version_sees_it_while_others_write(
    db: fdb_sim.Database, clock: ManualClock
) -> None:
    for number in range(10):
        put(db, b"%d" % number, b"old")
    reader = begun(db)
    for _ in range(40):
        clock.advance(0.1)
        for number in range(10):
            put(db, b"%d" % number, b"new")
    assert {bytes(row.value) for row in reader.get_range(b"0", b":")} == {b"old"}


def test_fifty_thousand_keys_are_kept_in_order(db: fdb_sim.Database) -> None:
    chance = random.Random(1)
    expected = {chance.randbytes(6) for _ in range(50_000)} - {b"\xff"}
    chosen = sorted(key for key in expected if key < b"\xff")
    shuffled = chance.sample(chosen, len(chosen))
    for start in range(0, len(shuffled), 5_000):
        tr = db.create_transaction()
        for key in shuffled[start : start + 5_000]:
            tr.set(key, b"")
        tr.commit().wait()
    assert keys(db.get_range(None, None)) == chosen
    middle = chosen[25_000]
    tr = db.create_transaction()
    assert keys(tr.get_range(middle, None, limit=3)) == chosen[25_000:25_003]
    assert keys(tr.get_range(None, middle, limit=3, reverse=True)) == chosen[24_999:24_996:-1]


def test_steps_say_what_was_painted_last() -> None:
    chance = random.Random(2)
    steps, plain = Steps(0), [0] * 64
    for _ in range(3_000):
        begin, end = sorted([chance.randrange(64), chance.randrange(64)])
        value = chance.randrange(3)
        steps.paint(bytes([begin]), bytes([end]), value)
        plain[begin:end] = [value] * (end - begin)
        assert [steps.at(bytes([key])) for key in range(64)] == plain
        spans = list(steps.spans(b"", b"\xff"))
        assert spans == list(steps.spans(b"", b"\xff", reverse=True))[::-1]
        assert all(one[2] != other[2] for one, other in pairwise(spans))
        found = steps.any(bytes([begin]), bytes([end]), (2).__eq__)
        assert found == (2 in plain[begin:end])


def test_commits_are_counted_by_how_they_ended(db: fdb_sim.Database) -> None:
    put(db, b"k", b"1")
    loser = begun(db)
    loser.get(b"k").wait()
    loser.set(b"k", b"3")
    put(db, b"k", b"2")
    assert code_of(loser.commit) == 1020
    reader = begun(db)
    reader.get(b"k").wait()
    reader.commit().wait()
    stats = db.stats
    assert (stats.commits_attempted, stats.commits_committed) == (3, 2)
    assert (stats.commits_conflicted, stats.commits_read_only) == (1, 1)
    assert (stats.commits_unknown, stats.commits_failed, stats.faults) == (0, 0, 0)


def test_keys_and_bytes_are_counted_as_the_cluster_moves_them(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.set(b"k1", b"12345")
    tr.set(b"k1", b"123")  # only the last is sent
    tr.add(b"n", ONE)
    tr.add(b"n", ONE)  # made one with the first
    tr.clear_range(b"x", b"yy")
    tr.set_versionstamped_key(stamped(b"s"), b"v")
    tr.get(b"k1").wait()  # an own write: costs nothing
    tr.commit().wait()
    stats = db.stats
    assert (stats.point_reads, stats.keys_read, stats.bytes_read) == (0, 0, 0)
    assert stats.keys_written == 4
    assert stats.bytes_written == (2 + 3) + (1 + 8) + (1 + 2) + (1 + 10 + 4 + 1)

    before = replace(stats)
    tr = begun(db)
    tr.get(b"k1").wait()
    tr.snapshot.get(b"missing").wait()
    tr.get_range(b"k", b"t", limit=2).to_list()
    done = stats.since(before)
    assert (done.read_versions, done.point_reads, done.range_reads) == (1, 2, 1)
    assert done.keys_read == 4
    assert done.bytes_read == (2 + 3) + 7 + (2 + 3) + (1 + 8)
    assert done.keys_written == done.commits_attempted == 0


def test_a_cluster_counts_what_all_its_clients_did(cluster: fdb_sim.Cluster) -> None:
    first, second = fdb_sim.open(cluster), fdb_sim.open(cluster)
    put(first, b"k", b"v")
    put(second, b"k", b"v")
    del first
    assert second.stats.commits_committed == 1
    assert cluster.stats.commits_committed == 2
    assert cluster.stats.bytes_written == 4
