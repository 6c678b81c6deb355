"""Questions about the edges of the key-value API, one at a time.

They are those of edges.json, asked of any implementation; `pause` lets time pass on its clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

P = b"tenure-edges/"
STAMP = b"\xff" * 10

Answer = list[Any]
Question = Callable[["Asker"], Answer]

QUESTIONS: dict[str, Question] = {}


def question(name: str) -> Callable[[Question], Question]:
    def add(ask: Question) -> Question:
        QUESTIONS[name] = ask
        return ask

    return add


class Asker:
    """Asks an implementation."""

    def __init__(self, fdb: Any, db: Any, pause: Callable[[float], None]) -> None:
        self.fdb = fdb
        self.db = db
        self.pause = pause

    def fresh(self) -> Any:
        """A transaction on an empty store."""
        tr = self.db.create_transaction()
        tr.clear_range(P, P + b"\xff")
        tr.commit().wait()
        return self.db.create_transaction()

    def code(self, step: Callable[[], Any]) -> Any:
        """What a step answers, or the code of its error."""
        try:
            answer = step()
            if hasattr(answer, "wait"):
                answer = answer.wait()
        except self.fdb.FDBError as error:
            return error.code
        if answer is None:
            return "ok"
        return answer.hex() if isinstance(answer, bytes) else answer

    def codes(self, *steps: Callable[[], Any]) -> Answer:
        return [self.code(step) for step in steps]

    def put(self, value: bytes) -> None:
        tr = self.db.create_transaction()
        tr.set(P + b"w", value)
        tr.commit().wait()

    def changed(self, change: Callable[[Any], None]) -> Answer:
        """Whether a watch fires after a change."""
        tr = self.fresh()
        tr.set(P + b"w", b"1")
        tr.commit().wait()
        tr = self.db.create_transaction()
        watch = tr.watch(P + b"w")
        tr.commit().wait()
        tr = self.db.create_transaction()
        change(tr)
        tr.commit().wait()
        self.pause(0.7)
        return [watch.is_ready()]


def _value(value: Any) -> Any:
    return bytes(value) if value.present() else "missing"


def _bytes(value: Any) -> bytes:
    return bytes(value)


def _place(key: bytes) -> bytes:
    return len(key).to_bytes(4, "little")


def _set_one(key_length: int, value_length: int) -> Question:
    def ask(asker: Asker) -> Answer:
        tr = asker.fresh()
        key, value = P + b"k" * (key_length - len(P)), b"v" * value_length
        return asker.codes(lambda: tr.set(key, value), tr.commit)

    return ask


question("key of 10,000 bytes: set, commit")(_set_one(10_000, 0))
question("key of 10,001 bytes: set, commit")(_set_one(10_001, 0))
question("value of 100,000 bytes: set, commit")(_set_one(len(P) + 1, 100_000))
question("value of 100,001 bytes: set, commit")(_set_one(len(P) + 1, 100_001))


def _fill(tr: Any, count: int) -> None:
    for number in range(count):
        tr.set(P + b"%06d" % number, b"v" * 90_000)


@question("110 values of 90,000 bytes (9.9 MB): commit")
def _just_small_enough(asker: Asker) -> Answer:
    tr = asker.fresh()
    _fill(tr, 110)
    return asker.codes(tr.commit)


@question("112 values of 90,000 bytes (10.08 MB): approximate size, commit")
def _too_large(asker: Asker) -> Answer:
    tr = asker.fresh()
    _fill(tr, 112)
    return asker.codes(tr.get_approximate_size, tr.commit)


@question("inverted get_range, then commit")
def _inverted_get(asker: Asker) -> Answer:
    tr = asker.fresh()
    return asker.codes(lambda: list(tr.get_range(P + b"b", P + b"a")), tr.commit)


@question("inverted clear_range, then commit")
def _inverted_clear(asker: Asker) -> Answer:
    tr = asker.fresh()
    return asker.codes(lambda: tr.clear_range(P + b"b", P + b"a"), tr.commit)


@question("empty get_range and clear_range")
def _empty_ranges(asker: Asker) -> Answer:
    tr = asker.fresh()
    return asker.codes(
        lambda: list(tr.get_range(P + b"a", P + b"a")),
        lambda: tr.clear_range(P + b"a", P + b"a"),
        tr.commit,
    )


@question("set of a key that starts with ff: set, commit")
def _system_key(asker: Asker) -> Answer:
    tr = asker.fresh()
    return asker.codes(lambda: tr.set(b"\xff/x", b""), tr.commit)


@question("versionstamped key, offset past the end: op, commit")
def _stamp_past_the_end(asker: Asker) -> Answer:
    tr = asker.fresh()
    key = P + STAMP + (99).to_bytes(4, "little")
    return asker.codes(lambda: tr.set_versionstamped_key(key, b""), tr.commit)


@question("versionstamped key, too short for an offset: op, commit")
def _stamp_too_short(asker: Asker) -> Answer:
    tr = asker.fresh()
    return asker.codes(lambda: tr.set_versionstamped_key(b"a", b""), tr.commit)


@question(
    "two versionstamped keys of one transaction carry the same ten bytes, "
    "which get_versionstamp tells"
)
def _same_stamp(asker: Asker) -> Answer:
    tr = asker.fresh()
    future = tr.get_versionstamp()
    for key in (P + b"1", P + b"2"):
        tr.set_versionstamped_key(key + STAMP + _place(key), b"x")
    tr.commit().wait()
    stamp = bytes(future.wait())
    reader = asker.db.create_transaction()
    rows = [bytes(row.key)[len(P) :] for row in reader.get_range(P, P + b"\xff")]
    version = int.from_bytes(stamp[:8], "big")
    return [rows == [b"1" + stamp, b"2" + stamp], version == tr.get_committed_version()]


@question("get_versionstamp after commit")
def _stamp_after_commit(asker: Asker) -> Answer:
    tr = asker.fresh()
    return asker.codes(lambda: tr.set(P + b"a", b""), tr.commit, tr.get_versionstamp)


@question("read-only: get, commit, committed version, versionstamp")
def _read_only(asker: Asker) -> Answer:
    tr = asker.fresh()
    stamp = tr.get_versionstamp()
    return asker.codes(
        lambda: _value(tr.get(P + b"a")), tr.commit, tr.get_committed_version, lambda: stamp
    )


@question(
    "read over an own versionstamped key: get_range, get of another key, snapshot get_range, commit"
)
def _unreadable_range(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.set_versionstamped_key(P + b"s" + STAMP + _place(P + b"s"), b"")
    return asker.codes(
        lambda: list(tr.get_range(P, P + b"\xff")),
        lambda: _value(tr.get(P + b"a")),
        lambda: list(tr.snapshot.get_range(P, P + b"\xff")),
        tr.commit,
    )


@question("get of an own versionstamped value, commit")
def _unreadable_value(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.set_versionstamped_value(P + b"v", STAMP + b"\0\0\0\0")
    return asker.codes(lambda: _value(tr.get(P + b"v")), tr.commit)


@question("snapshot sees own writes")
def _snapshot_sees(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.set(P + b"a", b"1")
    return asker.codes(lambda: _bytes(tr.snapshot.get(P + b"a")))


@question("commit, then set and commit on the same transaction")
def _used_again(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.set(P + b"a", b"1")
    return asker.codes(tr.commit, lambda: tr.set(P + b"b", b"1"), tr.commit)


@question("timeout of 1 ms, 50 ms later: get")
def _timed_out(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.options.set_timeout(1)
    asker.pause(0.05)
    return asker.codes(lambda: _value(tr.get(P + b"a")))


@question("add with wrap at one byte")
def _add_wraps(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.add(P + b"n", b"\xff")
    tr.add(P + b"n", b"\x01")
    return asker.codes(lambda: _bytes(tr.get(P + b"n")))


@question("one-byte add on a two-byte value")
def _short_add(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.set(P + b"n", b"\x01\x02")
    tr.add(P + b"n", b"\x01")
    return asker.codes(lambda: _bytes(tr.get(P + b"n")))


@question("eight-byte add of -1 on a one-byte 1")
def _long_add(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.set(P + b"n", b"\x01")
    tr.add(P + b"n", (-1).to_bytes(8, "little", signed=True))
    return asker.codes(lambda: _bytes(tr.get(P + b"n")))


@question("compare_and_clear on a missing key")
def _compare_missing(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.compare_and_clear(P + b"n", b"")
    return asker.codes(lambda: tr.get(P + b"n").present())


@question("watch fires after a set to another value")
def _watch_set(asker: Asker) -> Answer:
    return asker.changed(lambda tr: tr.set(P + b"w", b"2"))


@question("watch fires after a set to the same value")
def _watch_same(asker: Asker) -> Answer:
    return asker.changed(lambda tr: tr.set(P + b"w", b"1"))


@question("watch fires after a clear")
def _watch_clear(asker: Asker) -> Answer:
    return asker.changed(lambda tr: tr.clear(P + b"w"))


@question("watch fires after an add of 0")
def _watch_add(asker: Asker) -> Answer:
    return asker.changed(lambda tr: tr.add(P + b"w", b"\0"))


@question("watch fires after nothing")
def _watch_nothing(asker: Asker) -> Answer:
    return asker.changed(lambda _: None)


@question("a watch in a transaction that also writes, key changed before commit: commit")
def _watch_conflicts(asker: Asker) -> Answer:
    tr = asker.fresh()
    watch = tr.watch(P + b"w")  # one that nobody keeps is given up at once, and depends on nothing
    asker.put(b"9")
    tr.set(P + b"other", b"")
    found = asker.codes(tr.commit)
    watch.cancel()
    return found


@question("a watch in a transaction with a timeout of 1 s: ready 1.5 s later, after a set")
def _watch_outlives_the_timeout(asker: Asker) -> Answer:
    tr = asker.fresh()
    tr.options.set_timeout(1000)
    watch = tr.watch(P + b"w")
    tr.commit().wait()
    asker.pause(1.5)
    before = watch.is_ready()
    asker.put(b"changed")
    asker.pause(0.7)
    return [before, watch.is_ready(), *asker.codes(lambda: watch)]


@question("a watch before its transaction committed is ready")
def _watch_uncommitted(asker: Asker) -> Answer:
    tr = asker.fresh()
    watch = tr.watch(P + b"w")
    asker.pause(0.3)
    return [watch.is_ready()]


@question(
    "6.5 s after the read version, cluster busy: get, then commit of a blind write made by another"
)
def _too_old(asker: Asker) -> Answer:
    asker.fresh()
    reader, writer = asker.db.create_transaction(), asker.db.create_transaction()
    reader.get_read_version().wait()
    writer.get_read_version().wait()
    writer.set(P + b"blind", b"")
    for _ in range(65):
        asker.pause(0.1)
        asker.put(b"busy")
    return asker.codes(lambda: _value(reader.get(P + b"a")), writer.commit)
