"""When a cron expression fires next, also when the clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import InvalidInput
from tenure.model.cron import due_tick, next_tick

COPENHAGEN = "Europe/Copenhagen"


def ms(text: str) -> int:
    """A time that is written with its offset."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(expression: str, after: str, count: int, tz: str = COPENHAGEN) -> list[str]:
    """The next times, written as a clock in that zone shows them."""
    now, found = ms(after), []
    for _ in range(count):
        now = next_tick(expression, tz, now)
        local = datetime.fromtimestamp(now / 1000, UTC).astimezone(ZoneInfo(tz))
        found.append(local.isoformat(timespec="minutes"))
    return found


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2024-05-01T10:00:00Z", "2024-05-01T10:01Z"),
        ("* * * * *", "2024-05-01T10:00:59.999Z", "2024-05-01T10:01Z"),
        ("*/15 * * * *", "2024-05-01T10:07:00Z", "2024-05-01T10:15Z"),
        ("0 0 * * *", "2024-12-31T23:59:59Z", "2025-01-01T00:00Z"),
        ("0 9 * * 1-5", "2024-05-03T09:00:00Z", "2024-05-06T09:00Z"),
        ("0 0 29 2 *", "2024-03-01T00:00:00Z", "2028-02-29T00:00Z"),
        ("0 0 1 1,7 *", "2024-02-01T00:00:00Z", "2024-07-01T00:00Z"),
        ("30 8 * * 7", "2024-05-01T00:00:00Z", "2024-05-05T08:30Z"),
        ("0 0 L * *", "2024-02-10T00:00:00Z", "2024-02-29T00:00Z"),
    ],
)
def test_the_next_time_is_found(expression: str, after: str, expected: str) -> None:
    assert next_tick(expression, "UTC", ms(after)) == ms(expected)


def test_the_next_time_is_after_now_even_at_a_tick() -> None:
    now = ms("2024-05-01T10:00:00Z")
    assert next_tick("* * * * *", "UTC", now - 1) == now
    assert next_tick("* * * * *", "UTC", now) == now + 60_000
    assert next_tick("* * * * *", "UTC", now + 1) == now + 60_000


def test_the_zone_counts() -> None:
    after = "2024-07-01T00:00:00Z"
    assert next_tick("0 12 * * *", "UTC", ms(after)) == ms("2024-07-01T12:00Z")
    assert next_tick("0 12 * * *", COPENHAGEN, ms(after)) == ms("2024-07-01T10:00Z")
    assert next_tick("0 12 * * *", "Asia/Kolkata", ms(after)) == ms("2024-07-01T06:30Z")


# The clocks go forward from 02:00 to 03:00 on 31 March 2024, and back from 03:00 to 02:00 on 27
# October.


def test_a_time_that_is_skipped_in_spring_fires_when_the_hour_is_over() -> None:
    assert ticks("30 2 * * *", "2024-03-30T12:00+01:00", 3) == [
        "2024-03-31T03:00+02:00",
        "2024-04-01T02:30+02:00",
        "2024-04-02T02:30+02:00",
    ]


def test_every_half_hour_skips_what_is_not_there_in_spring() -> None:
    assert ticks("*/30 * * * *", "2024-03-31T00:59+01:00", 4) == [
        "2024-03-31T01:00+01:00",
        "2024-03-31T01:30+01:00",
        "2024-03-31T03:00+02:00",
        "2024-03-31T03:30+02:00",
    ]


def test_a_time_that_comes_twice_in_autumn_fires_once() -> None:
    assert ticks("30 2 * * *", "2024-10-26T12:00+02:00", 3) == [
        "2024-10-27T02:30+02:00",
        "2024-10-28T02:30+01:00",
        "2024-10-29T02:30+01:00",
    ]


def test_every_half_hour_goes_on_through_the_hour_that_comes_twice_in_autumn() -> None:
    assert ticks("*/30 * * * *", "2024-10-27T01:59+02:00", 6) == [
        "2024-10-27T02:00+02:00",
        "2024-10-27T02:30+02:00",
        "2024-10-27T02:00+01:00",
        "2024-10-27T02:30+01:00",
        "2024-10-27T03:00+01:00",
        "2024-10-27T03:30+01:00",
    ]


def test_a_daily_time_is_never_in_the_past_in_the_hour_that_comes_twice() -> None:
    assert ticks("30 2 * * *", "2024-10-27T02:10+01:00", 1)[0] in (
        "2024-10-27T02:30+01:00",
        "2024-10-28T02:30+01:00",
    )


@pytest.mark.parametrize(
    "expression", ["*/30 2 * * *", "*/20 2 * * *", "* 2 * * *", "0 30 2 * * *"]
)
def test_a_skipped_hour_loses_no_day_whatever_its_minutes_are(expression: str) -> None:
    first, second = ticks(expression, "2024-03-30T12:00+01:00", 2)
    assert first == "2024-03-31T03:00+02:00"
    assert second.startswith("2024-04-01T02:")


def test_every_half_hour_of_an_hour_that_comes_twice_fires_once() -> None:
    assert ticks("*/30 2 * * *", "2024-10-26T12:00+02:00", 3) == [
        "2024-10-27T02:00+02:00",
        "2024-10-27T02:30+02:00",
        "2024-10-28T02:00+01:00",
    ]


def test_a_midnight_that_is_skipped_loses_no_day() -> None:
    assert ticks("0 */12 * * *", "2024-04-25T13:00+02:00", 2, "Africa/Cairo") == [
        "2024-04-26T01:00+03:00",
        "2024-04-26T12:00+03:00",
    ]


