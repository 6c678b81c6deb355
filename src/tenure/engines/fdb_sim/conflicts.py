"""The resolver: which keys were written after a version."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.engines.fdb_sim.steps import Steps
from tenure.engines.fdb_sim.writes import ALL_KEYS_END, Range

_SWEEP_FROM = 1_000


class ConflictSet:
    """The last version that wrote to each key, for as long as a transaction may live."""

    def __init__(self) -> None:
        self._written: Steps[int] = Steps(0)
        self._newest = 0
        self._sweep_at = _SWEEP_FROM

    def __len__(self) -> int:
        return len(self._written)

    def written_since(self, reads: Iterable[Range], version: int) -> bool:
        """Whether someone wrote to what was read at `version`."""
        if self._newest <= version:
            return False
        later = version.__lt__
        return any(self._written.any(begin, end, later) for begin, end in reads)

    def add(self, writes: Iterable[Range], version: int) -> None:
        """Remember what a commit wrote."""
        for begin, end in writes:
            self._written.paint(begin, end, version)
            self._newest = version

    def prune(self, oldest: int) -> None:
        """Forget writes that nobody can conflict with any more. It costs a walk over everything,
        so it is done when the set has doubled."""
        if len(self._written) < self._sweep_at:
            return
        kept: Steps[int] = Steps(0)
        for begin, end, version in self._written.spans(b"", ALL_KEYS_END):
            if version > oldest:
                kept.paint(begin, end, version)
        self._written = kept
        self._sweep_at = max(_SWEEP_FROM, 2 * len(kept))
