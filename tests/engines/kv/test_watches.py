"""A watch tells once that a key has another value."""

from __future__ import annotations

import gc
import threading

import pytest

from tests import fdb_sim
from tests.crash.watched import PATIENCE, until
from tests.engines.kv.asking import code_of, put

Watch = fdb_sim.Future[None]


def _watch(db: fdb_sim.Database, key: bytes = b"k") -> Watch:
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr.commit().wait()
    return watch


def test_a_watch_fires_when_the_value_is_another(db: fdb_sim.Database) -> None:
    put(db, b"k", b"1")
    watch, neighbour = _watch(db), _watch(db, b"k\x00")
    put(db, b"k", b"1")
    put(db, b"j", b"2")
    assert not watch.is_ready()
    put(db, b"k", b"2")
    assert watch.is_ready()
    assert watch.wait() is None
    assert not neighbour.is_ready()


def test_a_watch_fires_when_its_key_comes_or_goes(db: fdb_sim.Database) -> None:
    coming = _watch(db)
    put(db, b"k", b"")
    assert coming.is_ready()
    going = _watch(db)
    db.clear_range(b"a", b"z")
    assert going.is_ready()


def test_a_watch_fires_for_a_key_with_a_versionstamp(db: fdb_sim.Database) -> None:
    watch = _watch(db)
    tr = db.create_transaction()
    tr.set_versionstamped_value(b"k", b"\xff" * 10 + b"\0\0\0\0")
    tr.commit().wait()
    assert watch.is_ready()


def test_a_value_that_changed_and_changed_back_in_one_commit_fires_nothing(
    db: fdb_sim.Database,
) -> None:
    put(db, b"k", b"1")
    watch = _watch(db)
    tr = db.create_transaction()
    tr.clear(b"k")
    tr.set(b"k", b"1")
    tr.commit().wait()
    assert not watch.is_ready()


