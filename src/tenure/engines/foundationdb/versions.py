"""Whether the cluster's versions pass with the clocks of this process: a million in a second."""

from __future__ import annotations

import threading
from typing import NamedTuple

from tenure.clock import Clock

VERSIONS_PER_MS = 1_000
_SLACK_MS = 10_000  # in an idle cluster, versions stand still for up to two seconds
_AWAY_MS = 300_000  # after which a jump cannot be told from versions that were slow or fast


class Jumped(NamedTuple):
    """Versions that moved too far between two transactions of this process."""

    after: int  # the last version before it
    skipped: int  # versions for which no time passed


class Look(NamedTuple):
    """A version, and this process's clocks before it was requested."""

    version: int
    monotonic: float
    wall_ms: int


class Watched(NamedTuple):
    """Since when this process has watched versions without a jump."""

    since: Look
    jumped: Jumped | None  # why it does not watch for longer; None: it started, or was away


class Pace:
    """The versions that this process has seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Look | None = None
        self.watched: Watched | None = None

    def begin(self) -> float:
        """The time before a version is requested, for `see`."""
        return self._clock.monotonic()

    def see(self, version: int, began: float) -> None:
        """Compare a version with the clocks. Only a jump exceeds both of them: a clock that is set
        leaves the other as it is, and so does a machine that was suspended."""
        monotonic, wall_ms = self._clock.monotonic(), self._clock.now_ms()
        look = Look(version, began, wall_ms - round((monotonic - began) * 1000))
        with self._lock:
            last = self._last
            if last is None:
                self.watched = Watched(look, None)
            elif version <= last.version:
                return
            else:
                moved_ms = (version - last.version) // VERSIONS_PER_MS
                elapsed_ms = round((monotonic - last.monotonic) * 1000)
                passed_ms = max(0, elapsed_ms, wall_ms - last.wall_ms)
                if moved_ms > passed_ms * 9 // 8 + _SLACK_MS:
                    skipped = (moved_ms - passed_ms) * VERSIONS_PER_MS
                    self.watched = Watched(look, Jumped(last.version, skipped))
                elif moved_ms > _AWAY_MS:
                    self.watched = Watched(look, None)
            self._last = look
