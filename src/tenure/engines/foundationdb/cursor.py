"""A position in a list as text: its numbers in hexadecimal."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.errors import InvalidInput

_DIGITS = set("0123456789abcdef")


def cursor_of(place: Iterable[int]) -> str:
    return "-".join(f"{part:x}" for part in place)


def place_of(cursor: str, parts: int) -> tuple[int, ...] | InvalidInput:
    """The position that a cursor encodes."""
    texts = cursor.split("-")
    if len(texts) == parts and all(0 < len(one) <= 15 and set(one) <= _DIGITS for one in texts):
        return tuple(int(one, 16) for one in texts)
    return InvalidInput("cursor", f"{cursor!r} is not a cursor returned by a list")
