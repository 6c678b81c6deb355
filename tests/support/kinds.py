"""All operations, and all queries."""

from __future__ import annotations

from typing import Any


def kinds_of(base: type[Any]) -> list[type[Any]]:
    """The classes below one that are no base of others, where the base itself is defined."""
    below = [found for kind in base.__subclasses__() for found in kinds_of(kind)]
    kinds = below or [base]
    return [kind for kind in kinds if kind.__module__ == base.__module__]
