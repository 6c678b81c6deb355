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
    except (LookupError, ValueError, OSError, TypeError, AttributeError):
        raise InvalidInput("tz", f"{tz!r} is not a time zone such as Europe/Copenhagen") from None
    start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
    if not isinstance(expression, str):
        raise InvalidInput("cron", f"must be text, not {type(expression).__name__}")
    try:
        # In an hour that comes twice, a time of its first run may be found in its second.
        ticks = (round(tick.timestamp() * 1000) for tick in CronSim(expression, start))
        return next(tick for tick in ticks if tick > after_ms)
    except CronSimError as error:
        raise InvalidInput("cron", f"{expression!r}: {error}") from None
    except StopIteration:
        raise InvalidInput("cron", f"{expression!r} names no time in the next 50 years") from None
