"""What a task may return or raise to decide what becomes of its job."""

from __future__ import annotations

from datetime import timedelta

from tenure.fields import span_ms


class Outcome(Exception):
    """The base of those below. Returned or raised, it means the same."""


class Snooze(Outcome):
    """Not now: run it again after some seconds. The attempt does not count."""

    def __init__(self, seconds: float | timedelta, reason: str = "") -> None:
        self.delay_ms = span_ms("seconds", seconds)
        self.reason = reason
        super().__init__(reason or f"again in {self.delay_ms / 1000:g} s")


class Retry(Outcome):
    """It did not work: try again after some seconds, or after the job's backoff. The attempt
    counts; when it was the last, the job is dead."""

    def __init__(self, after: float | timedelta | None = None, reason: str = "") -> None:
        self.after_ms = None if after is None else span_ms("after", after)
        self.reason = reason
        super().__init__(reason or "asked to be tried again")


class Cancel(Outcome):
    """It need not be done: the job is cancelled."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "called off by its task")


class Dead(Outcome):
    """It can never work: the job is dead at once, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "given up by its task")
