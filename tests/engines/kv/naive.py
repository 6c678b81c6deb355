"""The key-value API as one would explain it: no index, no cleverness, everything looked up anew.

A transaction keeps a log of its writes. What it sees at a key is found by going through that log;
what it sees in a range, by doing so at every place where something could change. It knows as much
as the random streams ask, and shares no code with the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

END = b"\xff"
FIRST_VERSION = 77_123_456  # large, so that a version is not mistaken for a value

Range = tuple[bytes, bytes]


class FDBError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class KeySelector:
    def __init__(self, key: bytes, or_equal: bool, offset: int) -> None:
        self.base = key + b"\0" if or_equal else key
        self.offset = offset


class StreamingMode:
    want_all = -2


class Row:
    def __init__(self, key: bytes, value: bytes) -> None:
        self.key = key
        self.value = value


class Now:
    """A future that is past."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self if isinstance(self._value, bytes | None) else self._value

    def present(self) -> bool:
        return self._value is not None

    def __bytes__(self) -> bytes:
        assert isinstance(self._value, bytes)
        return self._value


def _little(value: bytes, size: int) -> int:
    return int.from_bytes(value[:size], "little")


def _operate(name: str, old: bytes | None, new: bytes) -> bytes | None:
    """An atomic operation, byte by byte where the numbers do not say it more plainly."""
    size = len(new)
    padded = (old or b"")[:size].ljust(size, b"\0")
    if name == "compare_and_clear":
        return None if old == new else old
    if name == "append_if_fits":
        return (old or b"") + new
    if old is None:
        return new
    if name == "byte_max":
        return max(old, new)
    if name == "byte_min":
        return min(old, new)
    if name == "add":
        total = _little(padded, size) + _little(new, size)
        return (total & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if name == "bit_and":
        return bytes(a & b for a, b in zip(padded, new, strict=True))
    if name == "bit_or":
        return bytes(a | b for a, b in zip(padded, new, strict=True))
    if name == "bit_xor":
        return bytes(a ^ b for a, b in zip(padded, new, strict=True))
    if name == "max":
        return new if _little(new, size) >= _little(padded, size) else padded
    assert name == "min"
    return new if _little(new, size) <= _little(padded, size) else padded


class Sight:
    """What a transaction knows of one key from its own writes."""

    def __init__(self) -> None:
        self.changes: list[Callable[[bytes | None], bytes | None]] = []
        self.cleared = False
        self.unreadable = False
        self.hides = False  # nothing of what is stored shows through

    def value(self, stored: bytes | None) -> bytes | None:
        value = None if self.cleared else stored
        for change in self.changes:
            value = change(value)
        return value


class Database:
    def __init__(self) -> None:
        self.states: list[dict[bytes, bytes]] = [{}]  # by version
        self.writes: list[list[Range]] = [[]]

    def create_transaction(self) -> Transaction:
        return Transaction(self)


class Transaction:
    def __init__(self, db: Database) -> None:
        self.db = db
        self.log: list[tuple[Any, ...]] = []
        self.reads: list[Range] = []
        self.writes: list[Range] = []
        self.version = len(db.states) - 1
        self.committed = -1
        self.failed: int | None = None
        self._stamp: list[bytes | None] = [None]
        self.snapshot = SnapshotView(self)
        self.options = Options(self)
        self.next_conflicts = True

    def get_read_version(self) -> Now:
        return Now(FIRST_VERSION + self.version)

    def see(self, key: bytes) -> Sight:
        sight = Sight()
        for kind, begin, end, change in self.log:
            if not begin <= key < end:
                continue
            if kind in ("clear", "unknown"):
                sight = Sight()
                sight.cleared = sight.hides = kind == "clear"
                sight.unreadable = kind == "unknown"
            elif kind in ("set", "stamped"):
                if not (sight.unreadable and sight.changes):
                    sight.hides = True
                sight.changes.append(change)
                sight.unreadable = sight.unreadable or kind == "stamped"
            else:
                sight.changes.append(change)
        return sight

    def places(self, begin: bytes, end: bytes) -> list[bytes]:
        """Everywhere that what is seen could change."""
        found = {begin}
        for _, first, last, _ in self.log:
            found |= {first, last}
        for key in self.db.states[self.version]:
            found |= {key, key + b"\0"}
        return sorted(place for place in found if begin <= place < end)

    def walk(
        self, begin: bytes, end: bytes, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        stored = self.db.states[self.version]
        places = self.places(begin, end)
        for key in reversed(places) if reverse else places:
            sight = self.see(key)
            if sight.unreadable:
                self.failed = self.failed or 1036
                raise FDBError(1036)
            value = sight.value(stored.get(key))
            if value is not None or sight.changes:
                yield key, value

    def depend(self, begin: bytes, end: bytes, isolated: bool = True) -> None:
        if not isolated:
            return
        places = [*self.places(begin, end), end]
        for place, after in pairwise(places):
            if not self.see(place).hides:
                self.reads.append((place, after))

    def get(self, key: bytes, isolated: bool = True) -> Now:
        found = dict(self.walk(key, key + b"\0"))
        self.depend(key, key + b"\0", isolated)
        return Now(found.get(key))

    def get_range(
        self,
        begin: bytes,
        end: bytes,
        limit: int = 0,
        reverse: bool = False,
        streaming_mode: int = StreamingMode.want_all,
        isolated: bool = True,
    ) -> list[Row]:
        rows: list[Row] = []
        for key, value in self.walk(begin, end, reverse):
            if value is not None:
                rows.append(Row(key, value))
            if limit and len(rows) == limit:
                begin, end = (key, end) if reverse else (begin, key + b"\0")
                break
        self.depend(begin, end, isolated)
        return rows

    def get_key(self, selector: KeySelector, isolated: bool = True) -> Now:
        """Steps go over keys that an own compare_and_clear has removed, but the last does not end
        on one: so it is in the real client."""
        base, steps = selector.base, selector.offset
        forward = steps > 0
        left = steps - 1 if forward else -steps
        found = END if forward else b""
        walk = self.walk(base, END) if forward else self.walk(b"", base, reverse=True)
        for key, value in walk:
            if left:
                left -= 1
            elif value is not None:
                found = key
                break
        if forward:
            self.depend(base, min(found + b"\0", END), isolated)
        else:
            self.depend(found, base, isolated)
        return Now(found)

    def _write(self, kind: str, begin: bytes, end: bytes, change: Any, conflict: bool) -> None:
        self.log.append((kind, begin, end, change))
        if conflict and self.next_conflicts:
            self.writes.append((begin, end))
        self.next_conflicts = True

    def set(self, key: bytes, value: bytes) -> None:
        self._write("set", key, key + b"\0", lambda _: value, True)

    def clear(self, key: bytes) -> None:
        self.clear_range(key, key + b"\0")

    def clear_range(self, begin: bytes, end: bytes) -> None:
        if begin < end:
            self._write("clear", begin, end, None, True)
        self.next_conflicts = True

    def __getattr__(self, name: str) -> Any:
        if name not in _ATOMIC:
            raise AttributeError(name)

        def operation(key: bytes, param: bytes) -> None:
            def change(old: bytes | None) -> bytes | None:
                return _operate(name, old, param)

            self._write("atomic", key, key + b"\0", change, True)

        return operation

    def set_versionstamped_key(self, marked: bytes, value: bytes) -> None:
        place = int.from_bytes(marked[-4:], "little")
        before, after = marked[:place], marked[place + 10 : -4]
        lowest = _stamp_of(self.version)
        end = before + b"\xff" * 10 + after + b"\0"
        self._write("unknown", before + lowest + after, end, None, False)
        self.log.append(("key", b"", b"", lambda stamp: (before + stamp + after, value)))

    def set_versionstamped_value(self, key: bytes, marked: bytes) -> None:
        place = int.from_bytes(marked[-4:], "little")
        before, after = marked[:place], marked[place + 10 : -4]
        self._write("stamped", key, key + b"\0", lambda _: before + self._stamped() + after, True)

    def _stamped(self) -> bytes:
        assert self._stamp[0] is not None
        return self._stamp[0]

    def add_read_conflict_key(self, key: bytes) -> None:
        self.depend(key, key + b"\0")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self.depend(begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        self.writes.append((key, key + b"\0"))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        if begin < end:
            self.writes.append((begin, end))

    def get_versionstamp(self) -> Stamp:
        return Stamp(self._stamp)

    def get_committed_version(self) -> int:
        return self.committed

    def commit(self) -> Now:
        if self.failed:
            raise FDBError(self.failed)
        if not self.log and not self.writes:
            return Now(0)
        for writes in self.db.writes[self.version + 1 :]:
            for begin, end in writes:
                if any(begin < last and first < end for first, last in self.reads):
                    raise FDBError(1020)
        version = len(self.db.states)
        self.committed = FIRST_VERSION + version
        self._stamp[0] = _stamp_of(version)
        self.db.states.append(self._applied(dict(self.db.states[-1])))
        self.db.writes.append(self.writes)
        return Now(0)

    def _applied(self, state: dict[bytes, bytes]) -> dict[bytes, bytes]:
        for kind, begin, end, change in self.log:
            if kind == "clear":
                for key in [key for key in state if begin <= key < end]:
                    del state[key]
            elif kind == "key":
                key, value = change(self._stamped())
                state[key] = value
                self.writes.append((key, key + b"\0"))
            elif kind != "unknown":
                value = change(state.get(begin))
                if value is None:
                    state.pop(begin, None)
                else:
                    state[begin] = value
        return state


def _stamp_of(version: int) -> bytes:
    return (FIRST_VERSION + version).to_bytes(8, "big") + b"\0\0"


_ATOMIC = frozenset(
    {"add", "bit_and", "bit_or", "bit_xor", "min", "max", "byte_min", "byte_max"}
    | {"compare_and_clear", "append_if_fits"}
)


class Options:
    def __init__(self, tr: Transaction) -> None:
        self._tr = tr

    def set_next_write_no_write_conflict_range(self) -> None:
        self._tr.next_conflicts = False


class SnapshotView:
    """The same reads, that depend on nothing."""

    def __init__(self, tr: Transaction) -> None:
        self._tr = tr

    def get(self, key: bytes) -> Now:
        return self._tr.get(key, isolated=False)

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool, **_: Any) -> list[Row]:
        return self._tr.get_range(begin, end, limit, reverse, isolated=False)

    def get_key(self, selector: KeySelector) -> Now:
        return self._tr.get_key(selector, isolated=False)


class Stamp:
    def __init__(self, stamp: list[bytes | None]) -> None:
        self._stamp = stamp

    def wait(self) -> bytes:
        if self._stamp[0] is None:
            raise FDBError(2021)
        return self._stamp[0]
