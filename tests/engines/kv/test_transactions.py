"""The life of a transaction: versions, limits, errors, and trying again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tenure.testing import ManualClock
from tests import fdb_sim
from tests.engines.kv.asking import ONE, begun, code_of, keys, put, rows, stamped, version_now


def test_versions_pass_a_million_a_second(db: fdb_sim.Database, clock: ManualClock) -> None:
    versions = []
    for _ in range(4):
        clock.advance(2.5)
        tr = db.create_transaction()
        tr.set(b"k", b"")
        tr.commit().wait()
        versions.append(tr.get_committed_version())
    assert [later - versions[0] for later in versions] == [0, 2_500_000, 5_000_000, 7_500_000]


def test_without_commits_the_read_version_jumps_once_a_second_and_is_never_early(
    db: fdb_sim.Database, clock: ManualClock
) -> None:
    put(db, b"k", b"")
    first = version_now(db)
    passed = []
    for _ in range(6):
        clock.advance(0.45)
        passed.append(version_now(db) - first)
    assert passed == [0, 0, 1_000_000, 1_000_000, 2_000_000, 2_000_000]


def test_versions_never_go_back_when_the_clock_does(
    db: fdb_sim.Database, clock: ManualClock
) -> None:
    put(db, b"k", b"1")
    before = begun(db)
    clock.advance(-60)
    put(db, b"k", b"2")
    after = begun(db)
    assert after.get_read_version().wait() > before.get_read_version().wait()
    assert before.get(b"k") == b"1"
    assert after.get(b"k") == b"2"


def test_a_transaction_sees_what_was_there_at_its_read_version(db: fdb_sim.Database) -> None:
    put(db, b"a", b"old")
    put(db, b"b", b"old")
    tr = begun(db)
    put(db, b"a", b"new")
    db.clear(b"b")
    put(db, b"c", b"new")
    assert rows(tr.get_range(b"a", b"z")) == [(b"a", b"old"), (b"b", b"old")]
    assert rows(begun(db).get_range(b"a", b"z")) == [(b"a", b"new"), (b"c", b"new")]


def test_a_read_version_can_be_set_once(db: fdb_sim.Database) -> None:
    put(db, b"k", b"old")
    version = version_now(db)
    put(db, b"k", b"new")
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert tr.get(b"k") == b"old"
    tr.set_read_version(version)
    assert code_of(lambda: tr.get(b"k")) == 2010
    for wrong, code in ((0, 2011), (version + 10**12, 1009)):
        tr = db.create_transaction()
        tr.set_read_version(wrong)
        assert code_of(lambda tr=tr: tr.get(b"k")) == code  # type: ignore[misc]


def test_a_read_version_lives_five_seconds(db: fdb_sim.Database, clock: ManualClock) -> None:
    put(db, b"k", b"v")
    tr, blind = begun(db), begun(db)
    blind.set(b"blind", b"")
    clock.advance(4.9)
    put(db, b"other", b"")
    assert tr.get(b"k") == b"v"
    clock.advance(0.2)
    put(db, b"other", b"")
    assert code_of(lambda: tr.get(b"k")) == 1007
    assert code_of(blind.commit) == 1007
    assert code_of(lambda: tr.on_error(1007)) is None
    assert tr.get(b"k") == b"v"


def test_a_write_without_a_read_version_may_wait_as_long_as_it_likes(
    db: fdb_sim.Database, clock: ManualClock
) -> None:
    tr = db.create_transaction()
    tr.set(b"k", b"v")
    clock.advance(60)
    assert code_of(tr.commit) is None


def test_commits_that_were_sent_together_share_a_version_and_are_told_apart(
    db: fdb_sim.Database,
) -> None:
    transactions, stamps = [], []
    for number in range(200):
        tr = db.create_transaction()
        tr.set_versionstamped_key(stamped(b"log/"), b"%d" % number)
        stamps.append(tr.get_versionstamp())
        transactions.append((tr, tr.commit()))
    for _, future in transactions:
        future.wait()
    assert len({tr.get_committed_version() for tr, _ in transactions}) == 1
    found = [bytes(stamp) for stamp in stamps]
    assert found == sorted(set(found))
    assert [stamp[8:] for stamp in found] == [place.to_bytes(2, "big") for place in range(200)]
    values = [value for _, value in rows(db.get_range_startswith(b"log/"))]
    assert values == [b"%d" % number for number in range(200)]


def test_a_commit_after_an_answered_one_has_a_later_version(db: fdb_sim.Database) -> None:
    versions = []
    for _ in range(3):
        tr = db.create_transaction()
        tr.set(b"k", b"")
        assert tr.get_committed_version() == -1
        future = tr.commit()
        future.wait()
        versions.append(tr.get_committed_version())
    assert versions == sorted(set(versions))


def test_a_reader_never_shares_its_version_with_a_later_commit(db: fdb_sim.Database) -> None:
    unanswered = []
    for number in range(3):
        tr = db.create_transaction()
        tr.set(b"k", b"%d" % number)
        unanswered.append((tr, tr.commit()))
        reader = begun(db)
        other = db.create_transaction()
        other.set(b"k", b"later")
        unanswered.append((other, other.commit()))
        assert reader.get(b"k") == b"%d" % number


def test_nobody_commits_at_a_version_that_was_read_at(
    db: fdb_sim.Database, clock: ManualClock
) -> None:
    def commit(value: bytes) -> tuple[fdb_sim.Transaction, fdb_sim.Future[None]]:
        tr = db.create_transaction()
        tr.set(b"k", value)
        return tr, tr.commit()

    clock.advance(2)
    version = version_now(db)
    first = commit(b"1")
    clock.advance(0.5)
    reader = db.create_transaction()
    reader.set_read_version(version + 500_000)
    assert reader.get(b"k") == b"1"
    second = commit(b"2")
    assert reader.get(b"k") == b"1"
    assert first[0].get_committed_version() < version + 500_000 < second[0].get_committed_version()


def test_writes_that_cannot_be_done_are_reported_by_the_next_answer(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.set(b"k" * 10_001, b"")
    tr.set(b"v", b"x" * 100_001)
    for answer in (tr.get_read_version, lambda: tr.get(b"a"), tr.commit, tr.get_versionstamp):
        assert code_of(answer) == 2102
    tr.reset()
    tr.set(b"a", b"1")
    assert code_of(tr.commit) is None


@pytest.mark.parametrize(
    ("limit", "reverse", "mode", "code"),
    [
        (-1, False, fdb_sim.StreamingMode.want_all, 2012),
        (0, False, fdb_sim.StreamingMode.exact, 2210),
        (0, False, 9, 2000),
    ],
)
def test_a_range_with_nonsense_limits_is_refused_and_does_no_harm(
    db: fdb_sim.Database, limit: int, reverse: bool, mode: int, code: int
) -> None:
    tr = db.create_transaction()
    assert code_of(lambda: list(tr.get_range(b"a", b"b", limit, reverse, mode))) == code
    tr.set(b"k", b"")
    assert code_of(tr.commit) is None


@pytest.mark.parametrize("mode", ["want_all", "iterator", "small", "medium", "large", "serial"])
@pytest.mark.parametrize("reverse", [True, False])
def test_every_streaming_mode_brings_the_same_rows(
    db: fdb_sim.Database, mode: str, reverse: bool
) -> None:
    tr = db.create_transaction()
    for number in range(300):
        tr.set(b"%03d" % number, b"x" * number)
    tr.commit().wait()
    expected = [b"%03d" % number for number in range(10, 290)]
    chosen: int = getattr(fdb_sim.StreamingMode, mode)
    tr = db.create_transaction()
    found = keys(tr.get_range(b"010", b"290", reverse=reverse, streaming_mode=chosen))
    assert found == expected[::-1] if reverse else expected
    limited = tr.get_range(b"010", b"290", 150, reverse, chosen)
    assert keys(limited) == keys(limited.to_list()) == found[:150]


def test_keys_of_the_system_are_out_of_reach(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    assert code_of(lambda: tr.get(b"\xff")) == 2004
    assert code_of(lambda: list(tr.get_range(b"\xff\x01", b"\xff\x02"))) == 2004
    assert code_of(lambda: tr.get_key(fdb_sim.KeySelector.last_less_than(b"\xff\x01"))) == 2004
    assert code_of(lambda: tr.watch(b"\xff/k")) == 2004
    assert keys(tr.get_range(b"", b"\xff")) == []
    tr.clear_range(b"a", b"\xff")
    assert code_of(tr.commit) is None
    writes: list[Callable[[fdb_sim.Transaction], object]] = [
        lambda tr: tr.add(b"\xff/n", ONE),
        lambda tr: tr.clear(b"\xff/n"),
        lambda tr: tr.clear_range(b"a", b"\xff\x01"),
        lambda tr: tr.add_read_conflict_key(b"\xff/n"),
        lambda tr: tr.add_write_conflict_key(b"\xff/n"),
    ]
    for write in writes:
        tr = db.create_transaction()
        write(tr)
        assert code_of(tr.commit) == 2004


def test_a_selector_beyond_the_keys_finds_their_end(db: fdb_sim.Database) -> None:
    put(db, b"k", b"")
    tr = db.create_transaction()
    assert tr.get_key(fdb_sim.KeySelector.first_greater_than(b"k")).wait() == b"\xff"
    assert tr.get_key(fdb_sim.KeySelector.first_greater_than(b"a") + 7).wait() == b"\xff"
    assert tr.get_key(fdb_sim.KeySelector.last_less_than(b"k")).wait() == b""
    assert tr.get_key(fdb_sim.KeySelector.last_less_than(b"z") - 7).wait() == b""


def test_an_inverted_conflict_range_is_refused_at_once(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    assert code_of(lambda: tr.add_read_conflict_range(b"b", b"a")) == 2005
    assert code_of(lambda: tr.add_write_conflict_range(b"b", b"a")) == 2005


def test_a_size_limit_is_kept_and_counts_conflict_ranges(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.options.set_size_limit(1_000)
    tr.set(b"k", b"x" * 800)
    assert tr.get_approximate_size().wait() < 1_000
    tr.add_read_conflict_range(b"a" * 100, b"b" * 100)
    assert code_of(tr.commit) == 2101
    assert code_of(lambda: tr.on_error(2101)) == 2101
    assert db.stats.commits_failed == 1


def test_an_option_out_of_range_is_refused(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.options.set_timeout(-1)
    assert code_of(tr.get_read_version) == 2006
    with pytest.raises(fdb_sim.FDBError):
        db.options.set_transaction_retry_limit(-2)


def test_a_timeout_counts_from_the_making_of_the_transaction_through_all_tries(
    db: fdb_sim.Database, clock: ManualClock
) -> None:
    db.options.set_transaction_timeout(1_000)
    tr = db.create_transaction()
    clock.advance(0.6)
    assert code_of(lambda: tr.get(b"k")) is None
    assert code_of(lambda: tr.on_error(1020)) is None
    clock.advance(0.6)
    assert code_of(lambda: tr.get(b"k")) == 1031
    assert code_of(lambda: tr.on_error(1020)) == 1031
    tr.reset()
    assert code_of(lambda: tr.get(b"k")) is None


def test_only_so_many_retries_are_allowed(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.options.set_retry_limit(2)
    assert [code_of(lambda: tr.on_error(1020)) for _ in range(3)] == [None, None, 1020]
    assert code_of(lambda: tr.get(b"k")) == 1025


def test_retries_wait_longer_and_longer_up_to_a_limit(clock: ManualClock) -> None:
    tr = fdb_sim.open(clock=clock, faults=fdb_sim.Faults(seed=4)).create_transaction()
    waits = []
    for _ in range(200):
        before = clock.monotonic()
        tr.on_error(1020).wait()
        waits.append(clock.monotonic() - before)
    assert sum(waits[:5]) < 0.4
    assert 0.4 < sum(waits[100:]) / 100 < 0.6
    tr.options.set_max_retry_delay(2)
    before = clock.monotonic()
    tr.on_error(1020).wait()
    assert clock.monotonic() - before <= 0.002


@pytest.mark.parametrize("code", [1025, 1031, 1036, 2000, 2017, 2101])
def test_an_error_that_cannot_be_tried_again_ends_the_transaction(
    db: fdb_sim.Database, code: int
) -> None:
    tr = db.create_transaction()
    assert not fdb_sim.predicates.is_retryable(fdb_sim.FDBError(code))
    assert code_of(lambda: tr.on_error(fdb_sim.FDBError(code))) == code
    assert code_of(tr.commit) == 1025
    tr.reset()
    assert code_of(tr.commit) is None


def test_an_error_that_is_none_of_the_cluster_is_raised(db: fdb_sim.Database) -> None:
    with pytest.raises(KeyError):
        db.create_transaction().on_error(KeyError("mine"))


def test_predicates_say_what_may_have_happened() -> None:
    errors = {code: fdb_sim.FDBError(code) for code in (1007, 1009, 1020, 1021, 1031, 1039)}
    says = fdb_sim.predicates
    unknown = [code for code, error in errors.items() if says.is_maybe_committed(error)]
    assert unknown == [1021, 1039]
    retryable = [code for code, error in errors.items() if says.is_retryable_not_committed(error)]
    assert retryable == [1007, 1009, 1020]
    assert [code for code, error in errors.items() if not says.is_retryable(error)] == [1031]
    assert str(errors[1021]) == "Transaction may or may not have committed (1021)"


def test_a_new_try_has_forgotten_everything_but_what_is_kept(db: fdb_sim.Database) -> None:
    tr = begun(db)
    tr.options.set_size_limit(200)
    tr.options.set_snapshot_ryw_disable()
    tr.get(b"k").wait()
    tr.set(b"k", b"first")
    tr.on_error(1020).wait()
    put(db, b"k", b"theirs")
    tr.set(b"l", b"second")
    assert tr.snapshot.get(b"l") == b"second"
    tr.commit().wait()
    assert rows(db[b"a":b"z"]) == [(b"k", b"theirs"), (b"l", b"second")]
    tr.reset()
    tr.set(b"m", b"x" * 200)
    assert code_of(tr.commit) is None


def test_snapshot_reads_can_be_told_not_to_see_own_writes(db: fdb_sim.Database) -> None:
    put(db, b"k", b"stored")
    tr = db.create_transaction()
    tr.set(b"k", b"own")
    tr.set_versionstamped_key(stamped(b"s"), b"")
    tr.options.set_snapshot_ryw_disable()
    assert tr.get(b"k") == b"own"
    assert tr.snapshot.get(b"k") == b"stored"
    assert rows(tr.snapshot.get_range(b"a", b"z")) == [(b"k", b"stored")]
    tr.options.set_snapshot_ryw_enable()
    assert tr.snapshot.get(b"k") == b"own"


def test_all_reads_can_be_told_not_to_see_own_writes(db: fdb_sim.Database) -> None:
    put(db, b"n", ONE)
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr.set(b"k", b"own")
    tr.add(b"n", ONE)
    tr.clear_range(b"x", b"z")
    assert not tr.get(b"k").present()
    assert tr.get(b"n") == ONE
    assert code_of(lambda: tr.watch(b"k")) == 1034
    tr.commit().wait()
    assert rows(db.get_range(b"a", b"z")) == [(b"k", b"own"), (b"n", b"\x02" + bytes(7))]
    tr = db.create_transaction()
    tr.set(b"k", b"")
    tr.options.set_read_your_writes_disable()
    assert code_of(tr.commit) == 2000


def test_a_cancelled_transaction_answers_so_until_it_is_reset(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    unseen, stamp = tr.get(b"k"), tr.get_versionstamp()
    tr.cancel()
    assert [code_of(unseen.wait), code_of(stamp.wait)] == [1025, 1025]
    for answer in (lambda: tr.get(b"k"), tr.commit, lambda: tr.on_error(1020)):
        assert code_of(answer) == 1025
    tr.reset()
    assert code_of(lambda: tr.get(b"k")) is None


def test_what_is_done_while_a_commit_is_under_way_fails_the_commit(db: fdb_sim.Database) -> None:
    tr = db.create_transaction()
    tr.set(b"k", b"v")
    future = tr.commit()
    assert code_of(lambda: tr.get(b"k")) == 2017
    assert code_of(future.wait) == 2017


def test_answers_that_nobody_looked_at_are_lost_with_their_transaction(
    db: fdb_sim.Database,
) -> None:
    tr = db.create_transaction()
    seen, unseen, version = tr.get(b"a"), tr.get(b"b"), tr.get_read_version()
    seen.wait()
    del tr
    assert code_of(seen.wait) is None
    assert code_of(unseen.wait) == 1025
    assert code_of(version.wait) == 1025
    orphan = db.create_transaction().get(b"a")
    assert code_of(orphan.wait) == 1025


def test_a_snapshot_or_a_range_keeps_its_transaction(db: fdb_sim.Database) -> None:
    put(db, b"k", b"v")
    snapshot = db.create_transaction().snapshot
    assert snapshot.get(b"k") == b"v"
    assert keys(db.create_transaction().get_range(b"a", b"z")) == [b"k"]


def test_what_was_asked_before_an_answered_commit_is_not_lost(db: fdb_sim.Database) -> None:
    put(db, b"k", b"v")
    tr = db.create_transaction()
    value, stamp = tr.get(b"k"), tr.get_versionstamp()
    tr.set(b"l", b"")
    tr.commit().wait()
    del tr
    assert value == b"v"
    assert len(stamp) == 10


def test_a_value_can_be_used_as_bytes(db: fdb_sim.Database) -> None:
    put(db, b"k", b"value")
    tr = db.create_transaction()
    value, missing = tr.get(b"k"), tr.get(b"missing")
    assert isinstance(value, bytes)
    assert (bytes(value), len(value), value[0], value.hex()) == (b"value", 5, 118, b"value".hex())
    assert (value + b"!", b"!" + value) == (b"value!", b"!value")
    assert b"a" < value < b"z"
    assert b"value" <= value <= value
    assert hash(value) == hash(b"value")
    assert (repr(value), str(missing)) == ("b'value'", "None")
    assert value.wait() is value
    assert missing == None  # noqa: E711 - as programs on the binding do
    assert not missing.present()
    with pytest.raises(TypeError):
        bytes(missing)
    tr.set(value, tr.get(b"k"))
    tr.clear(fdb_sim.KeySelector.first_greater_or_equal(b"j"))
    tr.commit().wait()
    assert rows(db.get_range(None, None)) == [(b"value", b"value")]


@pytest.mark.parametrize("wrong", ["text", None, 1])
def test_keys_and_values_are_bytes(db: fdb_sim.Database, wrong: object) -> None:
    tr = db.create_transaction()
    with pytest.raises(TypeError, match="Key must be of type bytes"):
        tr.get(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Value must be of type bytes"):
        tr.set(b"k", wrong)  # type: ignore[arg-type]


def test_a_transactional_function_is_tried_until_it_is_committed(db: fdb_sim.Database) -> None:
    tries = []

    @fdb_sim.transactional
    def increment(tr: fdb_sim.Transaction) -> bytes:
        number = int(bytes(tr[b"n"])) if tr[b"n"].present() else 0
        tries.append(number)
        if len(tries) < 3:
            put(db, b"n", b"%d" % (10 * len(tries)))
        tr[b"n"] = b"%d" % (number + 1)
        return bytes(tr[b"n"])

    assert increment(db) == b"21"
    assert (tries, db[b"n"]) == ([0, 10, 20], b"21")


def test_a_transactional_function_joins_the_callers_transaction(db: fdb_sim.Database) -> None:
    @fdb_sim.transactional(parameter="t")
    def write(key: bytes, t: fdb_sim.Transaction) -> None:
        t[key] = b""

    tr = db.create_transaction()
    write(b"k", tr)
    assert db[b"k"] is None
    tr.commit().wait()
    assert db[b"k"] == b""
    write(b"l", db)
    assert db[b"l"] == b""


def test_an_error_of_the_function_is_raised_and_nothing_is_written(db: fdb_sim.Database) -> None:
    @fdb_sim.transactional
    def fail(tr: fdb_sim.Transaction) -> None:
        tr[b"k"] = b""
        raise KeyError("mine")

    @fdb_sim.transactional
    def generate(tr: fdb_sim.Transaction) -> Iterator[bytes]:
        yield bytes(tr[b"k"])

    with pytest.raises(KeyError):
        fail(db)
    with pytest.raises(ValueError, match="Generators"):
        generate(db)
    assert db[b"k"] is None


def test_a_database_runs_single_operations(db: fdb_sim.Database) -> None:
    db[b"a"] = b"1"
    db.set(b"b", b"2")
    db.add(b"n", ONE)
    assert (db[b"a"], db.get(b"b"), db[b"n"]) == (b"1", b"2", ONE)
    assert keys(db[b"a":b"z":-1]) == [b"n", b"b", b"a"]
    assert db.get_key(fdb_sim.KeySelector.last_less_than(b"b")) == b"a"
    del db[b"a"]
    db.clear_range_startswith(b"b")
    del db[b"m":b"o"]
    assert db.get_range(None, None) == []


def test_a_cluster_keeps_the_clock_that_it_was_made_with(cluster: fdb_sim.Cluster) -> None:
    with pytest.raises(ValueError, match="keeps time"):
        fdb_sim.open(cluster, clock=ManualClock())
