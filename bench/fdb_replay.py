"""Runs the engine on FoundationDB against recorded answers, to measure its own CPU time.

The simulation takes far more time than the client library that it stands for. So a piece of work is
run once on the simulation, which counts the calls and records the answers. Then it is run again
and again with these answers and nothing behind them. What the official binding would add is
estimated from the number of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

# CPU time of calls into the official Python binding 7.3.79 on CPython 3.11, in microseconds,
# measured with a C library that answers at once and does nothing: what libfdb_c itself spends, in
# the caller's thread and in its network thread, comes on top. A future that is not ready when it is
# waited for costs more, because the binding creates a callback and a thread switch for it.
ASSUMED_US = {
    "create_transaction": 3.1,
    "get": 5.0,
    "get_range": 7.0,
    "part": 7.0,  # another part of a range that comes in several
    "row": 1.3,
    "get_read_version": 2.0,
    "get_versionstamp": 1.5,
    "commit": 1.5,
    "set": 0.8,
    "clear": 0.6,
    "clear_range": 0.9,
    "add": 1.0,
    "compare_and_clear": 1.0,
    "set_versionstamped_key": 1.0,
    "set_versionstamped_value": 1.0,
    "add_read_conflict_key": 1.3,
    "add_read_conflict_range": 1.1,
    "option": 0.8,
    "wait": 50.0,
}

Calls = Counter[str]


def binding_us(calls: Calls) -> float:
    """What the official binding would take for these calls."""
    return sum(ASSUMED_US[name] * count for name, count in calls.items())


class Recording:
    """The calls of some work, and the answers to its reads, by transaction."""

    def __init__(self) -> None:
        self.calls: Calls = Counter()
        self.answers: list[list[Canned]] = []


class Canned:
    """An answer."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None

    def wait(self) -> Any:
        return self.value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)


class Rounds:
    """Which requests of a transaction have been answered: all that were sent before a wait."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.number = 0

    def wait(self, asked: int) -> None:
        if asked == self.number:
            self.number += 1
            self._calls["wait"] += 1


class RecordedFuture:
    """An answer of the simulation that is recorded when it is used."""

    def __init__(self, future: Any, canned: Canned, rounds: Rounds, calls: Calls) -> None:
        self._future, self._canned, self._rounds, self._calls = future, canned, rounds, calls
        self._asked = rounds.number

    @property
    def value(self) -> Any:
        self._rounds.wait(self._asked)
        self._canned.value = self._future.value
        return self._canned.value

    def wait(self) -> Any:
        self._rounds.wait(self._asked)
        self._canned.value = self._future.wait()
        return self._canned.value

    def __iter__(self) -> Iterator[Any]:
        self._rounds.wait(self._asked)
        rows = list(self._future)
        self._calls["row"] += len(rows)
        self._canned.value = rows
        return iter(rows)


class RecordedReads:
    """The reads of a transaction, or of its snapshot."""

    def __init__(self, tr: Any, calls: Calls, answers: list[Canned], rounds: Rounds) -> None:
        self._tr, self._calls, self._answers, self._rounds = tr, calls, answers, rounds
        self._get_part = tr._get_range
        tr._get_range = self._count_part

    def _count_part(self, *args: Any) -> Any:
        """Called by the simulation for each part of a range. The first is counted elsewhere."""
        if args[4] > 1:
            self._calls.update(("part", "wait"))
        return self._get_part(*args)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> RecordedFuture:
        self._calls[name] += 1
        canned = Canned()
        self._answers.append(canned)
        future = getattr(self._tr, name)(*args, **kwargs)
        return RecordedFuture(future, canned, self._rounds, self._calls)

    def get(self, key: bytes) -> RecordedFuture:
        return self._ask("get", key)

    def get_range(self, *args: Any, **kwargs: Any) -> RecordedFuture:
        return self._ask("get_range", *args, **kwargs)

    def get_read_version(self) -> RecordedFuture:
        return self._ask("get_read_version")


class RecordedTransaction(RecordedReads):
    """A transaction of the simulation."""

    def __init__(self, tr: Any, recording: Recording) -> None:
        calls, answers = recording.calls, list[Canned]()
        calls["create_transaction"] += 1
        recording.answers.append(answers)
        super().__init__(tr, calls, answers, Rounds(calls))
        self.snapshot = RecordedReads(tr.snapshot, calls, answers, self._rounds)
        self.options = Options(calls, tr.options)

    def get_versionstamp(self) -> RecordedFuture:
        return self._ask("get_versionstamp")

    def commit(self) -> RecordedFuture:
        return self._ask("commit")

    def __getattr__(self, name: str) -> Any:
        """What is left: writes, and conflict ranges."""
        found = getattr(self._tr, name)
        return _counted(found, name, self._calls) if name in ASSUMED_US else found


class Options:
    def __init__(self, calls: Calls, options: Any) -> None:
        self._calls, self._options = calls, options

    def __getattr__(self, name: str) -> Any:
        return _counted(getattr(self._options, name), "option", self._calls)


def _counted(method: Callable[..., Any], name: str, calls: Calls) -> Callable[..., Any]:
    """A method whose calls are counted."""

    def call(*args: Any) -> Any:
        calls[name] += 1
        return method(*args)

    return call


class ReplayedTransaction:
    """Gives recorded answers, and does nothing."""

    def __init__(self, answers: list[Canned]) -> None:
        self._answers = iter(answers)
        self.snapshot = self
        self.options = self

    def _next(self, *args: Any, **kwargs: Any) -> Canned:
        return next(self._answers)

    def _nothing(self, *args: Any) -> None: ...

    get = get_range = get_read_version = get_versionstamp = commit = _next
    set = clear = clear_range = add = compare_and_clear = _nothing
    set_versionstamped_key = set_versionstamped_value = _nothing
    add_read_conflict_key = add_read_conflict_range = _nothing
    set_timeout = set_next_write_no_write_conflict_range = _nothing


class Database:
    """A database of the simulation, recorded or replaced by a recording."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.options = db.options
        self._recording: Recording | None = None
        self._replay: Iterator[list[Canned]] | None = None

    def record(self) -> Recording:
        """Record from now on."""
        self._recording = Recording()
        return self._recording

    def replay(self, recording: Recording) -> None:
        """Give recorded answers from now on, from the first."""
        self._replay = iter(recording.answers)

    def stop(self) -> None:
        """Use the simulation again."""
        if self._replay is not None and next(self._replay, None) is not None:
            raise RuntimeError("the engine did less than when it was recorded")
        self._recording = self._replay = None

    def create_transaction(self) -> Any:
        if self._replay is not None:
            return ReplayedTransaction(next(self._replay))
        tr = self._db.create_transaction()
        return tr if self._recording is None else RecordedTransaction(tr, self._recording)
