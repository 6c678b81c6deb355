"""For tests: a clock that is moved by hand."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the time; backwards, too, as a clock that is set right does."""
        self._now_ms += round(seconds * 1000)
