"""Formatting values: JSON documents for programs; times, durations and safe strings for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

# Characters that a terminal interprets instead of showing them: control characters (except tab and
# newline) and those that change the text direction.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def document(value: Any) -> Any:
    """Convert structs to dicts with all their fields, so that the shape is always the same."""
    if isinstance(value, msgspec.Struct):
        return {key: document(getattr(value, name)) for name, key in _names(type(value))}
    if isinstance(value, dict):
        return {key: document(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [document(item) for item in value]
    return value


@cache
def _names(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    return [(field.name, field.encode_name) for field in msgspec.structs.fields(kind)]


def harmless(text: str) -> str:
    """Escape untrusted text so that it is safe to print on a terminal."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def as_json(value: Any) -> str:
    """A document as one line of JSON that is safe to print on a terminal, too."""
    text = msgspec.json.encode(document(value)).decode()
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, longest: int | None = None) -> str:
    """Escape text to one line, and cut it if it is too long."""
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def span(ms: int) -> str:
    """Format a duration exactly."""
    for size, unit in _UNITS:
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms / 1000:g}s" if ms > 1_000 else f"{ms}ms"


def relative(at: int, now: int) -> str:
    """Format a time relative to now, in the largest unit that gives about two or more."""
    away = waiting(abs(at - now))
    if away == "0s":
        return "now"
    return f"in {away}" if at > now else f"{away} ago"


def waiting(ms: int) -> str:
    """Format a duration roughly, in the largest unit that gives about two or more."""
    away = round(ms, -3)
    size, unit = next((one for one in _UNITS if away >= 1.95 * one[0]), _UNITS[-1])
    return f"{away / size:.0f}{unit}"


def absolute(at: int) -> str:
    """Format a time to the millisecond."""
    moment = datetime.fromtimestamp(at / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at % 1000:03d} UTC"
