"""Many threads may use one database, and one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests import fdb_sim
from tests.engines.kv.asking import ONE, begun, code_of, put, rows, stamped

_THREADS = 8
_WAIT_S = 30


def _together(work: Callable[[int], Any]) -> list[Any]:
    """Have every thread begin at the same moment."""
    start = threading.Barrier(_THREADS)

    def run(number: int) -> Any:
        start.wait(_WAIT_S)
        return work(number)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(run, range(_THREADS)))


def test_no_increment_is_lost(db: fdb_sim.Database) -> None:
    @fdb_sim.transactional
    def increment(tr: fdb_sim.Transaction) -> None:
        number = tr[b"read"]
        tr[b"read"] = b"%d" % (int(bytes(number)) + 1 if number.present() else 1)
        tr.add(b"blind", ONE)

    def work(_: int) -> None:
        for _ in range(25):
            increment(db)

    _together(work)
    assert db[b"read"] == b"%d" % (25 * _THREADS)
    assert db[b"blind"] == (25 * _THREADS).to_bytes(8, "little")
    stats = db.stats
    assert stats.commits_committed == 25 * _THREADS
    assert stats.commits_attempted == stats.commits_committed + stats.commits_conflicted


def test_of_many_who_claim_one_key_one_succeeds(db: fdb_sim.Database) -> None:
    transactions = [begun(db) for _ in range(_THREADS)]

    def claim(number: int) -> int | None:
        tr = transactions[number]
        assert not tr.get(b"claim").present()
        tr.set(b"claim", b"%d" % number)
        return code_of(tr.commit)

    codes = _together(claim)
    assert sorted(codes, key=str) == [1020] * (_THREADS - 1) + [None]
    assert db[b"claim"] == b"%d" % codes.index(None)


def test_versionstamps_are_unique_and_in_the_order_of_commits(db: fdb_sim.Database) -> None:
    def work(number: int) -> list[bytes]:
        found = []
        for _ in range(30):
            tr = db.create_transaction()
            tr.set_versionstamped_key(stamped(b"log/"), b"%d" % number)
            stamp = tr.get_versionstamp()
            tr.commit().wait()
            found.append(bytes(stamp))
        return found

    stamps = _together(work)
    assert all(mine == sorted(mine) for mine in stamps)
    everyone = sorted(stamp for mine in stamps for stamp in mine)
    assert everyone == [key[4:] for key, _ in rows(db.get_range_startswith(b"log/"))]
    assert len(set(everyone)) == 30 * _THREADS


def test_one_transaction_takes_writes_of_many_threads(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()

    def work(number: int) -> None:
        for place in range(100):
            tr.set(b"%d/%d" % (number, place), b"")
            tr.add(b"n", ONE)

    _together(work)
    tr.commit().wait()
    assert len(db.get_range(b"0", b":")) == 100 * _THREADS
    assert db[b"n"] == (100 * _THREADS).to_bytes(8, "little")


def test_who_waits_for_a_watch_is_woken_by_another_thread(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    watch, other = tr.watch(b"k"), tr.watch(b"other")
    tr.commit().wait()
    woken = threading.Event()
    started = threading.Barrier(3)

    def wait() -> None:
        started.wait(_WAIT_S)
        watch.wait()
        woken.set()

    def wait_for_any() -> None:
        started.wait(_WAIT_S)
        assert fdb_sim.Future.wait_for_any(other, watch) == 1

    threads = [threading.Thread(target=work, daemon=True) for work in (wait, wait_for_any)]
    for thread in threads:
        thread.start()
    started.wait(_WAIT_S)
    assert not woken.is_set()
    put(db, b"k", b"v")
    for thread in threads:
        thread.join(_WAIT_S)
        assert not thread.is_alive()
    assert woken.is_set()
