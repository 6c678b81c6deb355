"""How the limits table writes names that may be left out."""

from __future__ import annotations


def mark(name: str | None) -> str:
    return "" if name is None else "=" + name


def unmark(text: str) -> str | None:
    return text[1:] if text else None
