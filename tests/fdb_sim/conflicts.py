"""The resolver: which keys were written after a version."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fdb_sim.ordered import Ordered
from tests.fdb_sim.steps import Steps
from tests.fdb_sim.writes import ALL_KEYS_END, Range

_SWEEP_FROM = 1_000


class ConflictSet:
    """The last version that wrote to each key, for as long as a transaction may live. Most writes
    are of single keys, so those are kept apart from the ranges."""

    def __init__(self) -> None:
        self._keys: Ordered[int] = Ordered()
        self._ranges: Steps[int] = Steps(0)
        self._newest = 0
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._keys) + len(self._ranges)

    def written_since(self, reads: Iterable[Range], version: int) -> bool:
        """Whether someone wrote to what was read at `version`."""
        if self._newest <= version:
            return False
        keys, later = self._keys, version.__lt__
        for begin, end in reads:
            if end == begin + b"\x00":
                if (keys.get(begin) or 0) > version:
                    return True
            elif any(keys[key] > version for key in keys.between(begin, end)):
                return True
            if self._ranges.any(begin, end, later):
                return True
        return False

    def add(self, writes: Iterable[Range], version: int) -> None:
        """Remember what a commit wrote."""
        for begin, end in writes:
            if end == begin + b"\x00":
                self._keys[begin] = version
            else:
                self._ranges.paint(begin, end, version)
            self._newest = version

    def prune(self, oldest: int) -> None:
        """Forget writes that nobody can conflict with any more. It costs a walk over everything,
        so it is done when the set has doubled."""
        if len(self) < self._sweep_at:
            return
        keys: Ordered[int] = Ordered()
        for key in self._keys.between(b"", ALL_KEYS_END):
            if self._keys[key] > oldest:
                keys[key] = self._keys[key]
        ranges: Steps[int] = Steps(0)
        for begin, end, version in self._ranges.spans(b"", ALL_KEYS_END):
            if version > oldest:
                ranges.paint(begin, end, version)
        self._keys, self._ranges = keys, ranges
        self._sweep_at = max(_SWEEP_FROM, 2 * len(self))
