"""Values as text: JSON documents for programs; times, spans and safe strings for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

# What a terminal would obey instead of showing: control characters (but for tab and newline) and
# those that turn the direction of writing.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def document(value: Any) -> Any:
    """Structs as objects with all their fields, so that the shape does not depend on the values."""
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
    """Text of a stranger, as a terminal may show it."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str, longest: int | None = None) -> str:
    """The same in one line, cut if it is too long."""
    if longest is not None and len(text) > longest:
        text = text[: longest - 1] + "…"
    return harmless(text).replace("\n", "\\n").replace("\t", "\\t")


def span(ms: int) -> str:
    """A length of time, exactly."""
    for size, unit in _UNITS:
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms / 1000:g}s" if ms > 1_000 else f"{ms}ms"


def relative(at: int, now: int) -> str:
    """A time as seen from now, in the largest unit of which there are two, or nearly."""
    away = round(abs(at - now), -3)
    if away == 0:
        return "now"
    size, unit = next((one for one in _UNITS if away >= 1.95 * one[0]), _UNITS[-1])
    return f"in {away / size:.0f}{unit}" if at > now else f"{away / size:.0f}{unit} ago"


def absolute(at: int) -> str:
    """A time to the millisecond."""
    moment = datetime.fromtimestamp(at / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{at % 1000:03d} UTC"
