"""What goes wrong when asked to, and nothing unless asked."""

from __future__ import annotations

import pytest

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.engines.kv.asking import ONE, code_of, put
from tests.fdb_sim import Faults


def test_nothing_goes_wrong_unless_asked(db: fdb_sim.Database, clock: ManualClock) -> None:
    before = clock.monotonic()
    for number in range(500):
        tr = db.create_transaction()
        tr.options.set_timeout(1_000)
        assert tr.get(b"k").is_ready()
        tr.set(b"k", b"%d" % number)
        tr.commit().wait()
    assert db.stats.faults == 0
    assert db.stats.commits_committed == 500
    assert clock.monotonic() == before


def test_a_conflict_applies_nothing(cluster: fdb_sim.Cluster, db: fdb_sim.Database) -> None:
    unlucky = fdb_sim.open(cluster, faults=Faults(conflict=1.0))
    tr = unlucky.create_transaction()
    tr.set(b"k", b"v")
    assert code_of(tr.commit) == 1020
    assert db[b"k"] is None
    assert unlucky.stats.commits_conflicted == unlucky.stats.faults == 1


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_result_was_applied_or_lost(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database, applied: bool
) -> None:
    faults = Faults(unknown_applied=1.0) if applied else Faults(unknown_lost=1.0)
    unlucky = fdb_sim.open(cluster, faults=faults)
    tr = unlucky.create_transaction()
    stamp = tr.get_versionstamp()
    tr.set(b"k", b"v")
    assert code_of(tr.commit) == 1021
    assert tr.get_committed_version() == -1
    assert code_of(stamp.wait) == 2020
    assert db[b"k"] == (b"v" if applied else None)
    assert unlucky.stats.commits_unknown == 1
    assert unlucky.stats.keys_written == applied


def test_an_unknown_result_hides_a_conflict_and_applies_nothing(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database
) -> None:
    unlucky = fdb_sim.open(cluster, faults=Faults(unknown_applied=1.0))
    tr = unlucky.create_transaction()
    tr.get(b"k").wait()
    tr.set(b"mine", b"v")
    put(db, b"k", b"theirs")
    assert code_of(tr.commit) == 1021
    assert db[b"mine"] is None


def test_a_transaction_that_writes_nothing_meets_no_fault_at_its_commit(
    cluster: fdb_sim.Cluster,
) -> None:
    unlucky = fdb_sim.open(cluster, faults=Faults(conflict=0.5, unknown_lost=0.5))
    tr = unlucky.create_transaction()
    tr.get(b"k").wait()
    assert code_of(tr.commit) is None


def test_a_read_that_is_too_old_fails_the_commit_until_it_is_tried_again(
    cluster: fdb_sim.Cluster,
) -> None:
    unlucky = fdb_sim.open(cluster, faults=Faults(too_old=1.0))
    for read in (
        lambda tr: tr.get(b"k"),
        lambda tr: tr.get_range(b"a", b"z").to_list(),
        lambda tr: tr.get_key(fdb_sim.KeySelector.last_less_than(b"k")),
    ):
        tr = unlucky.create_transaction()
        assert code_of(lambda tr=tr, read=read: read(tr)) == 1007  # type: ignore[misc]
        tr.set(b"k", b"v")
        assert code_of(tr.commit) == 1007
        assert code_of(lambda tr=tr: tr.on_error(1007)) is None  # type: ignore[misc]
        tr.set(b"k", b"v")
        assert code_of(tr.commit) is None


def test_own_writes_are_read_whatever_goes_wrong(cluster: fdb_sim.Cluster) -> None:
    tr = fdb_sim.open(cluster, faults=Faults(too_old=1.0)).create_transaction()
    tr.set(b"k", b"v")
    assert tr.get(b"k") == b"v"


def test_a_timeout_strikes_only_who_set_one(cluster: fdb_sim.Cluster) -> None:
    unlucky = fdb_sim.open(cluster, faults=Faults(timeout=1.0))
    tr = unlucky.create_transaction()
    tr.set(b"k", tr.get(b"j").value or b"v")
    assert code_of(tr.commit) is None
    tr = unlucky.create_transaction()
    tr.options.set_timeout(500)
    assert code_of(lambda: tr.get(b"k")) == 1031
    assert code_of(tr.commit) == 1031
    assert code_of(lambda: tr.on_error(1031)) == 1031
    tr.reset()
    assert code_of(lambda: tr.get(b"k")) is None