def test_a_day_that_is_skipped_fires_when_it_is_over() -> None:
    assert ticks("0 12 30 12 *", "2011-12-01T00:00-10:00", 1, "Pacific/Apia") == [
        "2011-12-31T00:00+14:00"
    ]


# One change forward and one back of each, by noon UTC of the day before.
CHANGES = {
    "Europe/Copenhagen": ("2024-03-30", "2024-10-26"),
    "America/New_York": ("2024-03-09", "2024-11-02"),
    "Africa/Cairo": ("2024-04-25", "2024-10-31"),  # at midnight
    "Australia/Lord_Howe": ("2024-10-05", "2024-04-06"),  # by half an hour
    "Antarctica/Troll": ("2024-03-30", "2024-10-26"),  # by two hours
    "Asia/Kolkata": ("2024-03-30", "2024-10-26"),  # not at all
}
MINUTES = {"0": {0}, "15,45": {15, 45}, "*/30": {0, 30}, "*": set(range(60))}
HOURS = {
    "*": set(range(24)),
    "2": {2},
    "0-3": {0, 1, 2, 3},
    "*/12": {0, 12},
    "*/2": set(range(0, 24, 2)),
}


def named(minutes: set[int], hours: set[int], every_hour: bool, start: int, tz: str) -> list[int]:
    """The times of two days, found by looking at every minute of them: all that a clock shows, or,
    where hours are named, each once, and what no clock shows when a clock is past it."""
    zone, found = ZoneInfo(tz), []
    shown: set[datetime] = set()
    wall = datetime.fromtimestamp(start / 1000, zone).replace(tzinfo=None)
    for at in range(start + 60_000, start + 2 * 86_400_000, 60_000):
        before, wall = wall, datetime.fromtimestamp(at / 1000, zone).replace(tzinfo=None, fold=0)
        skipped = max(0, (wall - before) // timedelta(minutes=1) - 1)
        shows = [wall - timedelta(minutes=n) for n in range(skipped + 1)]
        if every_hour:
            shows = [wall]
        new = [one for one in shows if every_hour or one not in shown]
        shown.update(shows)
        if any(one.minute in minutes and one.hour in hours for one in new):
            found.append(at)
    return found


@pytest.mark.parametrize("minute", MINUTES)
@pytest.mark.parametrize("hour", HOURS)
@pytest.mark.parametrize(("tz", "day"), [(tz, day) for tz, days in CHANGES.items() for day in days])
def test_around_a_change_of_the_clocks_the_times_are_those_that_clocks_show(
    minute: str, hour: str, tz: str, day: str
) -> None:
    start = now = ms(f"{day}T12:00Z")
    found = []
    while (now := next_tick(f"{minute} {hour} * * *", tz, now)) < start + 2 * 86_400_000:
        found.append(now)
    assert found == named(MINUTES[minute], HOURS[hour], hour == "*", start, tz)


@pytest.mark.parametrize("start", ["2024-03-31T00:00+01:00", "2024-10-27T00:00+02:00"])
@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "0 3 * * *", "15 1-4 * * *", "*/20 * * * *", "0 0 * * 1"]
)
def test_times_only_go_forward_whatever_the_clocks_do(start: str, expression: str) -> None:
    now = ms(start)
    for minute in range(6 * 60):
        at = now + minute * 60_000
        tick = next_tick(expression, COPENHAGEN, at)
        assert tick > at
        assert tick - at <= 8 * 86_400_000


@given(
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
    after=st.integers(0, 4_000_000_000_000),
)
def test_a_daily_time_is_the_first_after_now(minute: int, hour: int, after: int) -> None:
    day = datetime.fromtimestamp(after / 1000, UTC).replace(
        hour=hour, minute=minute, second=0, microsecond=0
    )
    first = next(
        found for found in (day, day + timedelta(days=1)) if round(found.timestamp() * 1000) > after
    )
    assert next_tick(f"{minute} {hour} * * *", "UTC", after) == round(first.timestamp() * 1000)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "nonsense",
        "* * * *",
        "* * * * * * *",
        "61 * * * *",
        "* 24 * * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "a b c d e",
        "-1 * * * *",
        "0 0 30 2 *",
        "@daily",
        "\0 * * * *",
        "* * * * \ud800",
        None,
        5,
        b"* * * * *",
    ],
    ids=repr,
)
def test_an_expression_that_cannot_be_is_refused(expression: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        next_tick(expression, "UTC", 0)
    assert caught.value.field == "cron"


@pytest.mark.parametrize(
    "tz",
    [
        "",
        "Mars/Olympus",
        "Europe",
        "europe/copenhagen",
        "../../etc/passwd",
        "/etc/localtime",
        "Europe/Copenhagen/",
        "\0",
        "\ud800",
        "x" * 5_000,
        None,
        5,
        b"UTC",
    ],
    ids=lambda tz: repr(tz)[:20],
)
def test_a_zone_that_cannot_be_is_refused(tz: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        next_tick("* * * * *", tz, 0)
    assert caught.value.field == "tz"


def test_a_time_that_is_a_minute_past_was_not_missed_yet() -> None:
    tick = next_tick("0 12 * * *", "UTC", 0)
    assert due_tick("0 12 * * *", "UTC", "none", tick, tick + 60_000)[0] == tick
    assert due_tick("0 12 * * *", "UTC", "none", tick, tick + 60_001)[0] is None


def test_six_fields_begin_with_seconds() -> None:
    noon = ms("2024-03-30T12:00Z")
    assert next_tick("*/20 * * * * *", COPENHAGEN, noon) == noon + 20_000
    assert next_tick("*/20 * * * * *", COPENHAGEN, noon + 40_000) == noon + 60_000
