"""What goes wrong on purpose, by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

from tests.fdb_sim.errors import CLUSTER_VERSION_CHANGED, UNKNOWN_RESULT


class Fate(Enum):
    """What happens to a commit."""

    NORMAL = "normal"
    CONFLICT = "conflict"
    UNKNOWN_APPLIED = "unknown_applied"
    UNKNOWN_LOST = "unknown_lost"
    TIMEOUT_APPLIED = "timeout_applied"
    TIMEOUT_LOST = "timeout_lost"
    TIMEOUT_LATE = "timeout_late"
    RECOVERY = "recovery"


@dataclass(frozen=True)
class Faults:
    """How often each thing goes wrong, from 0 (never) to 1 (always), and how long things take.

    A timeout strikes only a transaction that has one set, as on a cluster; its commit is then lost,
    was applied, or is still under way and is applied up to `late_s` after the client gave up. A
    recovery of the cluster leaves a commit unknown and moves versions ahead; sometimes another
    follows."""

    seed: int = 0
    conflict: float = 0.0
    unknown_applied: float = 0.0
    unknown_lost: float = 0.0
    too_old: float = 0.0
    recovery: float = 0.0
    timeout: float = 0.0
    delay_s: float = 0.0
    late_s: float = 2.0


class Dice:
    """Decides, the same way for the same seed and the same calls."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._random = random.Random(faults.seed)
        self._unknown = 0

    def fate(self, *, has_timeout: bool) -> Fate:
        """What a commit meets."""
        faults = self._faults
        roll = self._random.random()
        for fate, share in (
            (Fate.CONFLICT, faults.conflict),
            (Fate.UNKNOWN_APPLIED, faults.unknown_applied),
            (Fate.UNKNOWN_LOST, faults.unknown_lost),
            (Fate.RECOVERY, faults.recovery),
        ):
            if roll < share:
                return fate
            roll -= share
        if has_timeout and roll < faults.timeout:
            late = (Fate.TIMEOUT_APPLIED, Fate.TIMEOUT_LOST, Fate.TIMEOUT_LATE)
            return self._random.choice(late)
        return Fate.NORMAL

    def jump_s(self) -> float:
        """How far a recovery moves versions ahead."""
        return self._random.choice((1, 1, 2)) * self._random.uniform(95, 99)

    def either(self) -> bool:
        return self._random.random() < 0.5

    def unknown(self) -> int:
        """How a client hears that it is not known whether a commit happened."""
        self._unknown += 1
        upgraded = self._unknown % 4 == 0
        return CLUSTER_VERSION_CHANGED if upgraded else UNKNOWN_RESULT

    def too_old(self) -> bool:
        """Whether a read finds its version gone."""
        return self._strikes(self._faults.too_old)

    def timeout(self) -> bool:
        """Whether a read takes longer than its transaction may."""
        return self._strikes(self._faults.timeout)

    def delay_s(self) -> float:
        """How long an answer takes."""
        longest = self._faults.delay_s
        return self._random.uniform(0, longest) if longest else 0.0

    def late_s(self) -> float:
        """How long a commit is under way after its client gave up."""
        return self._random.uniform(0, self._faults.late_s)

    def backoff(self, longest: float) -> float:
        """How long to wait before the next try."""
        return self._random.uniform(0, longest)

    def _strikes(self, share: float) -> bool:
        return bool(share) and self._random.random() < share
