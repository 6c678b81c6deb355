"""When a cron expression fires. Pure, and aware of daylight saving time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tenure.errors import InvalidInput

CatchUp = Literal["last", "all", "none"]

LATE_MS = 60_000  # a time that is at most this late does not count as missed
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_MINUTE = timedelta(minutes=1)


def next_tick(expression: str, tz: str, after_ms: int) -> int:
    """The first time after `after_ms` that matches the expression in this time zone."""
    try:
        return next(_ticks(expression, tz, after_ms))
    except StopIteration:
        raise InvalidInput("cron", f"{expression!r} names no time in the next 50 years") from None


def due_tick(
    expression: str, tz: str, catch_up: CatchUp, first_ms: int, now_ms: int
) -> tuple[int | None, int]:
    """What to do at `now_ms` about a schedule whose next time was `first_ms`. Returns the time to
    fire for, if any, and the next time after it."""
    if catch_up == "all":
        return first_ms, next_tick(expression, tz, first_ms)
    last = last_tick(expression, tz, first_ms, now_ms)
    missed = catch_up == "none" and now_ms - last > LATE_MS
    return None if missed else last, next_tick(expression, tz, last)


def last_tick(expression: str, tz: str, first_ms: int, now_ms: int) -> int:
    """The last matching time from `first_ms` up to now. Searches close to now first: an
    every-minute schedule that did not run for a year has missed half a million times."""
    for window_ms in (_HOUR_MS, _DAY_MS, 31 * _DAY_MS, now_ms - first_ms):
        start_ms = max(first_ms, now_ms - window_ms)
        passed = takewhile(lambda tick: tick <= now_ms, _ticks(expression, tz, start_ms))
        last = max(passed, default=None)
        if last is not None:
            return last
        if start_ms == first_ms:
            break
    return first_ms


def _ticks(expression: str, tz: str, after_ms: int) -> Iterator[int]:
    try:
        zone = ZoneInfo(tz)
    except (LookupError, ValueError, OSError, TypeError, AttributeError):
        raise InvalidInput("tz", f"{tz!r} is not a time zone such as Europe/Copenhagen") from None
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
    if not isinstance(expression, str):
        raise InvalidInput("cron", f"must be text, not {type(expression).__name__}")
    try:
        for tick in _local_ticks(expression, start, zone):
            # When an hour repeats, a time from its first pass may be found again in the second. All
            # times in a skipped hour map to the same one.
            tick_ms = round(tick.timestamp() * 1000)
            if tick_ms > after_ms:
                after_ms = tick_ms
                yield tick_ms
    except CronSimError as error:
        raise InvalidInput(
            "cron",
            f"{expression!r} is not a cron expression (minute hour day month weekday, such as "
            f"'0 3 * * *'): {error}",
        ) from None


def _local_ticks(expression: str, start: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """The local times that match. An expression for every hour follows elapsed hours. One that
    names hours follows the wall clock: a repeated time fires at its first occurrence, and a skipped
    time at the end of the gap. (CronSim by itself skips it if the minutes are `*/30`, as Debian's
    cron does, so a daily job would miss a day.)"""
    by_the_clock = CronSim(expression, start.replace(tzinfo=None))
    if by_the_clock.parts[2].startswith("*") and len(by_the_clock.hours) == 24:
        yield from CronSim(expression, start)
        return
    for local in by_the_clock:
        yield _existing(local, zone)


def _existing(local: datetime, zone: ZoneInfo) -> datetime:
    """A local time in its zone; if it is skipped there, the first time after the gap."""
    found = local.replace(tzinfo=zone)
    while found.astimezone(UTC).astimezone(zone) != found:
        local = local.replace(second=0) + _MINUTE
        found = local.replace(tzinfo=zone)
    return found