def _timed_out(cluster: fdb_sim.Cluster, seed: int, key: bytes) -> None:
    faults = Faults(seed=seed, timeout=1.0, late_s=2.0)
    tr = fdb_sim.open(cluster, faults=faults).create_transaction()
    tr.options.set_timeout(500)
    tr.set(key, b"v")
    assert code_of(tr.commit) == 1031


def test_a_commit_that_timed_out_was_applied_or_lost_or_comes_late(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database, clock: ManualClock
) -> None:
    outcomes = set()
    for seed in range(20):
        key = b"%d" % seed
        _timed_out(cluster, seed, key)
        at_once = db[key]
        clock.advance(2.0)
        outcomes.add((at_once, db[key]))
    assert outcomes == {(b"v", b"v"), (None, None), (None, b"v")}


def _late_seed() -> int:
    """A seed whose commit comes late."""
    for seed in range(100):
        clock = ManualClock()
        cluster = fdb_sim.Cluster(clock)
        _timed_out(cluster, seed, b"k")
        db = fdb_sim.open(cluster)
        at_once = db[b"k"]
        clock.advance(2.0)
        if at_once is None and db[b"k"] == b"v":
            return seed
    raise AssertionError("no commit of a hundred came late")


def test_a_late_commit_conflicts_as_if_it_came_in_time(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database, clock: ManualClock
) -> None:
    seed = _late_seed()
    late = fdb_sim.open(cluster, faults=Faults(seed=seed, timeout=1.0)).create_transaction()
    late.options.set_timeout(500)
    late.add_read_conflict_key(b"guard")
    late.set(b"k", b"late")
    assert code_of(late.commit) == 1031
    put(db, b"guard", b"changed")
    clock.advance(2.0)
    assert db[b"k"] is None


def test_a_late_commit_fires_watches(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database, clock: ManualClock
) -> None:
    tr = db.create_transaction()
    watch = tr.watch(b"k")
    tr.commit().wait()
    _timed_out(cluster, _late_seed(), b"k")
    assert not watch.is_ready()
    clock.advance(2.0)
    db.get(b"other")
    assert watch.is_ready()


def _outcomes(seed: int) -> list[int | None]:
    faults = Faults(seed, conflict=0.2, unknown_applied=0.1, unknown_lost=0.1, too_old=0.1)
    db = fdb_sim.open(clock=ManualClock(), faults=faults)
    found = []
    for _ in range(200):
        tr = db.create_transaction()
        found.append(code_of(lambda tr=tr: tr.get(b"k")))  # type: ignore[misc]
        tr.set(b"k", b"v")
        found.append(code_of(tr.commit))
    return found


def test_the_same_seed_has_the_same_faults() -> None:
    assert _outcomes(7) == _outcomes(7)
    assert _outcomes(7) != _outcomes(8)


def test_faults_come_as_often_as_asked() -> None:
    found = _outcomes(3)
    commits = [code for code in found[1::2] if code != 1007]
    assert 0.13 < commits.count(1020) / len(commits) < 0.27
    assert 0.13 < commits.count(1021) / len(commits) < 0.27
    assert 0.05 < found[0::2].count(1007) / 200 < 0.16


