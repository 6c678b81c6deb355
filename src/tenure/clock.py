"""The clock, which is passed down: no other module reads the time by itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time to the rest of Tenure."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring durations."""

    def sleep(self, seconds: float) -> None:
        """Sleep for some seconds."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