def test_a_watch_that_comes_after_the_change_fires_at_once(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    put(db, b"k", b"changed")
    assert not watch.is_ready()
    tr.commit().wait()
    assert watch.is_ready()


def test_a_watch_outlives_its_transaction_once_that_is_committed(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr.set(b"other", b"")
    tr.commit().wait()
    tr.reset()
    del tr
    gc.collect()
    assert not watch.is_ready()
    put(db, b"k", b"v")
    assert code_of(watch.wait) is None


def test_a_watch_ends_with_a_transaction_that_is_not_committed(db: fdb_sim.Database) -> None:
    dropped = db.create_transaction()
    orphan = dropped.watch(b"k")
    seen: list[object] = []
    orphan.on_ready(seen.append)
    del dropped
    assert seen == [orphan]
    assert code_of(orphan.wait) == 1025
    for end in ("reset", "cancel"):
        tr = db.create_transaction()
        watch = tr.watch(b"k")
        getattr(tr, end)()
        assert code_of(watch.wait) == 1025


def test_a_watch_gets_the_error_of_the_commit(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr.set(b"other", b"")
    put(db, b"k", b"v")
    assert code_of(tr.commit) == 1020
    assert code_of(watch.wait) == 1020


def test_a_watch_compares_with_what_its_own_transaction_wrote(db: fdb_sim.Database) -> None:
    put(db, b"k", b"old")
    tr = db.create_transaction()
    tr.set(b"k", b"new")
    watch = tr.watch(b"k")
    tr.commit().wait()
    assert not watch.is_ready()
    put(db, b"k", b"newer")
    assert watch.is_ready()


def test_a_watch_fires_for_a_later_write_of_its_own_transaction(db: fdb_sim.Database) -> None:
    put(db, b"k", b"old")
    tr = db.create_transaction()
    changed, same, added = tr.watch(b"k"), tr.watch(b"l"), tr.watch(b"n")
    tr.set(b"k", b"new")
    tr.clear(b"l")
    tr.add(b"n", b"\x00")
    assert [watch.is_ready() for watch in (changed, same, added)] == [True, False, True]


def test_everyone_who_watches_is_told(cluster: fdb_sim.Cluster) -> None:
    clients = [fdb_sim.open(cluster) for _ in range(5)]
    watches = [_watch(client) for client in clients]
    put(clients[0], b"k", b"v")
    assert all(watch.is_ready() for watch in watches)
    assert [client.stats.watches_fired for client in clients] == [1] * 5


def test_whom_a_watch_calls_back_may_use_the_database(db: fdb_sim.Database) -> None:
    watch = _watch(db)
    found: list[bytes | None] = []
    watch.on_ready(lambda _: put(db, b"answer", db[b"k"] or b""))
    watch.on_ready(lambda _: found.append(db[b"answer"]))
    put(db, b"k", b"v")
    assert found == [b"v"]
    watch.on_ready(lambda _: found.append(db[b"k"]))
    assert found == [b"v", b"v"]


def test_a_callback_that_fails_is_printed_and_harms_nobody(
    db: fdb_sim.Database, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = _watch(db)
    told: list[object] = []

    def fail(_: object) -> None:
        raise KeyError("mine")

    watch.on_ready(fail)
    watch.on_ready(told.append)
    put(db, b"k", b"v")
    assert told == [watch]
    assert "KeyError: 'mine'" in capsys.readouterr().err


def test_a_watch_with_a_callback_lives_though_nobody_holds_it(db: fdb_sim.Database) -> None:
    told: list[object] = []
    _watch(db).on_ready(told.append)
    gc.collect()
    put(db, b"k", b"v")
    assert len(told) == 1


def test_a_cancelled_watch_says_so_and_makes_room(db: fdb_sim.Database) -> None:
    db.options.set_max_watches(2)
    first, second = _watch(db), _watch(db)
    assert code_of(lambda: db.create_transaction().watch(b"k")) == 1032
    first.cancel()
    assert code_of(first.wait) == 1101
    third = _watch(db)
    assert code_of(lambda: db.create_transaction().watch(b"k")) == 1032
    put(db, b"k", b"v")
    assert second.is_ready()
    assert third.is_ready()
    assert not _watch(db).is_ready()


def test_who_cancels_a_watch_is_called_back_later_by_another_thread(db: fdb_sim.Database) -> None:
    watch = _watch(db)
    called: list[int] = []
    returned = threading.Event()

    def call(_: object) -> None:
        assert returned.wait(PATIENCE)  # would never be set if `cancel` called back itself
        called.append(threading.get_ident())

    watch.on_ready(call)
    watch.cancel()
    returned.set()
    until(lambda: not db.cluster.scene.network.busy)
    assert len(called) == 1
    assert called != [threading.get_ident()]
    assert code_of(watch.wait) == 1101


def test_a_watch_that_nobody_holds_makes_room(db: fdb_sim.Database) -> None:
    db.options.set_max_watches(1)
    for _ in range(5):
        assert not _watch(db).is_ready()
    put(db, b"k", b"v")
    assert len(db.cluster.watches) == 0


def test_watches_that_were_given_up_leave_nothing_behind(db: fdb_sim.Database) -> None:
    held = _watch(db)
    for _ in range(1_000):
        _watch(db)
    assert len(db.cluster.watches) <= 16
    put(db, b"k", b"v")
    assert held.is_ready()


def test_get_and_watch_reads_what_it_watches(db: fdb_sim.Database) -> None:
    put(db, b"k", b"1")
    value, watch = db.get_and_watch(b"k")
    assert value == b"1"
    put(db, b"k", b"2")
    assert watch.is_ready()


def test_watches_and_versionstamps_of_one_transaction_are_told_apart(
    db: fdb_sim.Database,
) -> None:
    tr = db.create_transaction()
    first, watch, second = tr.get_versionstamp(), tr.watch(b"k"), tr.get_versionstamp()
    own = tr.watch(b"own")
    tr.set(b"own", b"")
    tr.commit().wait()
    assert first == second
    assert own.is_ready()
    assert not watch.is_ready()
    put(db, b"k", b"v")
    assert watch.is_ready()


def test_a_timeout_of_the_commit_ends_what_waited_for_it(cluster: fdb_sim.Cluster) -> None:
    db = fdb_sim.open(cluster, faults=fdb_sim.Faults(timeout=1.0))
    tr = db.create_transaction()
    stamp, watch = tr.get_versionstamp(), tr.watch(b"k")
    tr.options.set_timeout(500)
    tr.set(b"other", b"")
    assert [code_of(tr.commit), code_of(stamp.wait), code_of(watch.wait)] == [1031, 1031, 1031]