def test_an_answer_takes_its_time_on_the_clock(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    db = fdb_sim.open(cluster, faults=Faults(seed=1, delay_s=4.0))
    began = clock.monotonic()
    tr = db.create_transaction()
    first, second = tr.get(b"a"), tr.get(b"b")
    assert not first.is_ready()
    assert clock.monotonic() == began
    first.wait()
    assert began < clock.monotonic() < began + 4.0
    clock.advance(4.0)
    assert second.is_ready()
    waited = clock.monotonic()
    seen: list[object] = []
    tr.get(b"c").on_ready(seen.append)
    assert len(seen) == 1
    assert clock.monotonic() > waited


def test_the_soonest_of_several_answers_is_waited_for(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    db = fdb_sim.open(cluster, faults=Faults(seed=2, delay_s=4.0))
    tr = db.create_transaction()
    futures = [tr.get(b"a") for _ in range(5)]
    place = fdb_sim.Future.wait_for_any(*futures)
    assert [future.is_ready() for future in futures].count(True) == 1
    assert futures[place].is_ready()


def test_a_slow_answer_runs_into_the_timeout(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database, clock: ManualClock
) -> None:
    slow = fdb_sim.open(cluster, faults=Faults(seed=1, delay_s=100.0))
    tr = slow.create_transaction()
    tr.options.set_timeout(10)
    tr.set(b"k", b"v")
    began = clock.monotonic()
    assert code_of(tr.commit) == 1031
    assert clock.monotonic() == pytest.approx(began + 0.01)
    assert db[b"k"] == b"v"


def test_the_clock_of_a_client_may_be_wrong_but_versions_are_not(
    cluster: fdb_sim.Cluster, clock: ManualClock
) -> None:
    right, wrong = fdb_sim.open(cluster), fdb_sim.open(cluster, skew_ms=-30_000)
    assert right.clock.now_ms() - wrong.clock.now_ms() == 30_000
    assert right.clock.monotonic() == wrong.clock.monotonic()
    put(wrong, b"k", b"v")
    assert right[b"k"] == b"v"
    wrong.clock.sleep(1)
    assert clock.now_ms() == right.clock.now_ms()


@pytest.mark.parametrize("seed", range(10))
def test_a_counter_with_idempotency_keys_is_right_whatever_goes_wrong(seed: int) -> None:
    faults = Faults(
        seed,
        conflict=0.1,
        unknown_applied=0.1,
        unknown_lost=0.1,
        too_old=0.05,
        timeout=0.1,
        delay_s=0.2,
        late_s=1.0,
    )
    clock = ManualClock()
    cluster = fdb_sim.Cluster(clock)
    db = fdb_sim.open(cluster, faults=faults)
    for number in range(40):
        _count_once(db, b"done/%d" % number)
        clock.advance(0.1)
    calm = fdb_sim.open(cluster)
    clock.advance(10)
    assert calm[b"n"] == (40).to_bytes(8, "little")
    assert db.stats.faults > 10


def _count_once(db: fdb_sim.Database, key: bytes) -> None:
    tr = db.create_transaction()
    while True:
        tr.options.set_timeout(5_000)
        try:
            if not tr.get(key).present():
                tr.set(key, b"")
                tr.add(b"n", ONE)
            tr.commit().wait()
        except fdb_sim.FDBError as error:
            if error.code == 1031:
                tr.reset()
            else:
                tr.on_error(error).wait()
        else:
            return


def _version(db: fdb_sim.Database) -> int:
    tr = db.create_transaction()
    return int(tr.get_read_version().wait())


def test_a_recovery_moves_versions_ahead_and_ends_what_is_under_way(
    cluster: fdb_sim.Cluster, db: fdb_sim.Database, clock: ManualClock
) -> None:
    put(db, b"k", b"before")
    reading, writing = db.create_transaction(), db.create_transaction()
    before = reading.get_read_version().wait()
    writing.get(b"k").wait()
    cluster.recover(97.0)
    writing.set(b"k", b"late")
    assert code_of(lambda: reading.get(b"k")) == 1007
    assert code_of(writing.commit) == 1007
    after = _version(db)
    assert after - before >= 97_000_000
    assert db[b"k"] == b"before"
    put(db, b"k", b"after")
    clock.advance(10)
    later = _version(db)
    assert 9_000_000 < later - after < 11_000_000


def test_a_commit_that_meets_a_recovery_is_unknown() -> None:
    outcomes = set()
    for seed in range(10):
        cluster = fdb_sim.Cluster(ManualClock())
        tr = fdb_sim.open(cluster, faults=Faults(seed, recovery=1.0)).create_transaction()
        before = tr.get_read_version().wait()
        tr.set(b"k", b"v")
        assert code_of(tr.commit) == 1021
        db = fdb_sim.open(cluster)
        jump = _version(db) - before
        assert 95_000_000 <= jump <= 200_000_000
        outcomes.add((db[b"k"], jump > 100_000_000))
    assert outcomes == {(b"v", True), (b"v", False), (None, True), (None, False)}
