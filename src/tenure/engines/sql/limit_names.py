"""How the limits table stores names that may be omitted."""

from __future__ import annotations


def mark(name: str | None) -> str:
    return "" if name is None else "=" + name


def unmark(text: str) -> str | None:
    return text[1:] if text else None
