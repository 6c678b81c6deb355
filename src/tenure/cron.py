"""When a cron expression fires next: pure, and aware of daylight saving."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tenure.errors import InvalidInput


def next_tick(expression: str, tz: str, after_ms: int) -> int:
    """The first time after `after_ms` that the expression names in that time zone."""
    try:
        zone = ZoneInfo(tz)
    except (LookupError, ValueError, OSError):
        raise InvalidInput("tz", f"{tz!r} is not a time zone such as Europe/Copenhagen") from None
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
    try:
        tick = next(CronSim(expression, start))
    except CronSimError as error:
        raise InvalidInput("cron", f"{expression!r}: {error}") from None
    except StopIteration:
        raise InvalidInput("cron", f"{expression!r} names no time in the next 50 years") from None
    return round(tick.timestamp() * 1000)
